package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

func acquireAll(t testing.TB, c *dlock.Client, keys ...string) *dlock.Guards {
	t.Helper()
	all, err := c.AcquireAll(ctx, keys)
	wantErr(t, err)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// nothing asserts that no claim is stored on the keys.
func nothing(t testing.TB, c *dlock.Client, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if claims := inspect(t, c, key); len(claims) > 0 {
			t.Errorf("%q has %v", key, claims)
		}
	}
}

func TestAcquireAll(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		type name struct{}
		all, err := c.AcquireAll(context.WithValue(ctx, name{}, "values"), []string{"c", "a", "b", "a"})
		if err != nil {
			t.Fatal(err)
		}
		if keys := all.Keys(); !slices.Equal(keys, []string{"a", "b", "c"}) {
			t.Errorf("keys %q", keys)
		}
		for _, key := range all.Keys() {
			if claims := inspect(t, other, key); len(claims) != 1 || claims[0].Token != all.Token(key) || all.Token(key) == 0 {
				t.Errorf("%q: claims %v, token %d", key, claims, all.Token(key))
			}
		}
		if all.Token("d") != 0 || all.Context().Value(name{}) != "values" || all.Err() != nil || all.Remaining() <= 0 {
			t.Errorf("token %d, error %v, remaining %v", all.Token("d"), all.Err(), all.Remaining())
		}
		_, err = c.Acquire(all.Context(), "b")
		wantErr(t, err, dlock.ErrLockAlreadyHeld)
		_, err = c.AcquireAll(all.Context(), []string{"z", "b"})
		wantErr(t, err, dlock.ErrLockAlreadyHeld)
		elapse(time.Minute) // it is renewed
		wantErr(t, all.Extend(ctx, time.Hour))
		if left := all.Remaining(); left < 50*time.Minute {
			t.Errorf("%v are left of an hour", left)
		}
		inner, cancel := all.WithContext(ctx)
		defer cancel()
		wantErr(t, all.Unlock(ctx))
		if !errors.Is(context.Cause(all.Context()), context.Canceled) || inner.Err() == nil {
			t.Errorf("the cause is %v", context.Cause(all.Context()))
		}
		wantErr(t, all.Err(), dlock.ErrLockNotHeld)
		wantErr(t, all.Unlock(ctx), dlock.ErrLockNotHeld)
		nothing(t, other, "a", "b", "c")
	})
}

func TestAcquireAllRefusesBadInput(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty()
		c := client(t, faults, dlock.Config{})
		many := make([]string, 1001)
		for i := range many {
			many[i] = fmt.Sprint("k", i)
		}
		for name, bad := range map[string]struct {
			keys []string
			opts []dlock.LockOption
			want error
		}{
			"none":     {nil, nil, dlock.ErrInvalidConfig},
			"too many": {many, nil, dlock.ErrInvalidConfig},
			"empty":    {[]string{"a", ""}, nil, dlock.ErrInvalidKey},
			"TTL":      {[]string{"a"}, []dlock.LockOption{dlock.WithTTL(-1)}, dlock.ErrInvalidTTL},
			"nil":      {[]string{"a"}, []dlock.LockOption{nil}, dlock.ErrInvalidConfig},
		} {
			if _, err := c.AcquireAll(ctx, bad.keys, bad.opts...); !errors.Is(err, bad.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		all := acquireAll(t, c, "x", "y")
		wantErr(t, all.Unlock(nil), dlock.ErrInvalidConfig) //nolint:staticcheck // what a caller may do
		wantErr(t, all.Err())
		wantErr(t, all.Unlock(ctx))
		var none *dlock.Guards
		wantErr(t, none.Unlock(ctx), dlock.ErrLockNotHeld)
		if none.Keys() != nil || none.Token("a") != 0 || none.Remaining() != 0 || none.Context().Err() == nil {
			t.Error("nil Guards hold something")
		}
		_, err := c.AcquireAll(nil, []string{"a"}) //nolint:staticcheck // what a caller may do
		wantErr(t, err, dlock.ErrInvalidConfig)
		wantErr(t, c.DoAll(ctx, []string{"a"}, nil), dlock.ErrInvalidConfig)
		var zero dlock.Guards
		wantErr(t, zero.Err(), dlock.ErrLockNotHeld)
		wantErr(t, zero.Unlock(ctx), dlock.ErrLockNotHeld)
		wantErr(t, zero.Extend(ctx, time.Minute), dlock.ErrLockNotHeld)
		<-zero.Done()
		if zero.Remaining() != 0 || len(zero.Keys()) != 0 {
			t.Error("zero Guards hold something")
		}
		nothing(t, client(t, store, dlock.Config{}), "a")
	})
}

