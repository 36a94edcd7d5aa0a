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

type logger interface {
	Debug(msg string, args ...any)
	Warn(msg string, args ...any)
}

// Inspect reads the holder and the queue.
func (d *redisDriver) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	n, err := d.namesOf(key)
	if err != nil {
		return nil, err
	}
	reply, err := d.call(ctx, inspectScript.command(ctx, []string{n.lock, n.queue, n.waiters}))
	if err != nil {
		return nil, err
	}
	list, ok := reply.([]any)
	if !ok || len(list) < 3 {
		return nil, fmt.Errorf("%w: %T", ErrReply, reply)
	}
	now, err := strconv.ParseInt(text(list[0]), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: time %q", ErrReply, text(list[0]))
	}
	var claims []driver.Claim
	if value, held := strings.CutPrefix(text(list[1]), "="); held {
		claims = append(claims, holder(value, now, time.Duration(number(list[2]))*time.Millisecond))
	}
	for i := 3; i+1 < len(list); i += 2 {
		if c := queuer(text(list[i]), text(list[i+1]), now); c.Left > 0 {
			claims = append(claims, c)
		}
	}
	return claims, nil
}

// holder reads "<id> <token> <since> <channel> <info>". A plain client's value
// is no such thing, and is shown as a holder of whom nothing is known.
func holder(value string, now int64, left time.Duration) driver.Claim {
	c := driver.Claim{Phase: driver.Held, Left: max(left, 0)}
	part := strings.SplitN(value, " ", 5)
	if len(part) != 5 || len(part[0]) != 32 {
		return c
	}
	c.ID, c.Info = part[0], decodeInfo(part[4])
	c.Token, _ = strconv.ParseInt(part[1], 10, 64)
	c.Age = since(part[2], now)
	return c
}

// queuer reads "<deadline us> <since> <fences> <channel> <info>".
func queuer(id, record string, now int64) driver.Claim {
	c := driver.Claim{ID: id, Phase: driver.Queued}
	part := strings.SplitN(record, " ", 5)
	if len(part) != 5 {
		return c
	}
	deadline, _ := strconv.ParseInt(part[0], 10, 64)
	c.Left = time.Duration(deadline-now) * time.Microsecond
	c.Age, c.Info = since(part[1], now), decodeInfo(part[4])
	return c
}

// since reads seconds and microseconds with a dot between.
func since(at string, now int64) time.Duration {
	seconds, micros, _ := strings.Cut(at, ".")
	s, _ := strconv.ParseInt(seconds, 10, 64)
	us, _ := strconv.ParseInt(micros, 10, 64)
	return max(time.Duration(now-s*1_000_000-us)*time.Microsecond, 0)
}

// List scans, a master after the other. A cursor is where the scan of a master
// stands, and the last key that was returned of that step, since a step may bring
// more keys than are asked for.
func (d *redisDriver) List(ctx context.Context, prefix, cursor string, limit int) ([]string, string, error) {
	at, err := parseCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	p, err := await(ctx, d, func() (page, error) { return d.list(ctx, prefix, at, limit) })
	return p.keys, p.next, err
}

type page struct {
	keys []string
	next string
}

func (d *redisDriver) list(ctx context.Context, prefix string, at position, limit int) (page, error) {
	nodes, err := d.masters(ctx)
	if err != nil {
		return page{}, classify(err)
	}
	var keys []string
	for at.node < len(nodes) {
		step, next, err := d.scan(ctx, nodes[at.node], prefix, at.scan, limit)
		if err != nil {
			return page{}, classify(err)
		}
		for _, k := range step {
			if k <= at.last {
				continue
			}
			if len(keys) == limit {
				return page{keys, at.String()}, nil
			}
			keys, at.last = append(keys, k), k
		}
		at.scan, at.last = next, ""
		if next == 0 {
			at.node++
		}
		if len(keys) == limit && at.node < len(nodes) {
			return page{keys, at.String()}, nil
		}
	}
	return page{keys, ""}, nil
}

type position struct {
	node int
	scan uint64
	last string
}

func (p position) String() string {
	return strconv.Itoa(p.node) + " " + strconv.FormatUint(p.scan, 10) + " " + p.last
}

func parseCursor(s string) (p position, err error) {
	if s == "" {
		return p, nil
	}
	part := strings.SplitN(s, " ", 3)
	if len(part) == 3 {
		p.last = part[2]
		if p.node, err = strconv.Atoi(part[0]); err == nil {
			p.scan, err = strconv.ParseUint(part[1], 10, 64)
		}
	}
	if err != nil || len(part) != 3 || p.node < 0 {
		return p, driver.Classify(fmt.Errorf("redislock: %q is no cursor", s), driver.Fatal)
	}
	return p, nil
}

// scan does one step on one master and returns the locks of ours that it met, in
// order.
func (d *redisDriver) scan(ctx context.Context, node redis.Cmdable, prefix string, at uint64, limit int) ([]string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, busBound)
	defer cancel()
	found, next, err := node.ScanType(ctx, at, escapeGlob(d.prefix+prefix)+"*", int64(max(limit, 100)), "string").Result()
	if err != nil || len(found) == 0 {
		return nil, next, err
	}
	found = slices.DeleteFunc(found, func(k string) bool { return strings.Contains(k, separator) })
	values, err := node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, k := range found {
			p.GetRange(ctx, k, 0, 63)
		}
		return nil
	})
	var keys []string
	for i, v := range values {
		s, isString := v.(*redis.StringCmd)
		if isString && s.Err() == nil && isOurs(s.Val()) {
			keys = append(keys, strings.TrimPrefix(found[i], d.prefix))
		}
	}
	if err != nil && len(keys) == 0 && len(found) > 0 {
		return nil, next, err
	}
	slices.Sort(keys)
	return keys, next, nil
}

// isOurs reports whether a value begins as ours do.
func isOurs(value string) bool {
	if len(value) < 34 || value[32] != ' ' {
		return false
	}
	return strings.Trim(value[:32], "0123456789abcdef") == ""
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// masters are the servers that have keys, in a fixed order.
func (d *redisDriver) masters(ctx context.Context) ([]redis.Cmdable, error) {
	if d.cluster == nil {
		return []redis.Cmdable{d.client}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, busBound)
	defer cancel()
	byAddr := make(chan *redis.Client, slots)
	err := d.cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		byAddr <- c
		return nil
	})
	close(byAddr)
	var all []*redis.Client
	for c := range byAddr {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *redis.Client) int { return strings.Compare(a.Options().Addr, b.Options().Addr) })
	nodes := make([]redis.Cmdable, len(all))
	for i, c := range all {
		nodes[i] = c
	}
	return nodes, err
}
