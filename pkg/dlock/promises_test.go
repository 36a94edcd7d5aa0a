package dlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// The promises of options, and of their absence, are kept or refused.

// evicted evicts the lock of a Client that does not notice it.
func evicted(t *testing.T, opts ...dlock.LockOption) (c *dlock.Client, g *dlock.Guard) {
	t.Helper()
	store, faults := faulty(faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
	c = client(t, faults, dlock.Config{})
	g = acquire(t, c, "k", opts...)
	a, err := client(t, store, dlock.Config{}).Admin()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Evict(ctx, "k", g.Token()); err != nil {
		t.Fatal(err)
	}
	alive(t, g) // otherwise the test shows nothing
	return c, g
}

// A Client that is granted a key again ends an older grant of it.
func TestGreaterTokenEndsTheSmaller(t *testing.T) {
	modes := map[string]dlock.LockOption{"exclusive": dlock.WithWait(0), "shared": dlock.WithShared()}
	for name, mode := range modes {
		for first, opts := range map[string][]dlock.LockOption{"renewed": nil, "not renewed": {dlock.WithoutRenewal()}, "read": {dlock.WithShared()}} {
			if name == "shared" && first == "read" {
				continue // readers do not exclude each other
			}
			t.Run(name+" after one that is "+first, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					c, old := evicted(t, opts...)
					g := acquire(t, c, "k", mode)
					ended(t, old, dlock.ErrOwnershipLost)
					alive(t, g)
					wantErr(t, old.Unlock(ctx), dlock.ErrOwnershipLost)
					synctest.Wait()
					alive(t, g)
					unlock(t, g)
				})
			})
		}
	}
}

// An answer that took so long that the key was granted again meanwhile is not trusted.
func TestSmallerTokenIsNotDelivered(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		answer, submitted := make(chan struct{}), make(chan int64, 1)
		var calls atomic.Int64
		late := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			st, err := d.Acquire(ctx, r)
			if calls.Add(1) == 1 {
				submitted <- st.Token
				<-answer
			}
			return st, err
		}
		c := client(t, &scripted{Opener: store, acquire: late}, dlock.Config{})
		got := async(func() *dlock.Guard { return acquire(t, c, "k") })
		a, err := client(t, store, dlock.Config{}).Admin()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Evict(ctx, "k", <-submitted); err != nil {
			t.Fatal(err)
		}
		second := acquire(t, c, "k")
		close(answer)
		synctest.Wait()
		alive(t, second)
		select {
		case g := <-got:
			t.Fatalf("token %d was granted while token %d is held", g.Token(), second.Token())
		default:
		}
		unlock(t, second)
		unlock(t, <-got)
	})
}

// A caller that has given up does not get the lock.
func TestEndOfTheCallerWins(t *testing.T) {
	for _, batch := range []int{0, 8} {
		for range 50 {
			virtual(t, func(t *testing.T) {
				store := memlock.New()
				holder := acquire(t, client(t, store, dlock.Config{}), "k")
				c := client(t, store, dlock.Config{LocalBatch: batch})
				ends, cancel := context.WithCancel(ctx)
				got := async(func() error { _, err := c.Acquire(ends, "k"); return err })
				synctest.Wait()
				cancel() // the waiter has not run yet when the grant comes
				unlock(t, holder)
				wantErr(t, <-got, context.Canceled)
				synctest.Wait()
				free(t, c, "k")
			})
		}
	}
}

// The same for a key that was free.
func TestEndDuringTheCallWins(t *testing.T) {
	virtual(t, func(t *testing.T) {
		ends, cancel := context.WithCancel(ctx)
		slow := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			defer cancel()
			return d.Acquire(ctx, r)
		}
		store := memlock.New()
		_, err := client(t, &scripted{Opener: store, acquire: slow}, dlock.Config{}).Acquire(ends, "k")
		wantErr(t, err, context.Canceled)
		synctest.Wait()
		free(t, client(t, store, dlock.Config{}), "k")
	})
}

