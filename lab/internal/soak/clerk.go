package soak

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/sim"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// A clerk locks briefly, one thing after another.
type clerk struct {
	shop *shop
	r    *rand.Rand
}

// serve makes one call, and undoes it.
func (k *clerk) serve(ctx context.Context) {
	pause(ctx, time.Duration(k.r.Int64N(int64(400*time.Millisecond))))
	c, key := k.shop.get(), k.shop.key(k.r, false)
	patient, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	switch k.r.IntN(6) {
	case 0:
		hasty, leave := context.WithTimeout(ctx, time.Duration(k.r.Int64N(int64(3*time.Millisecond))))
		defer leave()
		k.guard(hasty, "acquire in haste", c.Acquire, key)
	case 1:
		k.guard(patient, "acquire", c.Acquire, key)
	case 2:
		k.guard(patient, "try acquire", c.TryAcquire, key)
	case 3:
		err := c.Lock(patient, key)
		k.keyed(patient, "lock", c, key, true, err)
	case 4:
		held, err := c.TryLock(patient, key)
		k.keyed(patient, "try lock", c, key, held, err)
	case 5:
		k.shop.child.tally.add("do", c.Do(patient, key, func(ctx context.Context) error {
			k.work(ctx)
			return nil
		}))
	}
}

type seek func(context.Context, string, ...dlock.LockOption) (*dlock.Guard, error)

func (k *clerk) guard(ctx context.Context, verb string, do seek, key string) {
	tally := k.shop.child.tally
	g, err := do(ctx, key)
	tally.add(verb, err)
	if err != nil {
		return
	}
	k.work(g.Context())
	if k.r.IntN(8) == 0 {
		tally.add("extend", g.Extend(ctx, 2*ttl))
	}
	tally.add("unlock", g.Unlock(ctx))
}

func (k *clerk) keyed(ctx context.Context, verb string, c *dlock.Client, key string, held bool, err error) {
	tally := k.shop.child.tally
	if err == nil && !held {
		err = dlock.ErrLockHeldByOther
	}
	tally.add(verb, err)
	if err == nil {
		k.work(ctx)
		tally.add("unlock by key", c.Unlock(ctx, key))
	}
}

func (k *clerk) work(ctx context.Context) {
	pause(ctx, time.Duration(k.r.Int64N(int64(20*time.Millisecond))))
}

// A tally counts calls by verb and outcome. It is also what the users of the simulator
// report to, whose verbs are "user asks" and "user unlocks".
type tally struct {
	begin time.Time
	mu    sync.Mutex
	n     map[string]int64
}

func newTally() *tally { return &tally{begin: time.Now(), n: map[string]int64{}} }

func (t *tally) add(verb string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n[verb+": "+outcome(err)]++
}

func (t *tally) read() map[string]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.n)
}

// outcome is what a call ended with.
func outcome(err error) string {
	for _, o := range []struct {
		is   error
		name string
	}{
		{nil, "ok"},
		{dlock.ErrClosed, "closed"},
		{dlock.ErrLockHeldByOther, "held by other"},
		{dlock.ErrLockAlreadyHeld, "held by this Client"},
		{dlock.ErrOwnershipLost, "lost"},
		{dlock.ErrLockNotHeld, "not held"},
		{dlock.ErrUnknownOutcome, "unknown"},
		{dlock.ErrUnavailable, "unavailable"},
		{dlock.ErrNotReady, "not ready"},
		{context.DeadlineExceeded, "context ended"},
		{context.Canceled, "context ended"},
	} {
		if errors.Is(err, o.is) {
			return o.name
		}
	}
	code := xerrors.CodeOf(err)
	if code == "" { // not its text, which may name a key
		return "other"
	}
	return code
}

// Now is the time since the beginning.
func (t *tally) Now() time.Duration { return time.Since(t.begin) }

// Asks counts nothing: what becomes of it is counted.
func (t *tally) Asks(*sim.Request) {}

// Refused counts a call that did not get a lock.
func (t *tally) Refused(_ *sim.Request, err error) { t.add("user asks", err) }

// Enters counts a lock.
func (t *tally) Enters(h *sim.Hold) {
	if h.Inside != nil {
		t.add("user enters again", nil)
		return
	}
	t.add("user asks", nil)
}

// Leaves counts how a lock ended.
func (t *tally) Leaves(h *sim.Hold) { t.add("user works", context.Cause(h.Context)) }

// Unlocked counts an unlock.
func (t *tally) Unlocked(_ *sim.Hold, err error) { t.add("user unlocks", err) }
