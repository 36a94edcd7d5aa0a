package soak

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/lab/internal/worker"
)

// A prober measures what a backend stores. All of its figures are sums over servers.
type prober interface {
	probe(ctx context.Context, rest bool) (map[string]float64, error)
	close()
}

// noServer is for locks in the memory of the child.
type noServer struct{}

func (noServer) probe(context.Context, bool) (map[string]float64, error) { return nil, nil }
func (noServer) close()                                                  {}

// redisProber asks Redis servers.
type redisProber struct {
	addrs    []string
	clients  []*redis.Client
	rounding *float64 // of roundingBytes; nil until there are fences
}

func newRedisProber(addrs []string) *redisProber {
	p := &redisProber{addrs: addrs}
	for _, a := range addrs {
		p.clients = append(p.clients, redis.NewClient(&redis.Options{Addr: a, PoolSize: 1, DisableIdentity: true, ContextTimeoutEnabled: true}))
	}
	return p
}

func (p *redisProber) close() {
	for _, c := range p.clients {
		_ = c.Close()
	}
}

func (p *redisProber) probe(ctx context.Context, rest bool) (map[string]float64, error) {
	sum := map[string]float64{connections: established(p.addrs)}
	for _, c := range p.clients {
		n, err := c.DBSize(ctx).Result()
		if err != nil {
			return nil, err
		}
		info, err := c.Info(ctx, "memory").Result()
		if err != nil {
			return nil, err
		}
		sum[allKeys] += float64(n)
		sum[allBytes] += infoNumber(info, "used_memory")
		if !rest { // to go through all keys takes the server a while
			continue
		}
		if err := p.addKinds(ctx, c, sum); err != nil {
			return nil, err
		}
	}
	return sum, nil
}

// addKinds counts the keys of a server by kind, and its bytes without those of fences.
func (p *redisProber) addKinds(ctx context.Context, c *redis.Client, sum map[string]float64) error {
	var fences []string
	all := c.Scan(ctx, 0, "*", 1000).Iterator()
	for _, kind := range []string{lockKeys, queueKeys, tombstones, counterKeys, fenceKeys, otherKeys} {
		sum[kind] += 0
	}
	for all.Next(ctx) {
		kind := kindOf(all.Val())
		sum[kind]++
		if kind == fenceKeys {
			fences = append(fences, all.Val())
		}
	}
	if err := all.Err(); err != nil {
		return err
	}
	tables, beside, err := bytesOf(ctx, c)
	if err != nil {
		return err
	}
	each, err := meanBytes(ctx, c, fences)
	if err != nil {
		return err
	}
	n := float64(len(fences))
	if n > 0 {
		if p.rounding == nil {
			bytes, err := roundingBytes(ctx, c)
			if err != nil {
				return err
			}
			p.rounding = &bytes
		}
		each += *p.rounding
		sum[fenceBytes] = each + tables/n // nearly all entries are fences
	}
	sum[otherBytes] += beside - n*each
	return nil
}

// roundingBytes is what a key with an expiry takes in addition to what the server reports. The server counts 24
// bytes for each of its two table entries, and an allocator with steps of 16 bytes gives 32. The server does not say
// which steps its allocator has, so this measures it.
func roundingBytes(ctx context.Context, c *redis.Client) (float64, error) {
	const entries, rounded = 2 * 24, 2 * 32
	keys := make([]string, 1<<16) // so many that buffers of some 100 KB do not matter
	for i := range keys {
		keys[i] = "soak:measure:" + strconv.Itoa(i)
	}
	added, err := addedBytes(ctx, c, keys)
	if added/float64(len(keys)) < (rounded-entries)/2 {
		return 0, err
	}
	return rounded - entries, err
}

// addedBytes stores the keys, and returns what they take in addition to what the server reports.
func addedBytes(ctx context.Context, c *redis.Client, keys []string) (float64, error) {
	_, before, err := bytesOf(ctx, c)
	if err != nil {
		return 0, err
	}
	for some := range slices.Chunk(keys, 512) {
		pipe := c.Pipeline()
		for i, key := range some {
			pipe.Set(ctx, key, 1<<50+i, time.Minute)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return 0, err
		}
	}
	_, after, err := bytesOf(ctx, c)
	if err != nil {
		return 0, err
	}
	each, err := meanBytes(ctx, c, keys)
	if err != nil {
		return 0, err
	}
	for some := range slices.Chunk(keys, 512) {
		if err := c.Del(ctx, some...).Err(); err != nil {
			return 0, err
		}
	}
	return after - before - each*float64(len(keys)), nil
}

// meanBytes is what a key takes on the average, but for its entry and its value, which are among
// the bytes of the tables. Names differ in length, and so by a size class of the allocator: one
// key does not stand for all.
func meanBytes(ctx context.Context, c *redis.Client, keys []string) (float64, error) {
	const counted, samples = 40, 500
	sum, n := 0.0, 0
	pipe := c.Pipeline()
	for i := 0; i < len(keys); i += max(1, len(keys)/samples) {
		pipe.MemoryUsage(ctx, keys[i])
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, err
	}
	for _, cmd := range cmds {
		if usage, ok := cmd.(*redis.IntCmd); ok && usage.Err() == nil { // it may have expired
			sum, n = sum+float64(usage.Val()-counted), n+1
		}
	}
	return sum / max(1, float64(n)), nil
}

