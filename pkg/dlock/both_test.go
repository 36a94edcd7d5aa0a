package dlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// Two stores, a Pair on them, and Clients of other processes.
type move struct {
	old, new   *memlock.Store
	both       *dlock.Pair
	first      *dlock.Client // the old one of the Pair
	second     *dlock.Client
	onOld      *dlock.Client // of processes that do not use the Pair
	onNew      *dlock.Client
	oldA, newA *dlock.Admin
}

func moving(t *testing.T, cfg dlock.Config) *move {
	t.Helper()
	m := &move{old: memlock.New(), new: memlock.New()}
	m.first, m.second = client(t, m.old, cfg), client(t, m.new, cfg)
	m.onOld, m.onNew = client(t, m.old, cfg), client(t, m.new, cfg)
	m.both = both(t, m.first, m.second)
	var err, second error
	m.oldA, err = m.onOld.Admin()
	m.newA, second = m.onNew.Admin()
	if err != nil || second != nil {
		t.Fatal(err, second)
	}
	return m
}

func both(t *testing.T, old, new *dlock.Client) *dlock.Pair {
	t.Helper()
	p, err := dlock.Both(old, new)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ways are the calls that lock with a Pair. Each returns when it has unlocked, or failed.
var ways = map[string]func(p *dlock.Pair, ctx context.Context, key string, work func(), opts ...dlock.LockOption) error{
	"Acquire": func(p *dlock.Pair, ctx context.Context, key string, work func(), opts ...dlock.LockOption) error {
		g, err := p.Acquire(ctx, key, opts...)
		if err != nil {
			return err
		}
		work()
		return g.Unlock(ctx)
	},
	"Lock": func(p *dlock.Pair, ctx context.Context, key string, work func(), opts ...dlock.LockOption) error {
		if err := p.Lock(ctx, key, opts...); err != nil {
			return err
		}
		work()
		return p.Unlock(ctx, key)
	},
	"Do": func(p *dlock.Pair, ctx context.Context, key string, work func(), opts ...dlock.LockOption) error {
		return p.Do(ctx, key, func(context.Context) error { work(); return nil }, opts...)
	},
}

// eachWay runs a test with each of them, in virtual time.
func eachWay(t *testing.T, test func(t *testing.T, call func(p *dlock.Pair, ctx context.Context, key string, work func(), opts ...dlock.LockOption) error)) {
	t.Helper()
	for name, call := range ways {
		t.Run(name, func(t *testing.T) { virtual(t, func(t *testing.T) { test(t, call) }) })
	}
}

func TestBoth(t *testing.T) {
	virtual(t, func(t *testing.T) {
		m := moving(t, dlock.Config{})
		for range 3 { // so that the tokens differ
			unlock(t, acquire(t, m.onOld, "k"))
		}
		type name struct{}
		g, err := m.both.Acquire(context.WithValue(ctx, name{}, "values"), "k")
		if err != nil {
			t.Fatal(err)
		}
		old, now := inspect(t, m.onOld, "k"), inspect(t, m.onNew, "k")
		if len(old) != 1 || len(now) != 1 || !old[0].Both || !now[0].Both {
			t.Fatalf("old has %+v, new has %+v", old, now)
		}
		o, n := m.both.Tokens(g.Context(), "k")
		if o != old[0].Token || n != now[0].Token || o <= n || g.Token("k") != o || g.Token("other") != 0 {
			t.Errorf("tokens %d, %d, the larger is %d", o, n, g.Token("k"))
		}
		if keys := g.Keys(); !slices.Equal(keys, []string{"k"}) || g.Context().Value(name{}) != "values" || g.Err() != nil {
			t.Errorf("keys %q, error %v", keys, g.Err())
		}
		inner, cancel := g.WithContext(ctx)
		defer cancel()
		for _, held := range []context.Context{inner, g.Context()} {
			if guard, ok := dlock.FromContext(held); !ok || guard.Token() != o {
				t.Errorf("the context carries %v", guard)
			}
		}
		_, err = m.both.Acquire(g.Context(), "k")
		wantErr(t, err, dlock.ErrLockAlreadyHeld)
		elapse(time.Minute) // it is renewed
		wantErr(t, g.Extend(ctx, time.Hour))
		if left := g.Remaining(); left < 50*time.Minute {
			t.Errorf("%v are left of an hour", left)
		}
		wantErr(t, g.Unlock(ctx))
		if inner.Err() == nil {
			t.Error("a context has not ended")
		}
		wantErr(t, g.Unlock(ctx), dlock.ErrLockNotHeld)
		if o, n := m.both.Tokens(g.Context(), "k"); o != 0 || n != 0 {
			t.Errorf("tokens %d and %d after Unlock", o, n)
		}
		free(t, m.onOld, "k")
		free(t, m.onNew, "k")
	})
}

// It locks on old first, and unlocks on new first.
func TestBothKeepsItsOrder(t *testing.T) {
	eachWay(t, func(t *testing.T, call func(*dlock.Pair, context.Context, string, func(), ...dlock.LockOption) error) {
		var mu sync.Mutex
		var calls []string
		on := func(name string) *scripted {
			record := func(what string) {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, what+" "+name)
			}
			return &scripted{
				Opener: memlock.New(),
				acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
					elapse(time.Millisecond)
					record("lock")
					return d.Acquire(ctx, r)
				},
				release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
					elapse(time.Millisecond)
					record("unlock")
					return d.Release(ctx, r)
				},
			}
		}
		p := both(t, client(t, on("old"), dlock.Config{}), client(t, on("new"), dlock.Config{}))
		wantErr(t, call(p, ctx, "k", func() {}))
		if want := []string{"lock old", "lock new", "unlock new", "unlock old"}; !slices.Equal(calls, want) {
			t.Errorf("%q, want %q", calls, want)
		}
	})
}

