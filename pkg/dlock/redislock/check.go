package redislock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Check looks at every master for what makes locks unsafe. It needs INFO and
// PING, and no more rights.
func (d *redisDriver) Check(ctx context.Context) ([]driver.Finding, error) {
	return await(ctx, d, func() ([]driver.Finding, error) { return d.check(ctx) })
}

func (d *redisDriver) check(ctx context.Context) ([]driver.Finding, error) {
	nodes, err := d.masters(ctx)
	if err != nil {
		return nil, classify(err)
	}
	var all []driver.Finding
	for _, node := range nodes {
		findings, err := d.checkNode(ctx, node)
		if err != nil {
			return nil, classify(err)
		}
		all = append(all, findings...)
	}
	return all, nil
}

func (d *redisDriver) checkNode(ctx context.Context, node redis.Cmdable) ([]driver.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, busBound)
	defer cancel()
	raw, err := node.Info(ctx).Result()
	if err != nil {
		return nil, err
	}
	trip, err := roundTrip(ctx, node)
	if err != nil {
		return nil, err
	}
	info := parseInfo(raw)
	return []driver.Finding{d.version(info), eviction(info), persistence(info), d.replication(info), trip}, nil
}

func parseInfo(raw string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(raw) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

func (d *redisDriver) version(info map[string]string) driver.Finding {
	v := info["redis_version"]
	f := driver.Finding{Name: "version", Detail: "Redis " + v}
	major, minor, _ := strings.Cut(v, ".")
	m, _ := strconv.Atoi(major)
	n, _ := strconv.Atoi(strings.SplitN(minor, ".", 2)[0])
	switch {
	case m < 6 || (m == 6 && n < 2):
		f.Level, f.Cure = driver.Unsafe, "use Redis 6.2 or newer: this one is neither tested nor maintained"
	case d.cluster != nil && m < 7:
		f.Level, f.Cure = driver.Warning, "use Redis 7 or newer on a cluster: before it waiters are not told when they get the key, and find out within a second"
	}
	return f
}

func eviction(info map[string]string) driver.Finding {
	policy, limit := info["maxmemory_policy"], info["maxmemory"]
	f := driver.Finding{Name: "eviction-policy", Detail: "maxmemory-policy " + policy}
	if policy == "noeviction" {
		return f
	}
	f.Level, f.Cure = driver.Unsafe, "set maxmemory-policy noeviction: locks have an expiry, so every other policy may evict them while they are held"
	if limit == "0" {
		f.Level, f.Detail = driver.Warning, f.Detail+", without a limit of memory"
	}
	return f
}

func persistence(info map[string]string) driver.Finding {
	f := driver.Finding{Name: "persistence", Detail: "append-only file on"}
	if info["aof_enabled"] != "1" {
		f.Level, f.Detail = driver.Warning, "append-only file off"
		f.Cure = "a server that restarts forgets its locks: set appendonly yes and appendfsync always, or keep it down for longer than the longest TTL"
	}
	return f
}

func (d *redisDriver) replication(info map[string]string) driver.Finding {
	replicas, _ := strconv.Atoi(info["connected_slaves"])
	f := driver.Finding{Name: "replication", Detail: fmt.Sprintf("%s with %d replicas", info["role"], replicas)}
	switch {
	case info["role"] != "master":
		f.Level, f.Cure = driver.Unsafe, "connect to the master: a replica refuses to write"
	case replicas < d.settings.replicas:
		f.Level, f.Cure = driver.Unsafe, fmt.Sprintf("WithMinReplicas asks for %d: until they are there no lock is granted", d.settings.replicas)
	case replicas > 0 && d.settings.replicas == 0:
		f.Level, f.Cure = driver.Warning, "a failover may give a lock to two holders: use WithMinReplicas to narrow the window, and fencing tokens to be safe"
	}
	return f
}

// slowTrip is a round trip with which the usual TTL of some seconds is less than
// ten of them.
const slowTrip = 200 * time.Millisecond

func roundTrip(ctx context.Context, node redis.Cmdable) (driver.Finding, error) {
	var trips []time.Duration
	for range 5 {
		start := time.Now()
		if err := node.Ping(ctx).Err(); err != nil {
			return driver.Finding{}, err
		}
		trips = append(trips, time.Since(start))
	}
	slices.Sort(trips)
	median := trips[len(trips)/2]
	f := driver.Finding{Name: "round-trip", Detail: "median " + median.Round(time.Microsecond).String()}
	if f.Cure = "choose a TTL of at least " + (10 * median).Round(time.Millisecond).String(); median > slowTrip {
		f.Level = driver.Warning
	}
	return f, nil
}

// warnOnce looks at the eviction policy in the background when the first lock is
// taken, since a wrong one is the quietest way to lose locks.
func (d *redisDriver) warnOnce() {
	d.warned.Do(func() {
		d.work.Go(func() {
			ctx, cancel := context.WithTimeout(d.ctx, 2*time.Second)
			defer cancel()
			findings, err := d.Check(ctx)
			for _, f := range findings {
				if err == nil && f.Level == driver.Unsafe {
					d.log.Warn("redis is not safe for locks", "finding", f.Name, "detail", f.Detail, "cure", f.Cure)
				}
			}
		})
	})
}
