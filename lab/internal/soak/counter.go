package soak

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/sim"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// A counter counts calls by verb and outcome. It is also what the users of the simulator
// report to, whose verbs are "user asks" and "user unlocks".
type counter struct {
	begin time.Time
	mu    sync.Mutex
	n     map[string]int64
}

func newCounter() *counter { return &counter{begin: time.Now(), n: map[string]int64{}} }

func (c *counter) add(verb string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[verb+": "+outcome(err)]++
}

func (c *counter) read() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
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
func (c *counter) Now() time.Duration { return time.Since(c.begin) }

// Asks counts nothing: what becomes of it is counted.
func (c *counter) Asks(*sim.Request) {}

// Refused counts a call that did not get a lock.
func (c *counter) Refused(_ *sim.Request, err error) { c.add("user asks", err) }

// Enters counts a lock.
func (c *counter) Enters(h *sim.Hold) {
	if h.Inside != nil {
		c.add("user enters again", nil)
		return
	}
	c.add("user asks", nil)
}

// Leaves counts how a lock ended.
func (c *counter) Leaves(h *sim.Hold) { c.add("user works", context.Cause(h.Context)) }

// Unlocked counts an unlock.
func (c *counter) Unlocked(_ *sim.Hold, err error) { c.add("user unlocks", err) }