func TestBothRefusesBadInput(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty()
		c, other := client(t, faults, dlock.Config{}), client(t, memlock.New(), dlock.Config{})
		for _, clients := range [][2]*dlock.Client{{nil, c}, {c, nil}, {c, c}} {
			p, err := dlock.Both(clients[0], clients[1])
			wantErr(t, err, dlock.ErrInvalidConfig)
			if p != nil {
				t.Error("a Pair that cannot be used")
			}
		}
		p := both(t, c, other)
		for name, bad := range map[string]struct {
			key  string
			opts []dlock.LockOption
			want error
		}{
			"empty key": {"", nil, dlock.ErrInvalidKey},
			"TTL":       {"k", []dlock.LockOption{dlock.WithTTL(-1)}, dlock.ErrInvalidTTL},
			"nil":       {"k", []dlock.LockOption{nil}, dlock.ErrInvalidConfig},
			"permits":   {"k", []dlock.LockOption{dlock.WithPermits(0)}, dlock.ErrInvalidConfig},
			"own lease": {"k", []dlock.LockOption{dlock.WithOwnLease()}, dlock.ErrUnsupported},
		} {
			for way, call := range ways {
				if err := call(p, ctx, bad.key, func() {}, bad.opts...); !errors.Is(err, bad.want) {
					t.Errorf("%s, %s: %v", way, name, err)
				}
			}
			_, err := p.TryLock(ctx, bad.key, bad.opts...)
			wantErr(t, err, bad.want)
			_, err = p.TryAcquire(ctx, bad.key, bad.opts...)
			wantErr(t, err, bad.want)
		}
		var zero dlock.Pair
		for _, none := range []*dlock.Pair{nil, &zero} {
			wantErr(t, none.Lock(ctx, "k"), dlock.ErrInvalidConfig)
			wantErr(t, none.Unlock(ctx, "k"), dlock.ErrInvalidConfig)
			if o, n := none.Tokens(ctx, "k"); o != 0 || n != 0 {
				t.Error("tokens of nothing")
			}
			for _, err := range none.OldOnly(ctx, "") {
				wantErr(t, err, dlock.ErrInvalidConfig)
			}
			wantErr(t, none.Close())
		}
		wantErr(t, p.Do(ctx, "k", nil), dlock.ErrInvalidConfig)
		wantErr(t, p.Lock(nil, "k"), dlock.ErrInvalidConfig) //nolint:staticcheck // what a caller may do
		wantErr(t, p.Unlock(ctx, "k"), dlock.ErrLockNotHeld)
		nothing(t, client(t, store, dlock.Config{}), "k")
		if n := faults.Calls(faultdriver.Acquire); n != 0 {
			t.Errorf("%d calls were sent", n)
		}
	})
}

