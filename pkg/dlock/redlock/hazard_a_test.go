package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// The tests TestA…, TestB… and TestC… are named after the hazards that they make happen.

// Answers to a successful acquire are lost on a majority of the nodes, in either phase:
// the call succeeds once, and leaves nothing behind.
func TestA1LostReplies(t *testing.T) {
	s := start(t, 3)
	c := s.locks(t, dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond})
	warm(t, c)
	last := int64(0)
	for i := range testenv.UnderStress(12, 200) {
		script := []string{"acquire", "confirm"}[i%2]
		var lost [3]atomic.Int64
		s.intercept(func(node int, cmd []string) servers.Action {
			if node < 2 && calls(cmd, script, "k") && lost[node].Add(1) <= int64(i%3+1) {
				return servers.DropReply
			}
			return servers.Forward
		})
		g := acquire(t, c, "k")
		if lost[0].Load() == 0 || lost[1].Load() == 0 {
			t.Fatal("no reply was lost")
		}
		if g.Token() <= last {
			t.Fatalf("token %d after %d", g.Token(), last)
		}
		last = g.Token()
		s.heal()
		unlock(t, g)
		soon(t, "nothing is left", func() bool { return len(s.left(t)) == 0 })
	}
}

// Nothing comes back from a majority: the outcome is unknown and not "busy", and every
// node is free again soon after the network has healed.
func TestA1UnknownOutcomeIsCleanedUp(t *testing.T) {
	s := start(t, 3)
	c := s.locks(t, dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond, MaxRetries: 1})
	for i := range testenv.UnderStress(3, 40) {
		warm(t, c)
		key := fmt.Sprintf("k%d", i)
		s.intercept(func(node int, cmd []string) servers.Action {
			switch {
			case node < 2 && calls(cmd, "acquire", key):
				return servers.DropReply
			case calls(cmd, "release", key): // clean-up does not get through either
				return servers.Swallow
			}
			return servers.Forward
		})
		_, err := c.TryLock(context.Background(), key)
		want(t, err, dlock.ErrUnknownOutcome)
		if errors.Is(err, dlock.ErrLockHeldByOther) || s.holders(t, key) == 0 {
			t.Fatalf("the fault did not happen, or was told as %v", err)
		}
		s.heal()
		soon(t, "nothing is left", func() bool { return len(s.left(t)) == 0 })
	}
}

// Clean-up on another connection overtakes attempts, which arrive late and must find
// their ID barred, on every node.
func TestA2CleanUpOvertakesAcquire(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{DefaultTTL: time.Minute})
	warm(t, c)
	for _, p := range s.proxies {
		p.DeliverAfterClose(true)
	}
	var came, late atomic.Int64
	s.intercept(func(_ int, cmd []string) servers.Action {
		if len(cmd) > 3 && calls(cmd, "acquire", cmd[3]) && cmd[3] != "warm" {
			came.Add(1)
			elapse(800 * time.Millisecond) // longer than anybody waits for a node
			late.Add(1)
		}
		return servers.Forward
	})
	n := testenv.UnderStress(5, 70)
	for i := range n {
		ctx, cancel := context.WithCancel(context.Background())
		before, failed := came.Load(), make(chan error, 1)
		go func() { failed <- c.Lock(ctx, fmt.Sprintf("k%d", i)) }()
		testenv.Eventually(t, patience, "an attempt is on its way", func() bool { return came.Load() > before })
		cancel()
		want(t, <-failed, context.Canceled)
	}
	testenv.Eventually(t, patience, "the attempts arrive", func() bool { return late.Load() == came.Load() })
	elapse(time.Second)
	soon(t, "nothing is left of what came late", func() bool { return len(s.left(t)) == 0 })
	if late.Load() < int64(n) {
		t.Errorf("only %d attempts came late", late.Load())
	}
}
