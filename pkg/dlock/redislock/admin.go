package redislock

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/cursor"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

type logger interface {
	Debug(msg string, args ...any)
	Warn(msg string, args ...any)
}

// Inspect reads the holders and the queue.
func (d *redisDriver) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	n, err := d.namesOf(key)
	if err != nil {
		return nil, err
	}
	var holders, waiters []driver.Claim
	for from := "-inf"; from != ""; {
		reply, err := d.read(ctx, func() *command {
			return inspectScript.Command(ctx, []string{n.lock, n.queue, n.waiters, n.holders}, from)
		})
		if err != nil {
			return nil, err
		}
		v, err := readView(reply)
		if err != nil {
			return nil, err
		}
		if from == "-inf" || v.joint { // a waiter that is granted the lock between two pages is still shown as a waiter
			holders = append(holders, v.holders...)
		}
		waiters = append(waiters, v.waiters...)
		from = redisnode.Text(v.last)
	}
	return withoutRepeats(append(holders, waiters...)), nil
}

// withoutRepeats removes claims that changed their place between two pages.
func withoutRepeats(claims []driver.Claim) []driver.Claim {
	seen := make(map[string]bool, len(claims))
	return slices.DeleteFunc(claims, func(c driver.Claim) bool {
		repeated := c.ID != "" && seen[c.ID]
		seen[c.ID] = true
		return repeated
	})
}

// maxReads is how many times a read-only call is sent.
const maxReads = 4

// read sends a command that changes nothing, and sends it again if a busy server did not answer in
// time. The engine retries calls about claims, but not the calls of operators.
func (d *redisDriver) read(ctx context.Context, command func() *command) (reply any, err error) {
	for range maxReads {
		reply, err = d.call(ctx, command(), notInline)
		if !isUnanswered(ctx, err) {
			break
		}
	}
	return reply, err
}

// isUnanswered reports whether a call was not answered and there is time to repeat it.
func isUnanswered(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() == nil && driver.ClassOf(err) == driver.Ambiguous
}

// Look reads one holder and counts the waiters.
func (d *redisDriver) Look(ctx context.Context, key, except string) (driver.Claim, int, error) {
	n, err := d.namesOf(key)
	if err != nil {
		return driver.Claim{}, 0, err
	}
	reply, err := d.call(ctx, lookScript.Command(ctx, []string{n.lock, n.queue, n.holders}, except), notInline)
	if err != nil {
		return driver.Claim{}, 0, err
	}
	v, err := readView(reply)
	if err != nil {
		return driver.Claim{}, 0, err
	}
	var holder driver.Claim
	if len(v.holders) > 0 {
		holder = v.holders[0]
	}
	return holder, int(redisnode.Number(v.last)), nil
}

// List scans one master after another. A scan step may return more keys than were requested. The
// cursor carries the surplus: repeating the step would miss keys if others were unlocked meanwhile.
func (d *redisDriver) List(ctx context.Context, prefix, from string, limit int) ([]string, string, error) {
	at, err := parseCursor(from)
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
	if at.node > len(nodes) { // a wrong cursor, or the cluster had more masters then: begin again
		return page{}, cursor.Invalid(at.String())
	}
	var keys []string
	for {
		n := min(limit-len(keys), len(at.left))
		keys, at.left = append(keys, at.left[:n]...), at.left[n:]
		switch {
		case len(at.left) == 0 && at.node >= len(nodes):
			return page{keys, ""}, nil
		case len(keys) == limit:
			return page{keys, at.String()}, nil
		}
		at.left, at.scan, err = d.scan(ctx, nodes[at.node], prefix, at, limit)
		if err != nil {
			return page{}, redisnode.Classify(err)
		}
		if at.scan == 0 {
			at.node++
		}
	}
}

type position struct {
	node int
	scan uint64
	left []string // keys that were found and not yet returned
}

func (p position) String() string {
	words := []string{strconv.Itoa(p.node), strconv.FormatUint(p.scan, 10)}
	return strings.Join(append(words, p.left...), separator)
}

func parseCursor(s string) (p position, err error) {
	if s == "" {
		return p, nil
	}
	words := strings.Split(s, separator)
	if len(words) >= 2 {
		p.left = words[2:]
		p.node, err = strconv.Atoi(words[0])
		if err == nil {
			p.scan, err = strconv.ParseUint(words[1], 10, 64)
		}
	}
	if err != nil || len(words) < 2 || p.node < 0 {
		return p, cursor.Invalid(s)
	}
	return p, nil
}

// scan does one step on one master and returns this prefix's locks that it found.
func (d *redisDriver) scan(ctx context.Context, node redis.Cmdable, prefix string, at position, limit int) ([]string, uint64, error) {
	var keys []string
	var next uint64
	var err error
	for range maxReads {
		trip, cancel := context.WithTimeout(ctx, tripTimeout)
		keys, next, err = redisnode.Scan(trip, node, d.prefix+prefix, at.scan, limit, isMode)
		cancel()
		if !isUnanswered(ctx, redisnode.Classify(err)) {
			break
		}
	}
	for i, k := range keys {
		keys[i] = strings.TrimPrefix(k, d.prefix)
	}
	return keys, next, err
}

// masters returns the servers that store keys, in a fixed order.
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
