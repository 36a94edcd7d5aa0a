package dlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A firstCall records the calls to acquire a key, and lets the first one end differently.
type firstCall struct {
	calls atomic.Int64
	busy  int64 // the number of a call that fails
	ids   []string
	ends  func(context.Context, driver.Driver, driver.Request) (driver.State, error)
}

func (f *firstCall) acquire(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
	f.ids = append(f.ids, r.ID)
	switch n := f.calls.Add(1); {
	case n == 1 && f.ends != nil:
		return f.ends(ctx, d, r)
	case n == f.busy:
		return driver.State{}, driver.Classify(errors.New("busy"), driver.Transient)
	}
	return d.Acquire(ctx, r)
}

// storesSilently stores the claim, and does not answer until the caller leaves.
func storesSilently(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
	if _, err := d.Acquire(ctx, r); err != nil {
		return driver.State{}, err
	}
	<-ctx.Done()
	return driver.State{}, ctx.Err()
}

// says nothing, and has sent nothing when the caller leaves.
func sendsNothing(ctx context.Context, _ driver.Driver, _ driver.Request) (driver.State, error) {
	<-ctx.Done()
	return driver.State{}, driver.Classify(ctx.Err(), driver.Transient)
}

// With LocalBatch, a caller that finds nobody else makes its call itself, under its own context, as without.
func TestFirstCallerAsksItself(t *testing.T) {
	virtual(t, func(t *testing.T) {
		type name struct{}
		var asked []any
		acquire := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			asked = append(asked, ctx.Value(name{}))
			return d.Acquire(ctx, r)
		}
		c := client(t, &scripted{Opener: memlock.New(), acquire: acquire, remote: true}, dlock.Config{LocalBatch: 8})
		for _, who := range []string{"a", "b"} {
			g, err := c.Acquire(context.WithValue(ctx, name{}, who), "k")
			wantErr(t, err)
			unlock(t, g)
		}
		if len(asked) != 2 || asked[0] != "a" || asked[1] != "b" {
			t.Errorf("the calls were made for %v", asked)
		}
		if n := c.LocalWaiters() + c.Entries(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// The first caller gives up before its call is answered. Those that wait behind it keep the claim and its place: it is submitted again at
// once, and what the first caller did does not count as a failure of theirs.
func TestFirstCallerLeaves(t *testing.T) {
	for name, tt := range map[string]struct {
		ends func(context.Context, driver.Driver, driver.Request) (driver.State, error)
		want error
	}{"stored": {storesSilently, dlock.ErrUnknownOutcome}, "not sent": {sendsNothing, dlock.ErrUnavailable}} {
		for how, limit := range map[string]func() (context.Context, []dlock.LockOption){
			"context": func() (context.Context, []dlock.LockOption) {
				limited, cancel := context.WithTimeout(ctx, second/10)
				t.Cleanup(cancel)
				return limited, nil
			},
			"wait": func() (context.Context, []dlock.LockOption) {
				return ctx, []dlock.LockOption{dlock.WithWait(second / 10)}
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					store, f := memlock.New(), &firstCall{ends: tt.ends, busy: 2}
					c := client(t, &scripted{Opener: store, acquire: f.acquire, remote: true}, dlock.Config{LocalBatch: 8, MaxRetries: 1, RetryInterval: second})
					began := time.Now()
					limited, opts := limit()
					first := async(func() error {
						_, err := c.Acquire(limited, "k", opts...)
						if took := time.Since(began); took != second/10 {
							t.Errorf("the first caller left after %v", took)
						}
						return err
					})
					synctest.Wait()
					next := async(func() *dlock.Guard { return acquire(t, c, "k") })
					err := <-first
					wantErr(t, err, tt.want)
					if errors.Is(err, context.DeadlineExceeded) != (how == "context") || errors.Is(err, dlock.ErrLockHeldByOther) || errors.Is(err, dlock.ErrUnknownOutcome) != (name == "stored") {
						t.Errorf("the first caller: %v", err)
					}
					synctest.Wait()
					if n := f.calls.Load(); n != 2 || time.Since(began) != second/10 {
						t.Errorf("%d calls after %v", n, time.Since(began))
					}
					g := <-next // after one failure of its own
					if len(f.ids) != 3 || f.ids[0] != f.ids[1] || f.ids[1] != f.ids[2] {
						t.Errorf("the calls were for %v", f.ids)
					}
					unlock(t, g)
					nothing(t, client(t, store, dlock.Config{}), "k")
				})
			})
		}
	}
}