// endsWithTheGrant is a context that ends when its caller, about to wait, has been granted the key.
type endsWithTheGrant struct {
	context.Context
	once *sync.Once
	end  context.CancelFunc
}

func (c endsWithTheGrant) Done() <-chan struct{} {
	c.once.Do(func() { synctest.Wait(); c.end() })
	return c.Context.Done()
}

// The same for a caller that waits in the local queue of its Client.
func TestEndBeforeAHandoffWins(t *testing.T) {
	for range 50 {
		virtual(t, func(t *testing.T) {
			c := client(t, memlock.New(), dlock.Config{LocalBatch: 8})
			holder := acquire(t, c, "k")
			ends, cancel := context.WithCancel(ctx)
			_, err := c.Acquire(endsWithTheGrant{ends, &sync.Once{}, func() { unlock(t, holder); cancel() }}, "k")
			wantErr(t, err, context.Canceled)
			synctest.Wait()
			free(t, c, "k")
		})
	}
}

// A maximum hold frees the key as soon as any other loss would.
func TestMaxHoldFreesTheKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		for name, opts := range map[string][]dlock.LockOption{"renewed": nil, "not renewed": {dlock.WithoutRenewal()}} {
			start := time.Now()
			g := acquire(t, c, "k", append(opts, dlock.WithTTL(time.Hour), dlock.WithMaxHold(time.Minute))...)
			next := acquire(t, other, "k")
			ended(t, g, dlock.ErrOwnershipLost)
			// The margin of a lease of an hour is three minutes.
			if took := time.Since(start); took != 4*time.Minute {
				t.Errorf("%s: free after %v, want 4m", name, took)
			}
			wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
			synctest.Wait()
			alive(t, next)
			unlock(t, next)
		}
	})
}

// A minimum hold longer than the lease is refused.
func TestMinHoldBeyondALeaseWithoutRenewal(t *testing.T) {
	c := client(t, memlock.New(), dlock.Config{})
	_, err := c.Acquire(ctx, "k", dlock.WithTTL(time.Second), dlock.WithoutRenewal(), dlock.WithMinHold(2*time.Second))
	wantErr(t, err, dlock.ErrInvalidConfig)
	unlock(t, acquire(t, c, "l", dlock.WithTTL(time.Minute), dlock.WithMinHold(time.Hour)))
}

// Re-entry gives what the outer lock has, and refuses anything more.
func TestReentryOptions(t *testing.T) {
	hour, minute := time.Hour, time.Minute
	for name, tt := range map[string]struct {
		outer, inner []dlock.LockOption
		want         string
	}{
		"none":                {nil, nil, ""},
		"none inside some":    {[]dlock.LockOption{dlock.WithTTL(hour), dlock.WithMaxHold(hour)}, nil, ""},
		"the same":            {[]dlock.LockOption{dlock.WithTTL(hour), dlock.WithMargin(minute)}, []dlock.LockOption{dlock.WithTTL(hour), dlock.WithMargin(minute)}, ""},
		"a shorter TTL":       {nil, []dlock.LockOption{dlock.WithTTL(time.Second)}, ""},
		"how long to wait":    {nil, []dlock.LockOption{dlock.WithWait(minute)}, ""},
		"a longer TTL":        {nil, []dlock.LockOption{dlock.WithTTL(hour)}, "WithTTL"},
		"a wider margin":      {[]dlock.LockOption{dlock.WithTTL(hour)}, []dlock.LockOption{dlock.WithTTL(hour), dlock.WithMargin(hour / 4)}, "WithMargin"},
		"no renewal":          {nil, []dlock.LockOption{dlock.WithoutRenewal()}, "WithoutRenewal"},
		"a least hold":        {nil, []dlock.LockOption{dlock.WithMinHold(minute)}, "WithMinHold"},
		"a longest hold":      {nil, []dlock.LockOption{dlock.WithMaxHold(minute)}, "WithMaxHold"},
		"a sooner end":        {[]dlock.LockOption{dlock.WithMaxHold(hour)}, []dlock.LockOption{dlock.WithMaxHold(minute)}, "WithMaxHold"},
		"a later end":         {[]dlock.LockOption{dlock.WithMaxHold(minute)}, []dlock.LockOption{dlock.WithMaxHold(hour)}, ""},
		"a number of permits": {[]dlock.LockOption{dlock.WithPermits(3)}, []dlock.LockOption{dlock.WithPermits(5)}, "WithPermits"},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
			owner := dlock.OwnerContext(ctx)
			if err := c.Lock(owner, "k", tt.outer...); err != nil {
				t.Fatal(err)
			}
			again := c.Lock(owner, "k", tt.inner...)
			do := c.Do(owner, "k", func(context.Context) error { return nil }, tt.inner...)
			for call, err := range map[string]error{"Lock": again, "Do": do} {
				switch {
				case tt.want == "" && err != nil:
					t.Errorf("%s: %v", call, err)
				case tt.want != "" && (!errors.Is(err, dlock.ErrInvalidConfig) || !strings.Contains(err.Error(), tt.want)):
					t.Errorf("%s = %v, want ErrInvalidConfig for %s", call, err, tt.want)
				}
			}
			if again == nil {
				wantErr(t, c.Unlock(ctx, "k"))
			}
			wantErr(t, c.Unlock(ctx, "k"))
		})
	}
}

