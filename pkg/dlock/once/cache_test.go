package once_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/ceyewan/genesis/pkg/dlock/once"
)

// values is a Store in memory.
type values struct {
	mu       sync.Mutex
	all      map[string]string
	gets     int
	getError error
	setError error
}

func (v *values) Get(_ context.Context, key string) (string, bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gets++
	text, found := v.all[key]
	return text, found, v.getError
}

func (v *values) Set(_ context.Context, key, text string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.setError != nil {
		return v.setError
	}
	if v.all == nil {
		v.all = map[string]string{}
	}
	v.all[key] = text
	return nil
}

func cache(t testing.TB, c *dlock.Client, store once.Store[string], cfg once.CacheConfig) *once.Cache[string] {
	t.Helper()
	made, err := once.NewCache(c, store, cfg)
	check(t, err)
	return made
}

// takes returns a function that computes a value in some time, and counts how often.
func takes(d time.Duration, computed *atomic.Int32) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		n := computed.Add(1)
		select {
		case <-time.After(d):
			return fmt.Sprint("value ", n), nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// Many callers of several processes ask for two keys: each is computed once, and all have its value as soon as it is
// stored.
func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, store := memlock.New(), &values{}
		var computed [2]atomic.Int32
		var wg sync.WaitGroup
		for range 10 {
			c := cache(t, client(t, locks), store, once.CacheConfig{})
			for i := range 100 {
				wg.Go(func() {
					began := time.Now()
					got, err := c.Get(t.Context(), fmt.Sprint("k", i%2), takes(time.Second, &computed[i%2]))
					if err != nil || got != "value 1" || time.Since(began) > time.Second {
						t.Errorf("%q, %v after %v", got, err, time.Since(began))
					}
				})
			}
		}
		wg.Wait()
		if computed[0].Load() != 1 || computed[1].Load() != 1 {
			t.Errorf("computed %d and %d times", computed[0].Load(), computed[1].Load())
		}
		if !maps.Equal(store.all, map[string]string{"k0": "value 1", "k1": "value 1"}) {
			t.Errorf("stored %v", store.all)
		}
	})
}

// An error reaches the caller of the function only: then another one computes.
func TestCacheComputationFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, store := memlock.New(), &values{}
		var computed atomic.Int32
		failsTwice := func(context.Context) (string, error) {
			n := computed.Add(1)
			time.Sleep(time.Second)
			if n <= 2 {
				return "", errFailed
			}
			return "value", nil
		}
		var failed, got atomic.Int32
		var wg sync.WaitGroup
		for range 5 {
			c := cache(t, client(t, locks), store, once.CacheConfig{})
			for range 10 {
				wg.Go(func() {
					text, err := c.Get(t.Context(), "k", failsTwice)
					switch {
					case err == errFailed: //nolint:errorlint // as it is
						failed.Add(1)
					case err == nil && text == "value":
						got.Add(1)
					default:
						t.Errorf("%q, %v", text, err)
					}
				})
			}
		}
		wg.Wait()
		if computed.Load() != 3 || failed.Load() != 2 || got.Load() != 48 {
			t.Errorf("computed %d times, %d calls failed, %d have the value", computed.Load(), failed.Load(), got.Load())
		}
	})
}

// After CacheConfig.Wait, a call computes the value itself: behind another process, and behind another call of its own.
func TestCacheWaitIsOver(t *testing.T) {
	for _, own := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			locks, store := memlock.New(), &values{}
			cfg := once.CacheConfig{Wait: 5 * time.Second}
			first := cache(t, client(t, locks), store, cfg)
			second := cache(t, client(t, locks), store, cfg)
			if own {
				second = first
			}
			slow, cancel := context.WithCancelCause(t.Context())
			var ignored, computed atomic.Int32
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := first.Get(slow, "k", takes(time.Hour, &ignored))
				if !errors.Is(err, errFailed) {
					t.Error(err)
				}
			})
			synctest.Wait()
			began := time.Now()
			text, err := second.Get(t.Context(), "k", takes(time.Second, &computed))
			if took := time.Since(began); err != nil || text != "value 1" || took < 6*time.Second || took > 6100*time.Millisecond {
				t.Errorf("%q, %v after %v", text, err, took)
			}
			if store.all["k"] != "value 1" {
				t.Errorf("stored %v", store.all)
			}
			limited, stop := context.WithTimeout(t.Context(), time.Second)
			store.all = nil
			_, err = second.Get(limited, "k", takes(0, &computed))
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a wait that its context ends: %v", err)
			}
			stop()
			cancel(errFailed)
			wg.Wait()
		})
	}
}