// Two Clients that store the same locks are refused, instead of waiting for each other.
func TestBothOfOneStore(t *testing.T) {
	eachWay(t, func(t *testing.T, call func(*dlock.Pair, context.Context, string, func(), ...dlock.LockOption) error) {
		store := memlock.New()
		p := both(t, client(t, store, dlock.Config{}), client(t, store, dlock.Config{}))
		for range 2 {
			wantErr(t, call(p, ctx, "k", func() { t.Error("it works without a lock") }), dlock.ErrInvalidConfig)
		}
		synctest.Wait()
		free(t, client(t, store, dlock.Config{}), "k")
		p = both(t, client(t, store, dlock.Config{Prefix: "a:"}), client(t, store, dlock.Config{Prefix: "b:"}))
		wantErr(t, call(p, ctx, "k", func() {}))
	})
}

// What it does not get on the second Client, it gives back on the first, and says on which it failed.
func TestBothRollsBack(t *testing.T) {
	for name, end := range map[string]struct {
		opts []dlock.LockOption
		want error
	}{
		"cancelled": {nil, context.Canceled},
		"in time":   {[]dlock.LockOption{dlock.WithWait(5 * time.Second), dlock.WithMinHold(time.Hour)}, dlock.ErrLockHeldByOther},
		"at once":   {[]dlock.LockOption{dlock.WithWait(0)}, dlock.ErrLockHeldByOther},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, call func(*dlock.Pair, context.Context, string, func(), ...dlock.LockOption) error) {
				m := moving(t, dlock.Config{DefaultTTL: time.Minute})
				g := acquire(t, m.onNew, "k")
				limited, cancel := context.WithCancel(ctx)
				defer cancel()
				done := async(func() error { return call(m.both, limited, "k", func() {}, end.opts...) })
				if name != "at once" {
					elapse(time.Second)
					if old, now := inspect(t, m.onOld, "k"), inspect(t, m.onNew, "k"); len(old) != 1 || len(now) != 2 || !now[1].Both {
						t.Errorf("old has %v, new has %v", old, now)
					}
				}
				if name == "cancelled" {
					cancel()
				}
				err := <-done
				wantErr(t, err, end.want)
				var failed *dlock.Error
				if !errors.As(err, &failed) || failed.Key != "k" || !strings.Contains(err.Error(), "on the new backend (memory)") {
					t.Errorf("%v does not name the key and the Client", err)
				}
				if end.want == dlock.ErrLockHeldByOther && failed.Holder == nil { //nolint:errorlint // as the table has it
					t.Errorf("%v does not name the holder", err)
				}
				synctest.Wait() // it is released in the background
				free(t, m.onOld, "k")
				alive(t, g)
				unlock(t, g)
				free(t, m.onNew, "k")
				wantErr(t, call(m.both, ctx, "k", func() {})) // and the Pair has forgotten it
			})
		})
	}
}

