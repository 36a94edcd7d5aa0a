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
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
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
	var claims []driver.Claim
	for from := "-inf"; from != ""; {
		reply, err := d.call(ctx, inspectScript.Command(ctx, []string{n.lock, n.queue, n.waiters}, from), patient)
		if err != nil {
			return nil, err
		}
		claims, from, err = appendPage(claims, from, reply)
		if err != nil {
			return nil, err
		}
	}
	return claims, nil
}

// appendPage adds the waiters that inspect.lua has returned, and in the first page the
// holder. A waiter that is granted between two pages is shown as the waiter it was.
func appendPage(claims []driver.Claim, from string, reply any) (all []driver.Claim, next string, err error) {
	list, ok := reply.([]any)
	if !ok || len(list) < 4 {
		return nil, "", fmt.Errorf("%w: %T", ErrReply, reply)
	}
	now, err := strconv.ParseInt(redisnode.Text(list[0]), 10, 64)
	if err != nil {
		return nil, "", fmt.Errorf("%w: time %q", ErrReply, redisnode.Text(list[0]))
	}
	if value, held := strings.CutPrefix(redisnode.Text(list[1]), "="); held && from == "-inf" {
		claims = append(claims, redisnode.Holder(value, now, time.Duration(redisnode.Number(list[2]))*time.Millisecond))
	}
	for i := 4; i+1 < len(list); i += 2 {
		c := redisnode.Waiter(redisnode.Text(list[i]), withoutMark(redisnode.Text(list[i+1])), now)
		if c.Left > 0 {
			claims = append(claims, c)
		}
	}
	return claims, redisnode.Text(list[3]), nil
}

// withoutMark removes the fourth word of a waiter's record, which Redlock's have not.
func withoutMark(record string) string {
	part := strings.SplitN(record, " ", 5)
	if len(part) != 5 {
		return record
	}
	return strings.Join(slices.Delete(part, 3, 4), " ")
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
		return page{}, redisnode.Classify(err)
	}
	var keys []string
	for at.node < len(nodes) {
		step, next, err := d.scan(ctx, nodes[at.node], prefix, at, limit)
		if err != nil {
			return page{}, redisnode.Classify(err)
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

// scan does one step on one master and returns the locks of ours that it met.
func (d *redisDriver) scan(ctx context.Context, node redis.Cmdable, prefix string, at position, limit int) ([]string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, tripTimeout)
	defer cancel()
	keys, next, err := redisnode.Scan(ctx, node, d.prefix+prefix, at.scan, max(limit, 100))
	for i, k := range keys {
		keys[i] = strings.TrimPrefix(k, d.prefix)
	}
	return keys, next, err
}

// masters are the servers that have keys, in a fixed order.
func (d *redisDriver) masters(ctx context.Context) ([]redis.Cmdable, error) {
	if d.cluster == nil {
		return []redis.Cmdable{d.client}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, tripTimeout)
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
