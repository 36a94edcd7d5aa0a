package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A release whose caller does not wait is sent with the next call, before it: locks of one name that follow
// each other never wait for their own release, unless a call was not answered in time.
func TestAsyncUnlockIsSentWithTheNextCall(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{0, 8} {
		t.Run(fmt.Sprint("LocalBatch ", batch), func(t *testing.T) {
			t.Parallel()
			sentWithTheNextCall(t, dlock.Config{LocalBatch: batch})
		})
	}
}

func sentWithTheNextCall(t *testing.T, cfg dlock.Config) {
	server := testenv.Redis(t)
	rdb := dialRedis(t, server.Addr())
	hook := &failureCounter{}
	rdb.AddHook(hook)
	c := locksOn(t, redislock.New(rdb, redislock.InlineOnceAnswered(), redislock.ReleaseDelay(time.Hour)), cfg)
	direct := directTo(t, server)
	unlock(t, acquire(t, c, "k"))
	queuedBefore := countCalls(t, direct, "hsetnx")
	last := int64(0)
	for range 200 {
		g := acquire(t, c, "k", dlock.WithAsyncUnlock())
		if g.Token() <= last {
			t.Fatalf("token %d after %d", g.Token(), last)
		}
		last = g.Token()
		unlock(t, g)
	}
	unlock(t, acquire(t, c, "k"))
	if n := countCalls(t, direct, "hsetnx") - queuedBefore; n > int(hook.failures.Load()) {
		t.Errorf("%d of 200 calls have queued behind their own release, and %d were not answered", n, hook.failures.Load())
	}
	gaveUp := closeLocks(t, c)
	if left := leftovers(t, direct); len(left) > 0 && !gaveUp {
		t.Errorf("left: %q", left)
	}
}

// A failureCounter counts the pipelines that were not answered.
type failureCounter struct {
	panickingHook
	failures atomic.Int64
}

func (h *failureCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if err != nil {
			h.failures.Add(1)
		}
		return err
	}
}

// Without another call, the release is sent alone.
func TestAsyncUnlockAlone(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	c := locksAt(t, server.Addr())
	direct := directTo(t, server)
	for i := range 20 {
		unlock(t, acquire(t, c, fmt.Sprint("k", i), dlock.WithAsyncUnlock()))
		testenv.Eventually(t, time.Minute, "the lock is free", func() bool { return len(leftovers(t, direct)) == 0 })
	}
}