// A key that is taken on old is not asked for on new.
func TestBothWaitsForOldFirst(t *testing.T) {
	eachWay(t, func(t *testing.T, call func(*dlock.Pair, context.Context, string, func(), ...dlock.LockOption) error) {
		m := moving(t, dlock.Config{})
		g := acquire(t, m.onOld, "k")
		err := call(m.both, ctx, "k", func() {}, dlock.WithWait(0))
		wantErr(t, err, dlock.ErrLockHeldByOther)
		if !strings.Contains(err.Error(), "on the old backend (memory)") {
			t.Errorf("%v does not name the Client", err)
		}
		done := async(func() error { return call(m.both, ctx, "k", func() {}) })
		elapse(time.Second)
		free(t, m.onNew, "k")
		unlock(t, g)
		wantErr(t, <-done)
	})
}

// WithWait limits both waits together.
func TestBothWaitsOnce(t *testing.T) {
	eachWay(t, func(t *testing.T, call func(*dlock.Pair, context.Context, string, func(), ...dlock.LockOption) error) {
		m := moving(t, dlock.Config{})
		old := acquire(t, m.onOld, "k")
		acquire(t, m.onNew, "k")
		time.AfterFunc(3*time.Second, func() { unlock(t, old) })
		began := time.Now()
		wantErr(t, call(m.both, ctx, "k", func() {}, dlock.WithWait(5*time.Second)), dlock.ErrLockHeldByOther)
		if took := time.Since(began); took < 5*time.Second || took > 5*time.Second+10*time.Millisecond {
			t.Errorf("it waited %v", took)
		}
	})
}

// The loss of either lock ends the context of both, and the error says which it was.
func TestBothEndsWithEither(t *testing.T) {
	for i, name := range []string{"old", "new"} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				m := moving(t, dlock.Config{DefaultTTL: time.Minute})
				admin := []*dlock.Admin{m.oldA, m.newA}[i]
				evict := func() {
					claims, err := admin.Inspect(ctx, "k")
					wantErr(t, err)
					wantErr(t, admin.Evict(ctx, "k", claims[0].Token))
				}
				names := func(err error) {
					t.Helper()
					wantErr(t, err, dlock.ErrOwnershipLost)
					if !strings.Contains(err.Error(), "on the "+name+" backend") {
						t.Errorf("%v does not say where", err)
					}
				}
				g, err := m.both.Acquire(ctx, "k")
				wantErr(t, err)
				evict()
				<-g.Done()
				names(context.Cause(g.Context()))
				names(g.Err())
				names(g.Unlock(ctx))
				err = m.both.Do(ctx, "k", func(ctx context.Context) error {
					evict()
					<-ctx.Done()
					return context.Cause(ctx)
				})
				names(err)
				wantErr(t, m.both.Lock(ctx, "k"))
				evict()
				elapse(time.Second)
				names(m.both.Lock(ctx, "k")) // until it is unlocked
				_, err = m.both.TryLock(ctx, "k")
				names(err)
				names(m.both.Unlock(ctx, "k"))
				elapse(time.Minute)
				free(t, m.onOld, "k")
				free(t, m.onNew, "k")
				wantErr(t, m.both.Lock(ctx, "k"))
				wantErr(t, m.both.Unlock(ctx, "k"))
			})
		})
	}
}

// A lock on old that is lost while it waits for new ends the call.
func TestBothLosesOldMeanwhile(t *testing.T) {
	eachWay(t, func(t *testing.T, call func(*dlock.Pair, context.Context, string, func(), ...dlock.LockOption) error) {
		m := moving(t, dlock.Config{DefaultTTL: time.Minute})
		g := acquire(t, m.onNew, "k")
		done := async(func() error { return call(m.both, ctx, "k", func() { t.Error("it works without a lock") }) })
		elapse(time.Second)
		wantErr(t, m.oldA.Evict(ctx, "k", inspect(t, m.onOld, "k")[0].Token))
		err := <-done
		wantErr(t, err, dlock.ErrOwnershipLost)
		if !strings.Contains(err.Error(), "on the old backend") {
			t.Errorf("%v does not say where", err)
		}
		unlock(t, g)
		elapse(time.Minute)
		free(t, m.onOld, "k")
		free(t, m.onNew, "k")
		wantErr(t, call(m.both, ctx, "k", func() {}))
	})
}

