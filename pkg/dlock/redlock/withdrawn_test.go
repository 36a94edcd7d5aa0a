package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// A claim that was sent to no server needs no cleanup: no tombstones, and nothing that Close would
// wait for.
func TestWithdrawnClaimLeavesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	for _, p := range s.proxies {
		p.BlackHole(true) // so HELLO is not answered, and nothing comes after it
	}
	var withdrawn []string
	within := 30 * time.Millisecond
	for i := range 60 {
		key := fmt.Sprint("k", i)
		ctx, cancel := context.WithTimeout(t.Context(), within)
		_, err := c.TryLock(ctx, key)
		cancel()
		isBeforeSending := errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, dlock.ErrUnavailable)
		if isBeforeSending || errors.Is(err, dlock.ErrUnknownOutcome) {
			within = min(2*within, time.Second) // there was no claim yet, or the context ended long before the answer
			continue
		}
		want(t, err, dlock.ErrUnavailable)
		if withdrawn = append(withdrawn, key); len(withdrawn) == 10 {
			break
		}
	}
	if len(withdrawn) < 10 {
		t.Fatalf("only %d claims were withdrawn", len(withdrawn))
	}
	s.heal()
	warm(t, c)
	closeLocks(t, c) // after the last cleanup
	for _, d := range s.direct {
		for _, key := range withdrawn {
			keys, err := d.Keys(t.Context(), "{"+key+"}*").Result()
			check(t, err)
			if len(keys) > 0 {
				t.Errorf("%d keys are left of claims that were not sent, such as %q", len(keys), keys[0])
			}
		}
	}
}

// A waiter whose call fails because most servers refuse is no longer shown where it was.
func TestRefusedWaiterIsNotShown(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	warm(t, c)
	check(t, s.direct[0].Set(t.Context(), "k", "another", 0).Err())
	for _, p := range s.proxies[1:] {
		p.Refuse(true)
		p.Cut()
	}
	_, err := c.Acquire(t.Context(), "k", dlock.WithWait(500*time.Millisecond), dlock.WithTTL(time.Minute))
	if err == nil {
		t.Fatal("acquired without a majority")
	}
	soon(t, "the waiter is removed", func() bool {
		keys, err := s.direct[0].Keys(t.Context(), "{k}*w").Result()
		check(t, err)
		return len(keys) == 0
	})
}

// A longHeartbeat lets waiters live for a minute without a renewal: one that has missed its heartbeat queues again as another claim.
type longHeartbeat struct{ driver.Opener }

type longHeartbeatDriver struct{ driver.Driver }

func (l longHeartbeat) Open(o driver.Options) (driver.Driver, error) {
	d, err := l.Opener.Open(o)
	return longHeartbeatDriver{d}, err
}

func (d longHeartbeatDriver) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	r.QueueTTL = time.Minute
	return d.Driver.Acquire(ctx, r)
}

// A call that records a waiter and arrives after the waiter has left does not record it.
func TestLateWaiterFindsItsTombstone(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	holder := s.locks(t, dlock.Config{})
	c, err := dlock.New(&dlock.Config{DefaultTTL: time.Hour}, dlock.WithBackend(longHeartbeat{redlock.New(s.dial(t), patient)}))
	check(t, err)
	defer func() { _ = c.Close() }()
	warm(t, c)
	defer unlock(t, acquire(t, holder, "k", dlock.WithTTL(time.Hour)))
	waiting, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- c.Lock(waiting, "k") }()
	waiters := func() []string {
		names, err := s.direct[2].HKeys(t.Context(), "{k}\x01w").Result()
		check(t, err)
		return names
	}
	testenv.Eventually(t, patience, "the first waits", func() bool { return len(waiters()) == 1 })
	known := waiters()[0]

	s.proxies[2].DeliverAfterClose(true)
	came, gate := make(chan string, 64), make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	s.proxies[2].Intercept(func(cmd []string) faultproxy.Action {
		if len(cmd) > 3 && cmd[1] == redlock.Scripts["wait"] && !strings.HasSuffix(cmd[3], known) {
			came <- cmd[3]
			<-gate
		}
		return faultproxy.Forward
	})
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() {
		_, err := c.Acquire(ctx, "k")
		second <- err
	}()
	tombstone := <-came // it queues behind the first, which it records
	s.logCommands(t)
	cancel()
	want(t, <-second, context.Canceled)
	// Not that a release has run: one of a lost round may arrive late as well, and leaves no tombstone.
	testenv.Eventually(t, patience, "the claim is removed", func() bool { return s.direct[2].Exists(t.Context(), tombstone).Val() == 1 })
	open()
	testenv.Eventually(t, patience, "the late call arrives", func() bool { return s.hasRun(t, 2, "wait", tombstone) })
	if left := waiters(); len(left) != 1 || left[0] != known {
		t.Errorf("%q wait, want only %q", left, known)
	}
	leave()
	want(t, <-first, context.Canceled)
}