// A holder that lost its lock returns its value, and does not replace that of the next one.
func TestCacheLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, store := memlock.New(), &values{}
		admin, err := client(t, locks).Admin()
		check(t, err)
		first, second := cache(t, client(t, locks), store, once.CacheConfig{}), cache(t, client(t, locks), store, once.CacheConfig{})
		var computed atomic.Int32
		var wg sync.WaitGroup
		wg.Go(func() {
			text, err := first.Get(t.Context(), "k", takes(time.Minute, &computed))
			if text != "value 1" || err != nil {
				t.Errorf("%q, %v", text, err)
			}
		})
		synctest.Wait()
		claims, err := admin.Inspect(t.Context(), "k:compute")
		check(t, err)
		check(t, admin.Evict(t.Context(), "k:compute", claims[0].Token))
		text, err := second.Get(t.Context(), "k", takes(time.Second, &computed))
		if text != "value 2" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
		wg.Wait()
		if store.all["k"] != "value 2" {
			t.Errorf("stored %v", store.all)
		}
	})
}

// What the Store and the function do wrong reaches the caller, and blocks no other.
func TestCacheFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, store := memlock.New(), &values{}
		own := client(t, locks)
		c := cache(t, own, store, once.CacheConfig{})
		var computed atomic.Int32
		get := func() (string, error) { return c.Get(t.Context(), "k", takes(time.Second, &computed)) }

		store.setError = errFailed
		text, err := get()
		if text != "value 1" || !errors.Is(err, once.ErrNotStored) || !errors.Is(err, errFailed) {
			t.Errorf("%q, %v", text, err)
		}
		store.setError, store.getError = nil, errFailed
		if _, err = get(); !errors.Is(err, errFailed) || computed.Load() != 1 {
			t.Errorf("%v, computed %d times", err, computed.Load())
		}
		store.getError = nil
		func() {
			defer func() {
				if recover() != "of the function" {
					t.Error("the panic was swallowed")
				}
			}()
			_, _ = c.Get(t.Context(), "k", func(context.Context) (string, error) { panic("of the function") })
		}()
		_, err = c.Get(t.Context(), "k", func(ctx context.Context) (string, error) {
			return c.Get(ctx, "k", takes(0, &computed))
		})
		if !errors.Is(err, dlock.ErrLockAlreadyHeld) {
			t.Errorf("a Get inside itself: %v", err)
		}
		text, err = c.Get(t.Context(), "k", func(ctx context.Context) (string, error) { return c.Get(ctx, "other", takes(0, &computed)) })
		if text != "value 2" || err != nil {
			t.Errorf("a Get inside another: %q, %v", text, err)
		}
		check(t, own.Close())
		if _, err = c.Get(t.Context(), "missing", takes(0, &computed)); !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("on a closed Client: %v", err)
		}
	})
}

func TestCacheRefusesBadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, store := client(t, memlock.New()), &values{}
		for name, bad := range map[string]struct {
			locks *dlock.Client
			store once.Store[string]
			cfg   once.CacheConfig
			want  error
		}{
			"no Client": {nil, store, once.CacheConfig{}, dlock.ErrInvalidConfig},
			"no Store":  {own, nil, once.CacheConfig{}, dlock.ErrInvalidConfig},
			"wait":      {own, store, once.CacheConfig{Wait: -1}, dlock.ErrInvalidConfig},
			"lease":     {own, store, once.CacheConfig{Lease: 25 * time.Hour}, dlock.ErrInvalidTTL},
		} {
			if _, err := once.NewCache(bad.locks, bad.store, bad.cfg); !errors.Is(err, bad.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		c := cache(t, own, store, once.CacheConfig{})
		var computed atomic.Int32
		for _, key := range []string{"", strings.Repeat("k", 1017)} {
			if _, err := c.Get(t.Context(), key, takes(0, &computed)); !errors.Is(err, dlock.ErrInvalidKey) {
				t.Errorf("a key of %d bytes: %v", len(key), err)
			}
		}
		_, err := c.Get(t.Context(), "k", nil)
		_, second := c.Get(nil, "k", takes(0, &computed)) //nolint:staticcheck // what a caller may do
		if !errors.Is(err, dlock.ErrInvalidConfig) || !errors.Is(second, dlock.ErrInvalidConfig) || store.gets != 0 {
			t.Errorf("%v, %v, %d calls of the Store", err, second, store.gets)
		}
	})
}