// A backend that stops answering ends the context before another process can have the lock there.
func TestBothOnADeadBackend(t *testing.T) {
	for i, name := range []string{"old", "new"} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var faults [2]*faultdriver.Faults
				var clients [2]*dlock.Client
				for i := range clients {
					_, faults[i] = faulty()
					clients[i] = client(t, faults[i], dlock.Config{DefaultTTL: 10 * time.Second})
				}
				g, err := both(t, clients[0], clients[1]).Acquire(ctx, "k")
				wantErr(t, err)
				elapse(time.Minute)
				wantErr(t, g.Err())
				for _, op := range []faultdriver.Op{faultdriver.Renew, faultdriver.Release} {
					faults[i].Add(faultdriver.Rule{Op: op, Fault: faultdriver.LoseRequest})
				}
				began := time.Now()
				<-g.Done()
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("the context ended after %v", took)
				}
				if err := context.Cause(g.Context()); !errors.Is(err, dlock.ErrOwnershipLost) || !strings.Contains(err.Error(), "on the "+name) {
					t.Errorf("the cause is %v", err)
				}
				wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
				free(t, clients[1-i], "k")
			})
		})
	}
}

func TestBothReenters(t *testing.T) {
	virtual(t, func(t *testing.T) {
		m := moving(t, dlock.Config{EnableReentrant: true})
		ran := false
		err := m.both.Do(ctx, "k", func(ctx context.Context) error {
			return m.both.Do(ctx, "k", func(ctx context.Context) error {
				if err := m.both.Lock(ctx, "k"); err != nil {
					return err
				}
				ran = true
				o, n := m.both.Tokens(ctx, "k")
				if o == 0 || n == 0 {
					t.Errorf("tokens %d, %d", o, n)
				}
				return m.both.Unlock(ctx, "k")
			})
		})
		if err != nil || !ran {
			t.Fatal(err)
		}
		owner := dlock.OwnerContext(ctx)
		for range 2 {
			wantErr(t, m.both.Lock(owner, "k"))
		}
		wantErr(t, m.both.Do(owner, "k", func(context.Context) error { return nil }))
		wantErr(t, m.both.Lock(ctx, "k"), dlock.ErrLockAlreadyHeld)
		wantErr(t, m.both.Unlock(ctx, "k"))
		if len(inspect(t, m.onOld, "k"))+len(inspect(t, m.onNew, "k")) != 2 {
			t.Error("the outer lock was released")
		}
		wantErr(t, m.both.Unlock(ctx, "k"))
		free(t, m.onOld, "k")
		free(t, m.onNew, "k")
		// A context with only one of the two guards is a mistake.
		g := acquire(t, m.first, "k")
		wantErr(t, m.both.Do(g.Context(), "k", func(context.Context) error { return nil }), dlock.ErrLockAlreadyHeld)
		unlock(t, g)
	})
}

// Close closes neither Client. A Client that is closed ends the calls that wait for it.
func TestCloseOfBoth(t *testing.T) {
	eachWay(t, func(t *testing.T, call func(*dlock.Pair, context.Context, string, func(), ...dlock.LockOption) error) {
		m := moving(t, dlock.Config{DefaultTTL: time.Minute})
		wantErr(t, call(m.both, ctx, "k", func() { wantErr(t, m.both.Close()) })) // what is held can be unlocked
		wantErr(t, call(m.both, ctx, "k", func() {}), dlock.ErrClosed)
		unlock(t, acquire(t, m.first, "k"))
		unlock(t, acquire(t, m.second, "k"))
		for i, name := range []string{"old", "new"} {
			m := moving(t, dlock.Config{DefaultTTL: time.Minute})
			acquire(t, []*dlock.Client{m.onOld, m.onNew}[i], "k")
			done := async(func() error { return call(m.both, ctx, "k", func() {}) })
			elapse(time.Second)
			wantErr(t, []*dlock.Client{m.first, m.second}[i].Close())
			err := <-done
			wantErr(t, err, dlock.ErrClosed)
			if !strings.Contains(err.Error(), "on the "+name) {
				t.Errorf("%v does not say where", err)
			}
			synctest.Wait()
			free(t, []*dlock.Client{m.onNew, m.onOld}[i], "k")
		}
	})
}

