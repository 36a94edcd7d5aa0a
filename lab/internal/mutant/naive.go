package mutant

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

//go:embed lua/grab.lua
var grabLua string

//go:embed lua/free.lua
var freeLua string

//go:embed lua/keep.lua
var keepLua string

var grabScript, freeScript, keepScript = redis.NewScript(grabLua), redis.NewScript(freeLua), redis.NewScript(keepLua)

// quirks are what a naive lock does wrong. Without any it is right, if slow.
type quirks struct {
	blindRelease bool // deletes the lock, whosever it is
	blindRenew   bool // lengthens the lock, whosever it is
	noExpiry     bool // sets no expiry
	twoSteps     bool // leaves the expiry to the first renewal
	absolute     bool // sends a time of its own clock, which is late by 10 s on one host
	wrongUnit    bool // takes milliseconds for microseconds
	lookFirst    bool // looks whether the lock is free, then takes it
	deadHeads    bool // has a queue from which dead waiters are not removed
	// neverShortens leaves an end that is further ahead than a renewal asks for.
	neverShortens bool
	counts        bool // takes the stored token plus one, where ours is stored
}

// naive is a lock as many have written it: SET NX PX, and ask again until it is free.
type naive struct {
	*driver.EventQueue
	quirks
	client redis.UniversalClient
	prefix string
	late   time.Duration // of this host's clock
	claims *memory
}

func newNaive(q quirks) func(driver.Opener, Servers) driver.Opener {
	return func(_ driver.Opener, s Servers) driver.Opener {
		return opener(func(o driver.Options) (driver.Driver, error) {
			d := &naive{EventQueue: driver.NewEventQueue(1), quirks: q, client: s.Redis, prefix: o.Prefix, claims: newMemory(o.Prefix)}
			if q.absolute && s.Worker == 0 {
				d.late = 10 * time.Second
			}
			return d, nil
		})
	}
}

func (d *naive) Caps() driver.Caps {
	return driver.Caps{Name: "redis", Lease: true, Remote: true, Fencing: true, Modes: []driver.Mode{driver.Exclusive}, MinTTL: 10 * time.Millisecond}
}

func (d *naive) Close() error {
	d.EventQueue.Close()
	return nil
}

// poll is how often a waiter asks.
const poll = 15 * time.Millisecond

// early returns when the context ends, which go-redis does not see to.
func early[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := call()
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

func (d *naive) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	return early(ctx, func() (driver.State, error) { return d.acquire(ctx, r) })
}

func (d *naive) acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	sent := time.Now()
	if d.deadHeads {
		if first, err := d.first(ctx, r); err != nil || !first {
			return d.waiting(r, sent), err
		}
	}
	token, err := d.grab(ctx, r.Ref)
	if err != nil {
		return driver.State{}, err
	}
	if token == 0 {
		return d.waiting(r, sent), nil
	}
	d.claims.of(r.ID, func(c *remembered) { c.token, c.phase = token, driver.Held })
	return driver.State{Phase: driver.Held, Token: token, Until: sent.Add(r.TTL)}, nil
}

func (d *naive) waiting(r driver.Request, sent time.Time) driver.State {
	if !r.Wait {
		return driver.State{Phase: driver.Gone}
	}
	d.claims.of(r.ID, func(c *remembered) { c.phase = driver.Queued })
	return driver.State{Phase: driver.Queued, Ahead: 1, Recheck: poll, Until: sent.Add(driver.Heartbeat(r.TTL))}
}

// first joins the queue and says whether it is at the head.
func (d *naive) first(ctx context.Context, r driver.Request) (bool, error) {
	queue := "naive:q:" + r.Key
	c := d.claims.of(r.ID, nil)
	if c.phase == driver.Unknown {
		if err := d.client.RPush(ctx, queue, r.ID).Err(); err != nil {
			return false, err
		}
	}
	head, err := d.client.LIndex(ctx, queue, 0).Result()
	return head == r.ID, err
}

// grab tries to take a lock and returns its token, 0 if it is taken.
func (d *naive) grab(ctx context.Context, r driver.Ref) (int64, error) {
	px, at, force := r.TTL.Milliseconds(), 0, 0
	switch {
	case d.noExpiry, d.twoSteps:
		px = 0
	case d.wrongUnit:
		px /= 1000
	case d.absolute:
		px, at = time.Now().Add(r.TTL-d.late).UnixMilli(), 1
	case d.lookFirst:
		found, err := d.client.Exists(ctx, d.prefix+r.Key).Result()
		if err != nil || found > 0 {
			return 0, err
		}
		force = 1
	}
	info := fmt.Sprintf(`{"o":"naive","p":%d}`, os.Getpid())
	keys := []string{d.prefix + r.Key, "naive:f:" + r.Key, "naive:b:" + r.ID}
	clock := 1
	if d.counts {
		keys[1], clock = "dlock:token\x01"+r.Key, 0
	}
	answer, err := grabScript.Run(ctx, d.client, keys, r.ID, px, at, force, info, clock).Text()
	if err != nil || answer == "" {
		return 0, err
	}
	return strconv.ParseInt(answer, 10, 64)
}

func (d *naive) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	return early(ctx, func() ([]driver.State, error) { return d.renewAll(ctx, slices.Clone(refs)) })
}

func (d *naive) renewAll(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states := make([]driver.State, len(refs))
	var last error
	answered := false
	for i, r := range refs {
		st, err := d.renew(ctx, r)
		if err != nil {
			last = err
			continue
		}
		states[i], answered = st, true
	}
	if !answered {
		return nil, last
	}
	return states, nil
}

func (d *naive) renew(ctx context.Context, r driver.Ref) (driver.State, error) {
	c, sent := d.claims.of(r.ID, nil), time.Now()
	if c.phase == driver.Queued {
		return d.acquire(ctx, driver.Request{Ref: r, Wait: true})
	}
	var kept int
	var err error
	switch {
	case d.noExpiry:
		return held(c.token, r.TTL), nil
	case d.blindRenew:
		kept = 1
		err = d.client.PExpire(ctx, d.prefix+r.Key, r.TTL).Err()
	default:
		when := ""
		if d.neverShortens {
			when = "GT"
		}
		kept, err = keepScript.Run(ctx, d.client, []string{d.prefix + r.Key}, r.ID, r.TTL.Milliseconds(), when).Int()
	}
	if err != nil || kept == 0 {
		return driver.State{Phase: driver.Gone}, err
	}
	return driver.State{Phase: driver.Held, Token: c.token, Until: sent.Add(r.TTL)}, nil
}

func (d *naive) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	return early(ctx, func() (driver.State, error) { return d.release(ctx, r) })
}

func (d *naive) release(ctx context.Context, r driver.Ref) (driver.State, error) {
	c := d.claims.of(r.ID, nil)
	if d.blindRelease {
		err := d.client.Del(ctx, d.prefix+r.Key).Err()
		return driver.State{Phase: c.phase, Token: c.token}, err
	}
	// Its renewals store a claim, so one that is on its way needs a tombstone like any attempt.
	tombstone := driver.TombstoneTTL(r.TTL).Milliseconds()
	n, err := freeScript.Run(ctx, d.client, []string{d.prefix + r.Key, "naive:b:" + r.ID, "naive:q:" + r.Key}, r.ID, tombstone).Int()
	if err != nil {
		return driver.State{}, err
	}
	if n == 0 && c.phase == driver.Held {
		return driver.State{Phase: driver.Gone}, nil
	}
	return driver.State{Phase: driver.Held, Token: c.token}, nil
}