// Many goroutines share pipelines with their releases, and lose none.
func TestAsyncUnlockOfMany(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	c := locksAt(t, server.Addr())
	done := make(chan error, 32)
	var inside [4]atomic.Int32
	for i := range cap(done) {
		go func() {
			done <- func() error {
				for n := range 50 {
					at := (i + n) % len(inside)
					g, err := c.Acquire(context.Background(), fmt.Sprint("k", at), dlock.WithAsyncUnlock())
					if err != nil {
						return err
					}
					if inside[at].Add(1) != 1 {
						return errors.New("two holders")
					}
					inside[at].Add(-1)
					if err := tryUnlock(t, g); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range cap(done) {
		check(t, <-done)
	}
	gaveUp := closeLocks(t, c)
	if left := leftovers(t, directTo(t, server)); len(left) > 0 && !gaveUp {
		t.Errorf("left: %q", left)
	}
}

// A release whose answer is lost is repeated, and that it finds nothing then is no loss.
func TestAsyncUnlockAnswerIsLost(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	c := locksAt(t, proxy.Addr())
	unlock(t, acquire(t, c, "k"))
	g := acquire(t, c, "k", dlock.WithAsyncUnlock())
	var lost atomic.Int64
	proxy.Intercept(func(cmd []string) faultproxy.Action {
		if kindOf(cmd) == releasing && lost.Add(1) == 1 {
			return faultproxy.DropReply
		}
		return faultproxy.Forward
	})
	unlock(t, g)
	testenv.Eventually(t, time.Minute, "the release is repeated", func() bool { return lost.Load() >= 2 })
	gaveUp := closeLocks(t, c)
	if err := g.Err(); errors.Is(err, dlock.ErrOwnershipLost) {
		t.Errorf("the lock that was released counts as lost: %v", err)
	}
	if left := leftovers(t, directTo(t, server)); len(left) > 0 && !gaveUp {
		t.Errorf("left: %q", left)
	}
}

// A hook panics in a call with which a release is sent. The release is made again, and nothing waits
// for it forever.
func TestAsyncUnlockThenAPanic(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := dialRedis(t, server.Addr())
	hook := &panickingHook{at: acquiring}
	rdb.AddHook(hook)
	c := locksOn(t, redislock.New(rdb, redislock.AlwaysInline()), dlock.Config{DefaultTTL: 20 * time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // can be cancelled, so the call is made inline
	defer cancel()
	for range 10 {
		g, err := c.Acquire(ctx, "k", dlock.WithAsyncUnlock())
		check(t, err)
		unlock(t, g)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			hook.on.Store(true)
			_, err := c.Acquire(ctx, "other")
			t.Error(err)
		}()
	}
	gaveUp := closeLocks(t, c)
	if left := leftovers(t, directTo(t, server)); len(left) > 0 && !gaveUp {
		t.Errorf("left: %q", left)
	}
}

// Close ends what was not sent.
func TestReleaseLaterEndsWithClose(t *testing.T) {
	t.Parallel()
	d := openDriver(t, testenv.Redis(t).Addr())
	r := driver.Ref{Key: "k", ID: claimID(1), TTL: time.Minute}
	releaseClaim(t, d, "k", 1, time.Minute) // the server has the script
	for range 100 {
		_, err := answered(t, func() (driver.State, error) {
			answers := make(chan error, 3)
			for range cap(answers) {
				d.(driver.LateReleaser).ReleaseLater(r, func(_ driver.State, err error) { answers <- err })
			}
			return driver.State{}, errors.Join(<-answers, <-answers, <-answers)
		})
		check(t, err)
	}
	late := make(chan error, 2)
	d.(driver.LateReleaser).ReleaseLater(r, func(_ driver.State, err error) { late <- err })
	check(t, d.Close())
	<-late // sent, or ended
	d.(driver.LateReleaser).ReleaseLater(r, func(_ driver.State, err error) { late <- err })
	if err := <-late; err == nil {
		t.Error("a closed driver has released a claim")
	}
}

// A refusingHook ends a pipeline of several scripts without sending it.
type refusingHook struct{ panickingHook }

func (h *refusingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		scripts := 0
		for _, cmd := range cmds {
			if cmd.Name() == "evalsha" {
				scripts++
			}
		}
		if scripts > 1 && h.on.CompareAndSwap(true, false) {
			return errors.New("refused by a hook")
		}
		return next(ctx, cmds)
	}
}

// The error of a hook that ends a pipeline is that of the call and of the release in it.
func TestReleaseLaterRefusedByAHook(t *testing.T) {
	t.Parallel()
	rdb := dialRedis(t, testenv.Redis(t).Addr())
	hook := &refusingHook{}
	rdb.AddHook(hook)
	d, err := redislock.New(rdb, redislock.InlineOnceAnswered()).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	check(t, err)
	t.Cleanup(func() { _ = d.Close() })
	ref := func(n int) driver.Ref { return driver.Ref{Key: fmt.Sprint("k", n), ID: claimID(n), TTL: time.Minute} }
	refused := 0
	for range 100 { // the delay may be over before the call on a slow machine
		answer := make(chan error, 1)
		hook.on.Store(true)
		d.(driver.LateReleaser).ReleaseLater(ref(1), func(_ driver.State, err error) { answer <- err })
		_, err := d.Acquire(t.Context(), driver.Request{Ref: ref(2)})
		released := <-answer
		if hook.on.Swap(false) {
			continue // it was sent alone
		}
		refused++
		for what, err := range map[string]error{"the call": err, "the release": released} {
			if err == nil || !strings.Contains(err.Error(), "refused by a hook") {
				t.Fatalf("%s ends with %v", what, err)
			}
		}
	}
	if refused == 0 {
		t.Error("no release was sent with a call")
	}
}