// A panic of the function, of a hook of a backend's client or of the context passes, and leaves nothing behind.
func TestPanicInBoth(t *testing.T) {
	eachWay(t, func(t *testing.T, call func(*dlock.Pair, context.Context, string, func(), ...dlock.LockOption) error) {
		for _, in := range []string{"before", "after", "Done", "Err", "Value", "Deadline"} {
			old, now := memlock.New(), memlock.New()
			limited, cancel := context.WithCancel(ctx)
			bad := &badContext{Context: limited, in: in}
			hook := withBadHook(in, now)
			acquire := hook.acquire
			hook.acquire = func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
				bad.armed.Store(true)
				return acquire(ctx, d, r)
			}
			p := both(t, client(t, old, dlock.Config{}), client(t, hook, dlock.Config{}))
			if !panics(func() { _ = call(p, bad, "k", func() {}) }) && (in == "before" || in == "after") {
				t.Errorf("%s: the panic was swallowed", in)
			}
			bad.armed.Store(false)
			cancel()
			elapse(time.Minute)
			_ = p.Unlock(ctx, "k") // if Lock did not panic, its Unlock did
			free(t, client(t, old, dlock.Config{}), "k")
			free(t, client(t, now, dlock.Config{}), "k")
		}
		m := moving(t, dlock.Config{})
		if !panics(func() { _ = m.both.Do(ctx, "k", func(context.Context) error { panic("of the function") }) }) {
			t.Error("the panic was swallowed")
		}
		free(t, m.onOld, "k")
		free(t, m.onNew, "k")
	})
}

// A release on new that panics does not keep the lock on old.
func TestPanicInUnlockOfBoth(t *testing.T) {
	virtual(t, func(t *testing.T) {
		old := memlock.New()
		hook := &scripted{Opener: memlock.New(), release: func(context.Context, driver.Driver, driver.Ref) (driver.State, error) { panic("hook") }}
		p := both(t, client(t, old, dlock.Config{}), client(t, hook, dlock.Config{}))
		g, err := p.Acquire(ctx, "k")
		wantErr(t, err)
		_ = panics(func() { _ = g.Unlock(ctx) })
		free(t, client(t, old, dlock.Config{}), "k")
		wantErr(t, p.Lock(ctx, "l"))
		_ = panics(func() { _ = p.Unlock(ctx, "l") })
		free(t, client(t, old, dlock.Config{}), "l")
	})
}

func TestTryBoth(t *testing.T) {
	virtual(t, func(t *testing.T) {
		m := moving(t, dlock.Config{})
		for _, other := range []*dlock.Client{m.onOld, m.onNew} {
			g := acquire(t, other, "k")
			ok, err := m.both.TryLock(ctx, "k")
			if ok || err != nil {
				t.Errorf("%v, %v", ok, err)
			}
			_, err = m.both.TryAcquire(ctx, "k")
			wantErr(t, err, dlock.ErrLockHeldByOther)
			unlock(t, g)
			synctest.Wait()
		}
		ok, err := m.both.TryLock(ctx, "k")
		if !ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
		_, err = m.both.TryLock(ctx, "k")
		wantErr(t, err, dlock.ErrLockAlreadyHeld)
		wantErr(t, m.both.Unlock(ctx, "k"))
	})
}