// exclusiveOnly is a backend without shared locks.
type exclusiveOnly struct{ driver.Opener }

type exclusiveDriver struct{ driver.Driver }

func (o exclusiveOnly) Open(opts driver.Options) (driver.Driver, error) {
	d, err := o.Opener.Open(opts)
	return exclusiveDriver{d}, err
}

func (d exclusiveDriver) Caps() driver.Caps {
	c := d.Driver.Caps()
	c.Modes = []driver.Mode{driver.Exclusive}
	return c
}

// A backend without shared locks, such as Redlock, works too.
func TestCacheWithoutSharedLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, store := exclusiveOnly{memlock.New()}, &values{}
		var computed atomic.Int32
		var wg sync.WaitGroup
		for range 5 {
			c := cache(t, client(t, locks), store, once.CacheConfig{})
			wg.Go(func() {
				if text, err := c.Get(t.Context(), "k", takes(time.Second, &computed)); text != "value 1" || err != nil {
					t.Errorf("%q, %v", text, err)
				}
			})
		}
		wg.Wait()
		if computed.Load() != 1 {
			t.Errorf("computed %d times", computed.Load())
		}
	})
}

// When the wait is over, one call of each process computes, and not all that wait.
func TestLateCallsComputeOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, c := &values{}, client(t, memlock.New())
		var computed atomic.Int32
		k := cache(t, c, store, once.CacheConfig{Wait: 10 * time.Second})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if v, err := k.Get(t.Context(), "k", takes(15*time.Second, &computed)); err != nil || v == "" {
					t.Errorf("%q, %v", v, err)
				}
			})
		}
		wg.Wait()
		if n := computed.Load(); n != 2 {
			t.Errorf("%d computed the value, want the first and one after the wait", n)
		}
	})
}

// lateCalls starts calls of one process behind another process that computes for an hour, and returns when they end. Their wait
// is a second. compute gets the number of its call.
func lateCalls(ctx context.Context, t *testing.T, calls int, store *values, compute func(context.Context, int) (string, error)) (end func() []string) {
	t.Helper()
	locks, cfg := memlock.New(), once.CacheConfig{Wait: time.Second}
	var wg, others sync.WaitGroup
	slow, stop := context.WithCancel(t.Context())
	wg.Go(func() {
		_, _ = cache(t, client(t, locks), store, cfg).Get(slow, "k", takes(time.Hour, new(atomic.Int32)))
	})
	synctest.Wait()
	k, began, results := cache(t, client(t, locks), store, cfg), time.Now(), make([]string, calls)
	var computed atomic.Int32
	for i := range calls {
		others.Go(func() {
			text, err := k.Get(ctx, "k", func(ctx context.Context) (string, error) { return compute(ctx, int(computed.Add(1))) })
			if err != nil {
				text = err.Error()
			}
			results[i] = fmt.Sprint(text, " after ", time.Since(began))
		})
	}
	return func() []string {
		others.Wait()
		stop()
		wg.Wait()
		return results
	}
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

// The late call of a process fails: all that wait for it get its error.
func TestLateCallFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := lateCalls(t.Context(), t, 50, &values{}, func(context.Context, int) (string, error) {
			time.Sleep(200 * time.Millisecond)
			return "", errFailed
		})()
		if n := count(got, errFailed.Error()+" after 1.2s"); n != 50 {
			t.Errorf("%d of 50 have its error after one computation: %q", n, got)
		}
	})
}

// The late call of a process never ends: the others wait for it once more, and then each computes the value.
func TestLateCallHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		end := lateCalls(ctx, t, 50, &values{}, func(ctx context.Context, n int) (string, error) {
			if n == 1 {
				<-ctx.Done()
				return "", context.Cause(ctx)
			}
			time.Sleep(time.Second)
			return "value", nil
		})
		time.Sleep(time.Minute)
		cancel()
		got := end()
		if n := count(got, "value after 3s"); n != 49 {
			t.Errorf("%d of 49 have the value after two waits and a computation: %q", n, got)
		}
	})
}

// The value is stored while a late call computes: those that wait for it return it.
func TestValueIsStoredDuringALateCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &values{}
		end := lateCalls(t.Context(), t, 3, store, func(context.Context, int) (string, error) {
			time.Sleep(800 * time.Millisecond)
			return "late", nil
		})
		time.Sleep(1350 * time.Millisecond)
		check(t, store.Set(t.Context(), "k", "stored"))
		got := end()
		if count(got, "stored after 1.4s") != 2 || count(got, "late after 1.8s") != 1 {
			t.Errorf("they return %q", got)
		}
	})
}