// While it waits, it holds only smaller keys; when the wait ends, none.
func TestAcquireAllRollsBack(t *testing.T) {
	for name, end := range map[string]struct {
		opts []dlock.LockOption
		want error
	}{
		"cancelled": {nil, context.Canceled},
		"in time":   {[]dlock.LockOption{dlock.WithWait(5 * time.Second), dlock.WithMinHold(time.Hour)}, dlock.ErrLockHeldByOther},
		"at once":   {[]dlock.LockOption{dlock.WithWait(0)}, dlock.ErrLockHeldByOther},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := memlock.New()
				c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
				g := acquire(t, other, "b")
				call, cancel := context.WithCancel(ctx)
				defer cancel()
				began := time.Now()
				done := async(func() error { _, err := c.AcquireAll(call, []string{"c", "b", "a"}, end.opts...); return err })
				if name != "at once" {
					elapse(time.Second)
					nothing(t, other, "c")
					if len(inspect(t, other, "a")) != 1 || len(inspect(t, other, "b")) != 2 {
						t.Errorf("a has %v, b has %v", inspect(t, other, "a"), inspect(t, other, "b"))
					}
				}
				if name == "cancelled" {
					cancel()
				}
				err := <-done
				wantErr(t, err, end.want)
				var failed *dlock.Error
				if !errors.As(err, &failed) || failed.Key != "b" {
					t.Errorf("%v does not name the key", err)
				}
				if took := time.Since(began); took > 5*time.Second+time.Millisecond {
					t.Errorf("it took %v", took)
				}
				if errors.Is(err, dlock.ErrLockHeldByOther) && failed.Holder == nil {
					t.Errorf("%v does not name the holder", err)
				}
				synctest.Wait() // the others are released in the background
				nothing(t, other, "a", "c")
				alive(t, g)
				unlock(t, g)
				nothing(t, other, "b")
			})
		})
	}
}

// A lock that is lost while it waits for another: the call ends, and all are released.
func TestAcquireAllLosesOneMeanwhile(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{DefaultTTL: time.Minute}), client(t, store, dlock.Config{}, dlock.WithAdmin())
		admin, err := other.Admin()
		wantErr(t, err)
		g := acquire(t, other, "b")
		done := async(func() error { _, err := c.AcquireAll(ctx, []string{"a", "b", "c"}); return err })
		elapse(time.Second)
		wantErr(t, admin.Evict(ctx, "a", inspect(t, other, "a")[0].Token))
		err = <-done
		wantErr(t, err, dlock.ErrOwnershipLost)
		var failed *dlock.Error
		if !errors.As(err, &failed) || failed.Key != "a" {
			t.Errorf("%v does not name the key", err)
		}
		unlock(t, g)
		elapse(time.Second)
		nothing(t, other, "a", "b", "c")
	})
}

