package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A full backend has no room for claims until it is opened.
type full struct {
	room   atomic.Bool
	trying atomic.Int64
	most   atomic.Int64 // that have tried at a time, since it was reset
	calls  atomic.Int64
}

func (f *full) acquire(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
	f.calls.Add(1)
	f.most.Store(max(f.most.Load(), f.trying.Add(1)))
	defer f.trying.Add(-1)
	if r.Key == "served" {
		elapse(second / 10)
		return d.Acquire(ctx, r)
	}
	elapse(second)
	if err := ctx.Err(); err != nil {
		return driver.State{}, driver.Classify(err, driver.Transient)
	}
	if !f.room.Load() {
		return driver.State{}, driver.Classify(fmt.Errorf("%w: full: %w", driver.ErrNotReady, sharedtimeout.ErrNoRoom), driver.Transient)
	}
	return d.Acquire(ctx, r)
}

// serve has calls answered while others find no room, until stop.
func serve(t *testing.T, c *dlock.Client) (stop func()) {
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ended:
				return
			default:
			}
			unlock(t, acquire(t, c, "served"))
		}
	}()
	return func() {
		close(ended)
		<-done
	}
}

// When a backend has no room for the claims of many callers, some of them ask again and the others wait for their turn. All are
// served when there is room.
func TestManyCallersOfAFullBackend(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, f := memlock.New(), &full{}
		c := client(t, &scripted{Opener: store, acquire: f.acquire}, dlock.Config{})
		const callers = 1000
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				g, err := c.Acquire(ctx, fmt.Sprint("k", i))
				if err != nil {
					t.Error(err)
					return
				}
				wantErr(t, g.Unlock(ctx))
			})
		}
		stop := serve(t, c)
		elapse(1500 * time.Millisecond)
		synctest.Wait()
		f.most.Store(0)
		elapse(10 * second)
		if n := f.most.Load(); n < 256 || n > 257 { // and the one that is served
			t.Errorf("%d callers ask again at a time, want 256", n)
		}
		f.room.Store(true)
		all.Wait()
		stop()
		if n := f.calls.Load(); n > callers+12*256+callers {
			t.Errorf("%d calls", n)
		}
		nothing(t, client(t, store, dlock.Config{}), "k0", "k999")
	})
}

// A caller that waits for its turn leaves when its context, its wait or the Client ends.
func TestLeaveBeforeTheTurn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := &full{}
		c := client(t, &scripted{Opener: memlock.New(), acquire: f.acquire}, dlock.Config{})
		var all sync.WaitGroup
		for i := range 300 { // more than have a turn
			all.Go(func() {
				if _, err := c.Acquire(ctx, fmt.Sprint("k", i)); !errors.Is(err, dlock.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			})
		}
		stop := serve(t, c)
		elapse(5 * second)
		limited, cancel := context.WithTimeout(ctx, 3*second+500*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := c.Acquire(limited, "late")
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dlock.ErrNotReady) || time.Since(began) != 3*second+500*time.Millisecond {
			t.Errorf("a context that ends: %v after %v", err, time.Since(began))
		}
		began = time.Now()
		_, err = c.Acquire(ctx, "late", dlock.WithWait(2*second))
		if !errors.Is(err, dlock.ErrNotReady) || errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 2*second {
			t.Errorf("a wait that ends: %v after %v", err, time.Since(began))
		}
		stop()
		wantErr(t, c.Close())
		all.Wait()
	})
}

// If nobody is answered, it is no matter of room: attempts count as failures, and calls with a limit of them end.
func TestBackendThatHasNoRoomForAnybody(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := &full{}
		c := client(t, &scripted{Opener: memlock.New(), acquire: f.acquire}, dlock.Config{MaxRetries: 3, RetryInterval: 100 * time.Millisecond})
		began := time.Now()
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				if _, err := c.Acquire(ctx, fmt.Sprint("k", i)); !errors.Is(err, dlock.ErrNotReady) {
					t.Errorf("%v", err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took > 10*second {
			t.Errorf("it took %v", took)
		}
	})
}

// A call that its driver has abandoned before anything was sent is made again at once, also one that does not wait.
func TestUnsentAttemptIsRepeatedAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		calls := 0
		c := client(t, &scripted{Opener: memlock.New(), acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			calls++
			if calls == 1 {
				return driver.State{}, driver.Classify(sharedtimeout.ErrAttemptTimeout, driver.Transient)
			}
			return d.Acquire(ctx, r)
		}}, dlock.Config{})
		began := time.Now()
		g, err := c.TryAcquire(ctx, "k")
		wantErr(t, err)
		if took := time.Since(began); took > 0 || calls != 2 {
			t.Errorf("%d calls in %v", calls, took)
		}
		unlock(t, g)
	})
}

// One attempt without room does not change what later attempts are: they count, and their errors are true.
func TestFailuresAfterALackOfRoom(t *testing.T) {
	refused := fmt.Errorf("%w: connection refused", driver.ErrUnavailable)
	for name, later := range map[string]struct {
		answer func(context.Context) error
		want   error
	}{
		"not answered": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, dlock.ErrUnknownOutcome},
		"not sent": {func(ctx context.Context) error {
			<-ctx.Done()
			return driver.Classify(fmt.Errorf("%w: %w", refused, ctx.Err()), driver.Transient)
		}, dlock.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				calls := 0
				acquire := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
					if r.Key == "served" {
						elapse(second / 10)
						return d.Acquire(ctx, r)
					}
					if calls++; calls == 1 {
						elapse(second / 2)
						return driver.State{}, driver.Classify(fmt.Errorf("%w: full: %w", driver.ErrNotReady, sharedtimeout.ErrNoRoom), driver.Transient)
					}
					return driver.State{}, later.answer(ctx)
				}
				c := client(t, &scripted{Opener: memlock.New(), acquire: acquire, remote: true}, dlock.Config{MaxRetries: 3, RetryInterval: 100 * time.Millisecond})
				stop := serve(t, c)
				defer stop()
				limited, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				began := time.Now()
				_, err := c.Acquire(limited, "k")
				wantErr(t, err, later.want)
				if errors.Is(err, dlock.ErrNotReady) || calls != 5 || time.Since(began) > 10*second {
					t.Errorf("%d calls in %v: %v", calls, time.Since(began), err)
				}
			})
		})
	}
}