// The late call of a process is canceled: the next one computes.
func TestLateCallIsCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, store, cfg := memlock.New(), &values{}, once.CacheConfig{Wait: time.Second}
		k := cache(t, client(t, locks), store, cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		var computed, second atomic.Int32
		var wg sync.WaitGroup
		for range 2 { // the first one holds the lock, and the second one is late
			wg.Go(func() {
				if _, err := k.Get(ctx, "k", takes(time.Hour, &computed)); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		text, err := k.Get(t.Context(), "k", takes(time.Second, &second))
		if took := time.Since(began); text != "value 1" || err != nil || took != 2400*time.Millisecond {
			t.Errorf("%q, %v after %v", text, err, took)
		}
		wg.Wait()
	})
}

// refusing is a backend that does not permit to lock, or only not to wait.
type refusing struct {
	driver.Opener
	onlyWaits bool
}

type refusingDriver struct {
	driver.Driver
	onlyWaits bool
}

func (o refusing) Open(opts driver.Options) (driver.Driver, error) {
	d, err := o.Opener.Open(opts)
	return refusingDriver{d, o.onlyWaits}, err
}

func (d refusingDriver) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if r.Wait || !d.onlyWaits {
		return driver.State{}, driver.Classify(driver.ErrDenied, driver.Fatal)
	}
	return d.Driver.Acquire(ctx, r)
}

// While the locks do not answer, the value is computed without them, in one call of the process: if they fail at the start, at
// once, and if they fail during the wait, after it. What waiting does not cure is returned.
func TestCacheWithoutLocks(t *testing.T) {
	for name, want := range map[string]error{"unavailable": nil, "no answer": nil, "denied": dlock.ErrDenied, "closed": dlock.ErrClosed} {
		for _, waiting := range []bool{false, true} {
			inBubble(t, fmt.Sprint(name, ", waiting: ", waiting), func(t *testing.T) {
				store, locks := &values{}, memlock.New()
				faults := faultdriver.New(locks, 1)
				own := client(t, faults)
				if name == "denied" {
					own = client(t, refusing{locks, waiting})
				}
				fail := func() {
					fault := faultdriver.Fail
					switch name {
					case "closed":
						_ = own.Close()
						return
					case "no answer":
						fault = faultdriver.LoseRequest
					}
					faults.Add(faultdriver.Rule{Op: faultdriver.Acquire, Fault: fault})
					faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: fault})
				}
				var computed atomic.Int32
				var wg sync.WaitGroup
				slow, stop := context.WithCancel(t.Context())
				expected := time.Second // to compute
				if waiting {
					expected += 20 * time.Second // to wait: a waiter asks now and then whether it still has its place
					other := cache(t, client(t, locks), store, once.CacheConfig{})
					wg.Go(func() { _, _ = other.Get(slow, "k", takes(time.Hour, new(atomic.Int32))) })
					synctest.Wait()
					time.AfterFunc(500*time.Millisecond, fail)
				} else {
					fail()
				}
				k, began := cache(t, own, store, once.CacheConfig{Wait: 20 * time.Second}), time.Now()
				var calls sync.WaitGroup
				for range 10 {
					calls.Go(func() {
						text, err := k.Get(t.Context(), "k", takes(time.Second, &computed))
						if took := time.Since(began); !errors.Is(err, want) || (err == nil && (text != "value 1" || took != expected)) {
							t.Errorf("%q, %v after %v", text, err, took)
						}
					})
				}
				calls.Wait()
				stop()
				wg.Wait()
				if got := computed.Load() == 1; got != (want == nil) {
					t.Errorf("computed %d times", computed.Load())
				}
			})
		}
	}
}

// A value that cannot be stored is computed once in a process, and given to all that wait for it.
func TestCacheStoreFailsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := cache(t, client(t, memlock.New()), &values{setError: errFailed}, once.CacheConfig{})
		var computed atomic.Int32
		var wg sync.WaitGroup
		began := time.Now()
		for range 50 {
			wg.Go(func() {
				text, err := k.Get(t.Context(), "k", takes(time.Second, &computed))
				if text != "value 1" || !errors.Is(err, once.ErrNotStored) || time.Since(began) != time.Second {
					t.Errorf("%q, %v after %v", text, err, time.Since(began))
				}
			})
		}
		wg.Wait()
	})
}