// OldOnly lists the holders and the waiters on old that have not moved.
func TestOldOnly(t *testing.T) {
	virtual(t, func(t *testing.T) {
		m := moving(t, dlock.Config{})
		stay := func(c *dlock.Client, key, owner string) {
			call, cancel := context.WithCancel(ctx)
			t.Cleanup(cancel)
			go func() {
				if _, err := c.Acquire(call, key, dlock.WithInfo(dlock.Info{Owner: owner})); err != nil && call.Err() == nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		stay(m.onOld, "a", "holds")
		g, err := m.both.Acquire(ctx, "b")
		wantErr(t, err)
		stay(m.onOld, "b", "waits")
		stay(m.onNew, "c", "moved on")
		stay(m.onOld, "z", "another prefix")
		var seen []string
		for c, err := range m.both.OldOnly(ctx, "") {
			wantErr(t, err)
			seen = append(seen, fmt.Sprintf("%s %s %s", c.Key, c.Claim.Info.Owner, c.Claim.Phase))
		}
		slices.Sort(seen)
		if want := []string{"a holds held", "b waits queued", "z another prefix held"}; !slices.Equal(seen, want) {
			t.Errorf("%q, want %q", seen, want)
		}
		for c, err := range m.both.OldOnly(ctx, "a") {
			if text, _ := json.Marshal(c); err != nil || c.Key != "a" || !strings.Contains(string(text), `"key":"a"`) {
				t.Errorf("%s, %v", text, err)
			}
			break
		}
		wantErr(t, g.Unlock(ctx))
		without, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()))
		wantErr(t, err)
		defer without.Close()
		for _, err := range both(t, without, m.second).OldOnly(ctx, "") {
			wantErr(t, err, dlock.ErrUnsupported)
		}
	})
}

// Processes move one by one while they work: no two work at a time. If they leave out the step with both, two do.
func TestFleetMoves(t *testing.T) {
	for name, steps := range map[string][]string{"with both": {"old", "both", "new"}, "without": {"old", "new"}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				lossy := []faultdriver.Rule{
					{Op: faultdriver.Acquire, Fault: faultdriver.LoseAnswer, Chance: 0.02}, {Op: faultdriver.Release, Fault: faultdriver.LoseAnswer, Chance: 0.02},
				}
				_, onOld := faulty(lossy...)
				_, onNew := faulty(lossy...)
				var inside, overlaps, sections atomic.Int32
				work := func() {
					if inside.Add(1) != 1 {
						overlaps.Add(1)
					}
					elapse(time.Millisecond)
					inside.Add(-1)
					sections.Add(1)
				}
				const processes, perStep = 6, 200
				var fleet [processes]func() // ends a process
				start := func(step string) func() {
					old, now := client(t, onOld, dlock.Config{}), client(t, onNew, dlock.Config{})
					lock := map[string]interface {
						Do(context.Context, string, func(context.Context) error, ...dlock.LockOption) error
					}{"old": old, "new": now, "both": both(t, old, now)}[step]
					running, cancel := context.WithCancel(ctx)
					var wg sync.WaitGroup
					wg.Go(func() {
						for running.Err() == nil {
							err := lock.Do(running, "k", func(context.Context) error { work(); return nil })
							if err != nil && running.Err() == nil {
								t.Error(err)
							}
						}
					})
					return func() { cancel(); wg.Wait(); wantErr(t, errors.Join(old.Close(), now.Close())) }
				}
				for i := range fleet {
					fleet[i] = start(steps[0])
				}
				for _, step := range steps[1:] {
					for i := range fleet {
						for before := sections.Load(); sections.Load() < before+perStep; {
							elapse(10 * time.Millisecond)
						}
						fleet[i]()
						fleet[i] = start(step)
					}
				}
				elapse(time.Second)
				for _, end := range fleet {
					end()
				}
				if found := overlaps.Load(); (found > 0) != (name == "without") {
					t.Errorf("%d overlaps in %d sections", found, sections.Load())
				}
			})
		})
	}
}