// Permits with different limits exclude each other, and the waiter is told so.
func TestDifferingPermitsAreReported(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		store := memlock.New()
		acquire(t, client(t, store, dlock.Config{}), "k", dlock.WithPermits(5))
		c := o.client(t, store, dlock.Config{})
		_, err := c.TryAcquire(ctx, "k", dlock.WithPermits(3))
		wantErr(t, err, dlock.ErrLockHeldByOther)
		if !strings.Contains(err.Error(), "one of 5 permits") || !strings.Contains(err.Error(), "3") {
			t.Errorf("%v does not say that the numbers differ", err)
		}
		waiting, cancel := context.WithCancel(ctx)
		got := async(func() error { _, err := c.Acquire(waiting, "k", dlock.WithPermits(3)); return err })
		eventually(t, "a warning", func() bool { return strings.Contains(strings.Join(o.lines(), "\n"), "number of permits differs") })
		cancel()
		wantErr(t, <-got, context.Canceled)
	})
}

// Every token of a local turn identifies its holder.
func TestEvictByAnyTokenOfATurn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{LocalBatch: 8})
		first := acquire(t, c, "k")
		next := queueUp(t, c, ctx, "k", 1)
		unlock(t, first)
		g := <-next[0]
		a, err := c.Admin()
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, a.Evict(ctx, "k", first.Token()-1), dlock.ErrLockNotHeld)
		wantErr(t, a.Evict(ctx, "k", first.Token()+9), dlock.ErrLockNotHeld)
		if err := a.Evict(ctx, "k", g.Token()); err != nil {
			t.Fatal(err)
		}
		<-g.Done()
		ended(t, g, dlock.ErrOwnershipLost)
	})
}

// A renewal that times out is not reported as the end of the waiter's context.
func TestRenewalTimeoutIsNotTheCallers(t *testing.T) {
	for _, batch := range []int{0, 8} {
		virtual(t, func(t *testing.T) {
			store := memlock.New()
			silent := func(ctx context.Context, _ driver.Driver, _ []driver.Ref) ([]driver.State, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			acquire(t, client(t, store, dlock.Config{}), "k")
			c := client(t, &scripted{Opener: store, renew: silent, remote: true}, dlock.Config{LocalBatch: batch})
			_, err := c.Acquire(ctx, "k", dlock.WithWait(20*second))
			wantErr(t, err, dlock.ErrUnknownOutcome)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("LocalBatch %d: the caller's context has no deadline: %v", batch, err)
			}
		})
	}
}