// A lock that ends while others of the set are tried ends the call.
func TestAcquireAllLosesOneWhileItTries(t *testing.T) {
	virtual(t, func(t *testing.T) {
		faults := faultdriver.New(memlock.New(), 1, faultdriver.Rule{Op: faultdriver.Acquire, Key: "b", Fault: faultdriver.DelayAnswer, Delay: time.Second})
		c := client(t, faults, dlock.Config{DefaultTTL: time.Minute}, dlock.WithAdmin())
		all, err := c.AcquireAll(ctx, []string{"a", "b"}, dlock.WithMaxHold(100*time.Millisecond), dlock.WithShared()) // not in one call
		wantErr(t, err, dlock.ErrOwnershipLost)
		if all != nil {
			t.Error("a set of which one is lost")
		}
		elapse(time.Minute)
		nothing(t, c, "a", "b")
	})
}

// A set that is not acquired does not change how others of the Client unlock what it hands to them.
func TestAcquireAllHandsOverPlainLocks(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		faults := faultdriver.New(store, 1).Remote()
		c, other := client(t, faults, dlock.Config{DefaultTTL: time.Minute, LocalBatch: 8}), client(t, store, dlock.Config{DefaultTTL: time.Minute})
		a, b := acquire(t, other, "a"), acquire(t, other, "b")
		limited, cancel := context.WithCancel(ctx)
		set := async(func() error { _, err := c.AcquireAll(limited, []string{"a", "b"}); return err })
		elapse(time.Second)
		plain := async(func() error {
			g, err := c.Acquire(ctx, "a")
			if err != nil {
				return err
			}
			faults.Add(faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest, Key: "a"})
			return g.Unlock(ctx)
		})
		elapse(time.Second)
		unlock(t, a) // the set has it now, and waits for b
		elapse(time.Second)
		cancel()
		wantErr(t, <-set, context.Canceled)
		wantErr(t, <-plain, dlock.ErrUnknownOutcome) // and not nil, as with WithAsyncUnlock
		unlock(t, b)
	})
}

// A lock that is lost ends the context of all, and the error says which it was.
func TestGuardsEndTogether(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{DefaultTTL: time.Minute}), client(t, store, dlock.Config{}, dlock.WithAdmin())
		admin, err := other.Admin()
		wantErr(t, err)
		all := acquireAll(t, c, "a", "b", "c")
		wantErr(t, admin.Evict(ctx, "b", all.Token("b")))
		<-all.Done()
		wantErr(t, context.Cause(all.Context()), dlock.ErrOwnershipLost)
		wantErr(t, all.Err(), dlock.ErrOwnershipLost)
		if all.Remaining() != 0 {
			t.Errorf("%v are left", all.Remaining())
		}
		err = all.Unlock(ctx)
		wantErr(t, err, dlock.ErrOwnershipLost)
		var failed *dlock.Error
		if !errors.As(err, &failed) || failed.Key != "b" {
			t.Errorf("%v does not name the key", err)
		}
		nothing(t, other, "a", "b", "c")
	})
}

func TestDoAll(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		failed := errors.New("of the function")
		err := c.DoAll(ctx, []string{"b", "a"}, func(ctx context.Context) error {
			if len(inspect(t, other, "a")) != 1 || len(inspect(t, other, "b")) != 1 {
				t.Error("it does not hold both")
			}
			_, err := c.Acquire(ctx, "a")
			wantErr(t, err, dlock.ErrLockAlreadyHeld)
			return failed
		})
		if err != failed { //nolint:errorlint // as Do returns it
			t.Errorf("the error is %v", err)
		}
		nothing(t, other, "a", "b")
		func() {
			defer func() {
				if recover() != "of the function" {
					t.Error("the panic was swallowed")
				}
			}()
			_ = c.DoAll(ctx, []string{"b", "a"}, func(context.Context) error { panic("of the function") })
		}()
		nothing(t, other, "a", "b")
	})
}