// kindOf tells by its name what a key is for; see docs/backends/redis.md.
func kindOf(key string) string {
	i := strings.LastIndexByte(key, 1)
	if i < 0 {
		return lockKeys
	}
	suffix := key[i+1:]
	switch {
	case key[:i] == "dlock:token":
		return counterKeys
	case suffix == "f":
		return fenceKeys
	case suffix == "y", suffix == "r", suffix == "w":
		return queueKeys
	case strings.HasPrefix(suffix, "b"):
		return tombstones
	}
	return otherKeys
}

// bytesOf returns what the hash tables of keys and of expiries take, and what all else takes. The tables double now
// and then, as the number of fences grows, and the server moves the entries bit by bit: one answer has both
// figures of one moment.
func bytesOf(ctx context.Context, c *redis.Client) (tables, beside float64, err error) {
	stats, err := c.Do(ctx, "MEMORY", "STATS").Result()
	if err != nil {
		return 0, 0, err
	}
	for name, part := range pairs(stats) {
		if bytes, ok := part.(int64); ok && name == "total.allocated" {
			beside += float64(bytes)
		}
		if !strings.HasPrefix(name, "db.") {
			continue
		}
		for _, n := range pairs(part) {
			if bytes, ok := n.(int64); ok {
				tables += float64(bytes)
			}
		}
	}
	return tables, beside - tables, nil
}

// pairs is a map of an answer, which is one already in version 3 of the protocol.
func pairs(answer any) map[string]any {
	all := map[string]any{}
	switch a := answer.(type) {
	case map[any]any:
		for k, v := range a {
			if name, ok := k.(string); ok {
				all[name] = v
			}
		}
	case []any:
		for i := 0; i+1 < len(a); i += 2 {
			if name, ok := a[i].(string); ok {
				all[name] = a[i+1]
			}
		}
	}
	return all
}

func infoNumber(info, name string) float64 {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return n
		}
	}
	return 0
}

// etcdProber asks etcd, and compacts its history as etcd does by itself with
// --auto-compaction-retention.
type etcdProber struct {
	addrs    []string
	client   *clientv3.Client
	revision int64 // of the probe before
}

func newEtcdProber(b worker.Backend) (*etcdProber, error) {
	c, err := worker.Connect(b)
	if err != nil {
		return nil, err
	}
	return &etcdProber{addrs: b.Addrs, client: c.Etcd}, nil
}

func (p *etcdProber) close() { _ = p.client.Close() }

func (p *etcdProber) probe(ctx context.Context, _ bool) (map[string]float64, error) {
	count := func(prefix string) (float64, error) {
		got, err := p.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		return float64(got.Count), nil
	}
	if err := p.compact(ctx); err != nil {
		return nil, err
	}
	keys, err := count("")
	ended, err2 := count(worker.Prefix + "%tombstone/")
	all, err3 := p.client.Leases(ctx)
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, err
	}
	sum := map[string]float64{
		connections: established(p.addrs), lockKeys: keys - ended, tombstones: ended, leases: float64(len(all.Leases)),
	}
	for _, a := range p.addrs {
		status, err := p.client.Status(ctx, a)
		if err != nil {
			return nil, err
		}
		sum[otherBytes] += float64(status.DbSizeInUse)
		sum[allBytes] += float64(status.DbSize)
	}
	return sum, nil
}

// compact forgets the history before the last probe.
func (p *etcdProber) compact(ctx context.Context) error {
	got, err := p.client.Get(ctx, "any")
	if err != nil {
		return err
	}
	before := p.revision
	p.revision = got.Header.Revision
	if before == 0 || before == p.revision {
		return nil
	}
	_, err = p.client.Compact(ctx, before, clientv3.WithCompactPhysical())
	return err
}

// fileProber looks into the directory of locks.
type fileProber string

func (fileProber) close() {}

func (p fileProber) probe(context.Context, bool) (map[string]float64, error) {
	sum := map[string]float64{files: 0, fileBytes: 0}
	err := filepath.WalkDir(string(p), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return ignoreMissing(err)
		}
		info, err := e.Info()
		if err != nil {
			return ignoreMissing(err)
		}
		sum[files]++
		sum[fileBytes] += float64(info.Size())
		return nil
	})
	return sum, err
}

// ignoreMissing is for files that go while we look.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// established counts the connections that servers have, as the kernel shows them.
func established(addrs []string) (n float64) {
	ports := map[string]bool{}
	for _, a := range addrs {
		if u, err := url.Parse(a); err == nil && u.Host != "" {
			a = u.Host
		}
		port, _ := strconv.Atoi(a[strings.LastIndexByte(a, ':')+1:])
		ports[strings.ToUpper(strconv.FormatInt(int64(port), 16))] = true
	}
	table, _ := os.ReadFile("/proc/net/tcp") // not there on other systems: 0 connections, always
	for line := range strings.Lines(string(table)) {
		field := strings.Fields(line)
		const isEstablished = "01"
		if len(field) < 4 || field[3] != isEstablished {
			continue
		}
		_, port, _ := strings.Cut(field[1], ":")
		if ports[strings.TrimLeft(port, "0")] {
			n++
		}
	}
	return n
}

// probeWithin is how long servers have to answer.
const probeWithin = 5 * time.Second