// Tokens are those of the locks also when one of them was lost: a resource has to see them to refuse it.
func TestTokensAfterALoss(t *testing.T) {
	virtual(t, func(t *testing.T) {
		m := moving(t, dlock.Config{DefaultTTL: time.Minute})
		err := m.both.Do(ctx, "k", func(ctx context.Context) error {
			old, other := m.both.Tokens(ctx, "k")
			wantErr(t, m.newA.Evict(ctx, "k", other))
			<-ctx.Done()
			if o, n := m.both.Tokens(ctx, "k"); o != old || n != other || o == 0 || n == 0 {
				t.Errorf("tokens %d, %d, were %d, %d", o, n, old, other)
			}
			return nil
		})
		wantErr(t, err, dlock.ErrOwnershipLost)
	})
}

// Inside a Do, FromContext has the greater token, whichever of the two it is, as in the outer one.
func TestTokenInsideBoth(t *testing.T) {
	virtual(t, func(t *testing.T) {
		m := moving(t, dlock.Config{EnableReentrant: true})
		for range 5 {
			unlock(t, acquire(t, m.first, "k")) // old has greater tokens
		}
		for range 2 {
			wantErr(t, m.both.Do(ctx, "k", func(ctx context.Context) error {
				old, other := m.both.Tokens(ctx, "k")
				return m.both.Do(ctx, "k", func(ctx context.Context) error {
					if g, _ := dlock.FromContext(ctx); g.Token() != max(old, other) || old == other {
						t.Errorf("token %d of %d and %d", g.Token(), old, other)
					}
					return nil
				})
			}))
			for range 20 {
				unlock(t, acquire(t, m.second, "k")) // and now new
			}
		}
	})
}

// inspected counts how often its drivers are asked for the claims of a key.
type inspected struct {
	driver.Opener
	calls *atomic.Int32
}

type inspectedDriver struct {
	driver.Driver
	driver.Admin
	calls *atomic.Int32
}

func (o inspected) Open(opts driver.Options) (driver.Driver, error) {
	d, err := o.Opener.Open(opts)
	return inspectedDriver{d, d.(driver.Admin), o.calls}, err //nolint:forcetypeassert // memlock is one
}

func (d inspectedDriver) Inspect(ctx context.Context, key string) ([]driver.Claim, error) {
	d.calls.Add(1)
	return d.Admin.Inspect(ctx, key)
}

// Shared locks and permits ask once whether the Clients store the same locks, and not for each lock.
func TestBothAsksOnce(t *testing.T) {
	for name, opt := range map[string]dlock.LockOption{"shared": dlock.WithShared(), "permits": dlock.WithPermits(100)} {
		for _, alone := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", alone: ", alone), func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					m, calls := moving(t, dlock.Config{}), new(atomic.Int32)
					p := both(t, m.first, client(t, inspected{m.new, calls}, dlock.Config{}))
					if !alone {
						acquire(t, m.onNew, "k", opt)
					}
					for range 100 {
						g, err := p.Acquire(ctx, "k", opt)
						wantErr(t, err)
						wantErr(t, g.Unlock(ctx))
					}
					if calls.Load() != 1 {
						t.Errorf("100 locks asked %d times", calls.Load())
					}
				})
			})
		}
	}
}

// A Pair of one store is refused among other readers too, and by many goroutines.
func TestBothOfOneStoreLater(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		a := client(t, store, dlock.Config{})
		g := acquire(t, client(t, store, dlock.Config{}), "k", dlock.WithShared())
		p := both(t, a, client(t, store, dlock.Config{}))
		_, err := p.Acquire(ctx, "k", dlock.WithShared())
		wantErr(t, err, dlock.ErrInvalidConfig)
		unlock(t, g)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { wantErr(t, p.Lock(ctx, fmt.Sprint("k", i)), dlock.ErrInvalidConfig) })
		}
		wg.Wait()
	})
}