// A suspend is detected in time however busy the Client is.
func TestSuspendOfABusyClient(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var slept atomic.Int64
		c := client(t, &scripted{Opener: memlock.New(), remote: true}, dlock.Config{},
			dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) }))
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute))
		for range 20 {
			slept.Add(int64(time.Hour))
			began := time.Now()
			for g.Context().Err() == nil {
				elapse(70 * time.Millisecond)
				unlock(t, acquire(t, c, "other", dlock.WithTTL(second))) // wakes the scheduler
			}
			if took := time.Since(began); took > 600*time.Millisecond {
				t.Errorf("noticed after %v", took)
			}
			_ = g.Unlock(ctx)
			elapse(37 * time.Millisecond)
			g = acquire(t, c, "k", dlock.WithTTL(time.Minute))
		}
	})
}

// A grant whose lease had passed on arrival is not reported as a lock that another holds.
func TestGrantThatCameTooLate(t *testing.T) {
	for _, batch := range []int{0, 8} {
		virtual(t, func(t *testing.T) {
			var slept atomic.Int64
			store := memlock.New()
			suspended := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
				elapse(time.Millisecond)
				st, err := d.Acquire(ctx, r)
				store.Advance(time.Minute)
				slept.Add(int64(time.Minute))
				return st, err
			}
			silent := func(ctx context.Context, _ driver.Driver, _ []driver.Ref) ([]driver.State, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			c := client(t, &scripted{Opener: store, acquire: suspended, renew: silent, remote: true}, dlock.Config{LocalBatch: batch},
				dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) }))
			_, err := c.Acquire(ctx, "k", dlock.WithWait(200*time.Millisecond))
			wantErr(t, err, dlock.ErrUnknownOutcome)
			if errors.Is(err, dlock.ErrLockHeldByOther) {
				t.Errorf("LocalBatch %d: no other has ever held it: %v", batch, err)
			}
		})
	}
}

// A place in the queue that may be lost after a suspend is not reported as one behind a holder.
func TestPlaceThatMayBeLost(t *testing.T) {
	for _, batch := range []int{0, 8} {
		virtual(t, func(t *testing.T) {
			var slept, renewals atomic.Int64
			store := memlock.New()
			silent := func(ctx context.Context, _ driver.Driver, _ []driver.Ref) ([]driver.State, error) {
				renewals.Add(1)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			acquire(t, client(t, store, dlock.Config{}), "k", dlock.WithTTL(10*second), dlock.WithoutRenewal())
			c := client(t, &scripted{Opener: store, renew: silent, remote: true}, dlock.Config{LocalBatch: batch},
				dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) }))
			got := async(func() error { _, err := c.Acquire(ctx, "k", dlock.WithWait(1200*time.Millisecond)); return err })
			elapse(200 * time.Millisecond)
			store.Advance(time.Minute)
			slept.Add(int64(time.Minute))
			err := <-got
			if renewals.Load() != 1 {
				t.Fatalf("%d renewals: the test shows nothing", renewals.Load())
			}
			wantErr(t, err, dlock.ErrUnknownOutcome)
		})
	}
}

// A caller that comes after the lock was released, and gets no answer, is not reported as being
// behind a holder.
func TestHandoffWhileTheReleaseIsSilent(t *testing.T) {
	virtual(t, func(t *testing.T) {
		silent := func(ctx context.Context, _ driver.Driver, _ driver.Ref) (driver.State, error) {
			<-ctx.Done()
			return driver.State{}, ctx.Err()
		}
		c := client(t, &scripted{Opener: memlock.New(), release: silent, remote: true}, dlock.Config{LocalBatch: 8})
		g := acquire(t, c, "k")
		early := async(func() error { _, err := c.Acquire(ctx, "k", dlock.WithWait(100*time.Millisecond)); return err })
		elapse(50 * time.Millisecond)
		done := async(func() error { return g.Unlock(ctx) })
		wantErr(t, <-early, dlock.ErrLockHeldByOther) // a holder existed for half of its wait
		_, err := c.Acquire(ctx, "k", dlock.WithWait(100*time.Millisecond))
		wantErr(t, err, dlock.ErrUnknownOutcome)
		<-done
	})
}