// A driver may answer that nothing is stored, because the first caller has left. That is not a failure of the others either.
func TestFirstCallerLeavesNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, f := memlock.New(), &firstCall{busy: 2, ends: func(ctx context.Context, _ driver.Driver, _ driver.Request) (driver.State, error) {
			<-ctx.Done()
			return driver.State{Phase: driver.Gone}, nil
		}}
		c := client(t, &scripted{Opener: store, acquire: f.acquire, remote: true}, dlock.Config{LocalBatch: 8, MaxRetries: 1, RetryInterval: second})
		limited, cancel := context.WithTimeout(ctx, second/10)
		defer cancel()
		began := time.Now()
		first := async(func() error { _, err := c.Acquire(limited, "k"); return err })
		synctest.Wait()
		next := async(func() *dlock.Guard { return acquire(t, c, "k") })
		wantErr(t, <-first, context.DeadlineExceeded)
		synctest.Wait()
		if n := f.calls.Load(); n != 2 || time.Since(began) != second/10 {
			t.Errorf("%d calls after %v", n, time.Since(began))
		}
		unlock(t, <-next) // after one failure of its own
	})
}

// If nobody else waits, nothing is left.
func TestFirstCallerLeavesAlone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, f := memlock.New(), &firstCall{ends: storesSilently}
		c := client(t, &scripted{Opener: store, acquire: f.acquire, remote: true}, dlock.Config{LocalBatch: 8})
		limited, cancel := context.WithTimeout(ctx, second/10)
		defer cancel()
		_, err := c.Acquire(limited, "k")
		wantErr(t, err, context.DeadlineExceeded, dlock.ErrUnknownOutcome)
		synctest.Wait()
		if n := f.calls.Load(); n != 1 {
			t.Errorf("%d calls, the last ones for nobody", n)
		}
		nothing(t, client(t, store, dlock.Config{}), "k")
		if n := c.LocalWaiters() + c.Entries(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// A hook of the backend's client panics in the call of the first caller. That caller gets the panic, and the next one the lock.
func TestFirstCallerPanics(t *testing.T) {
	virtual(t, func(t *testing.T) {
		gate := make(chan struct{})
		store, f := memlock.New(), &firstCall{ends: func(context.Context, driver.Driver, driver.Request) (driver.State, error) {
			<-gate
			panic("a hook")
		}}
		c := client(t, &scripted{Opener: store, acquire: f.acquire, remote: true}, dlock.Config{LocalBatch: 8})
		first := async(func() bool { return panics(func() { _, _ = c.Acquire(ctx, "k") }) })
		synctest.Wait()
		next := async(func() *dlock.Guard { return acquire(t, c, "k") })
		synctest.Wait()
		close(gate)
		if !<-first {
			t.Error("the first caller did not get the panic")
		}
		unlock(t, <-next)
		synctest.Wait()
		nothing(t, client(t, store, dlock.Config{}), "k")
		if n := c.LocalWaiters() + c.Entries(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// Close ends the call of the first caller, and of those that wait behind it.
func TestCloseDuringTheFirstCall(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, f := memlock.New(), &firstCall{ends: storesSilently}
		c := client(t, &scripted{Opener: store, acquire: f.acquire, remote: true}, dlock.Config{LocalBatch: 8})
		var all []<-chan error
		for range 2 {
			all = append(all, async(func() error { _, err := c.Acquire(ctx, "k"); return err }))
			synctest.Wait()
		}
		wantErr(t, c.Close())
		for _, ended := range all {
			wantErr(t, <-ended, dlock.ErrClosed)
		}
		nothing(t, client(t, store, dlock.Config{}), "k")
	})
}