// Callers name the same keys in any order: each gets them in the end, never two at a time, and nothing
// is left. Some give up.
func TestAcquireAllHasNoDeadlock(t *testing.T) {
	for name, cfg := range map[string]dlock.Config{"strict": {}, "local batch": {LocalBatch: 3}, "in one call": {}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseAnswer, Chance: 0.02})
				keys := []string{"a", "b", "c", "d", "e"}
				inside := map[string]*atomic.Int32{}
				for _, key := range keys {
					inside[key] = &atomic.Int32{}
				}
				var got atomic.Int64
				var wg sync.WaitGroup
				for i := range 8 {
					var b driver.Opener = faults
					if name == "in one call" {
						b = &batching{Opener: faults}
					}
					c := client(t, b, cfg)
					wg.Go(func() {
						r := rand.New(rand.NewPCG(uint64(i), 5))
						for range times(200, 2000) {
							mine := slices.Clone(keys)
							r.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
							mine = mine[:2+r.IntN(4)]
							call, cancel := context.WithCancel(ctx)
							if r.IntN(4) == 0 {
								time.AfterFunc(time.Duration(r.IntN(300))*time.Millisecond, cancel)
							}
							all, err := c.AcquireAll(call, mine)
							if err == nil {
								got.Add(1)
								for _, key := range mine {
									if inside[key].Add(1) != 1 {
										t.Errorf("%q has two holders", key)
									}
								}
								elapse(time.Duration(r.IntN(20)) * time.Millisecond)
								for _, key := range mine {
									inside[key].Add(-1)
								}
								if err := all.Unlock(ctx); err != nil {
									t.Error(err)
								}
							} else if call.Err() == nil {
								t.Error(err)
							}
							cancel()
						}
					})
				}
				wg.Wait()
				if got.Load() < int64(times(800, 8000)) {
					t.Errorf("only %d calls had their keys", got.Load())
				}
				elapse(time.Minute)
				nothing(t, client(t, store, dlock.Config{}), keys...)
			})
		})
	}
}

// Callers that do not wait try the keys in order, so that one of them gets all.
func TestAcquireAllWithoutWaiting(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		slow := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			st, err := d.Acquire(ctx, r)
			elapse(10 * time.Millisecond)
			return st, err
		}
		for range 20 {
			got := make(chan *dlock.Guards, 2)
			var wg sync.WaitGroup
			for _, keys := range [][]string{{"a", "b"}, {"b", "a"}} {
				c := client(t, &scripted{Opener: store, acquire: slow}, dlock.Config{})
				wg.Go(func() {
					all, err := c.AcquireAll(ctx, keys, dlock.WithWait(0))
					if err == nil {
						got <- all
					} else if !errors.Is(err, dlock.ErrLockHeldByOther) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if len(got) != 1 {
				t.Fatalf("%d of 2 have the keys", len(got))
			}
			wantErr(t, (<-got).Unlock(ctx))
			synctest.Wait()
		}
	})
}

// All contexts of a set have ended before the release of any key is sent.
func TestGuardsEndBeforeTheyAreReleased(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var derived atomic.Pointer[context.Context]
		release := func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			if work := derived.Load(); work != nil && (*work).Err() == nil {
				t.Error("a key is released while the work goes on")
			}
			return d.Release(ctx, r)
		}
		c := client(t, &scripted{Opener: memlock.New(), release: release}, dlock.Config{})
		keys := make([]string, 100)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
		}
		all := acquireAll(t, c, keys...)
		work, cancel := all.WithContext(ctx)
		defer cancel()
		derived.Store(&work)
		wantErr(t, all.Unlock(ctx))
	})
}

// A server that does not answer holds a call up no longer than WithWait.
func TestAcquireAllOnADeadBackend(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseRequest})
		c := client(t, faults.Remote(), dlock.Config{})
		began := time.Now()
		_, err := c.AcquireAll(ctx, []string{"a", "b", "c"}, dlock.WithWait(50*time.Millisecond))
		if err == nil || errors.Is(err, dlock.ErrLockHeldByOther) {
			t.Errorf("the error is %v", err)
		}
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}
