package redlock_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// An opener that does not deliver the answer of the first renewal that wins a lock, and calls won
// instead.
type unheardGrant struct {
	driver.Opener
	won   func()
	times atomic.Int32
}

type unheardDriver struct {
	driver.Driver
	opener *unheardGrant
}

func (u *unheardGrant) Open(o driver.Options) (driver.Driver, error) {
	d, err := u.Opener.Open(o)
	return &unheardDriver{d, u}, err
}

func (u *unheardDriver) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states, err := u.Driver.Renew(ctx, refs)
	for i := range states {
		if states[i].Phase == driver.Held && u.opener.times.Add(1) == 1 {
			states[i] = driver.State{}
			u.opener.won()
		}
	}
	return states, err
}

// A waiter has won, and its caller has not heard of it. Then a majority loses the lock, so the
// caller submits another claim. Nothing of the first one stays on the node that still has it.
func TestUnheardGrantLeavesNoMinority(t *testing.T) {
	for !unheardGrantLeavesNoMinority(t) {
		t.Log("the machine delayed Close, which gave up")
	}
}

// unheardGrantLeavesNoMinority reports whether it has shown something: a Close that the machine has delayed gives up.
func unheardGrantLeavesNoMinority(t *testing.T) (shown bool) {
	t.Helper()
	s := start(t, 3)
	holder := acquire(t, s.locks(t, dlock.Config{}), "k", dlock.WithTTL(time.Hour))
	b := &unheardGrant{Opener: redlock.New(s.dial(t), patient), won: func() {
		var nodes []int // which have it: a slow one may have had the lock of the holder when it was asked
		soon(t, "a majority has the lock and its token", func() bool {
			nodes = nil
			for i := range s.direct {
				if id, _, stored := strings.Cut(s.stored(t, i, "k"), " "); stored && s.confirmed(t, id) > 1 {
					nodes = append(nodes, i)
				}
			}
			return len(nodes) > 1
		})
		for _, i := range nodes[1:] {
			check(t, s.direct[i].Del(context.Background(), "k").Err())
		}
	}}
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(b))
	check(t, err)
	defer func() { _ = c.Close() }()
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		g, err := c.Acquire(ctx, "k", dlock.WithTTL(time.Hour))
		if err == nil {
			err = tryUnlock(t, g)
		}
		done <- err
	}()
	testenv.Eventually(t, patience, "a majority lists the waiter", func() bool { // so that its first round has not won
		listing := 0
		for _, node := range s.direct {
			if node.HLen(t.Context(), waitersOf("k")).Val() > 0 {
				listing++
			}
		}
		return listing > 1
	})
	unlock(t, holder)
	check(t, <-done)
	if b.times.Load() == 0 {
		t.Fatal("no renewal has won, and this has shown nothing")
	}
	if closeLocks(t, c) {
		return false
	}
	soon(t, "no node has anything", func() bool { return s.holders(t, "k") == 0 })
	return true
}
