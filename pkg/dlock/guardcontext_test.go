package dlock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A foreignContext is a third-party context: the test ends it, with any error.
type foreignContext struct {
	context.Context
	at   time.Time
	done chan struct{}
	err  error
}

func (c *foreignContext) Deadline() (time.Time, bool) { return c.at, !c.at.IsZero() }

func (c *foreignContext) Done() <-chan struct{} { return c.done }

func (c *foreignContext) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

func endsAfter(d time.Duration, err error) *foreignContext {
	c := &foreignContext{Context: context.Background(), done: make(chan struct{}), err: err}
	time.AfterFunc(d, func() { close(c.done) })
	return c
}

// A chain of locks, each acquired under the one before, keeps nothing of those that are unlocked:
// neither memory nor time.
func TestLockAfterLock(t *testing.T) {
	for name, both := range map[string]bool{"context after the unlock": false, "context before the unlock": true} {
		t.Run(name, func(t *testing.T) {
			c := client(t, memlock.New(), dlock.Config{})
			type key struct{}
			first, err := c.Acquire(context.WithValue(ctx, key{}, "value"), "a")
			if err != nil {
				t.Fatal(err)
			}
			const hops = 20_000
			before := heap()
			g := first
			for i := range hops {
				next, err := c.Acquire(g.Context(), string(rune('a'+(i+1)%2)))
				if err != nil {
					t.Fatal(err)
				}
				if both {
					next.Context()
				}
				unlock(t, g)
				g = next
			}
			if v := g.Context().Value(key{}); v != "value" {
				t.Errorf("the value of the first context became %v", v)
			}
			if more := heap() - before; more > hops*50 {
				t.Errorf("%d locks have left %d bytes each", hops, more/hops)
			}
			runtime.KeepAlive(g)
		})
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The context of a lock that is acquired under others carries those that are still held.
func TestContextCarriesOuterGuards(t *testing.T) {
	c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
	outer := acquire(t, c, "outer")
	gone, err := c.Acquire(outer.Context(), "gone")
	if err != nil {
		t.Fatal(err)
	}
	inner, err := c.Acquire(gone.Context(), "inner")
	if err != nil {
		t.Fatal(err)
	}
	unlock(t, gone)
	_, err = c.Acquire(inner.Context(), "outer")
	wantErr(t, err, dlock.ErrLockAlreadyHeld)
	if err := c.Lock(inner.Context(), "outer"); err != nil {
		t.Errorf("re-entry through an inner lock: %v", err)
	}
	other, err := c.TryAcquire(inner.Context(), "gone")
	if err != nil {
		t.Fatalf("a lock that was unlocked: %v", err)
	}
	unlock(t, other)
	if g, ok := dlock.FromContext(inner.Context()); !ok || g != inner {
		t.Errorf("the innermost is %v", g)
	}
}

// An owner stays the same in the contexts of locks that are acquired under it and under other
// locks.
func TestOwnerThroughOtherGuards(t *testing.T) {
	c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
	gone := acquire(t, c, "gone")
	owner := dlock.OwnerContext(gone.Context())
	if err := c.Lock(owner, "k"); err != nil {
		t.Fatal(err)
	}
	inner, err := c.Acquire(owner, "inner")
	if err != nil {
		t.Fatal(err)
	}
	unlock(t, gone)
	if err := c.Lock(inner.Context(), "k"); err != nil {
		t.Errorf("re-entry by the owner: %v", err)
	}
}

// A third-party parent may end before its deadline, and still return DeadlineExceeded.
func TestDoEndsWithItsParent(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		parent := endsAfter(time.Second, context.DeadlineExceeded)
		parent.at = time.Now().Add(time.Hour)
		began := time.Now()
		err := c.Do(parent, "k", func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		wantErr(t, err, context.DeadlineExceeded)
		if took := time.Since(began); took != time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
}

// The context of Do has the cause of its parent's deadline.
func TestDoHasTheCauseOfTheDeadline(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		late := errors.New("the report is late")
		parent, cancel := context.WithTimeoutCause(ctx, time.Second, late)
		defer cancel()
		_ = c.Do(parent, "k", func(ctx context.Context) error {
			<-ctx.Done()
			<-parent.Done()
			wantErr(t, ctx.Err(), context.DeadlineExceeded)
			wantErr(t, context.Cause(ctx), late)
			if text := context.Cause(ctx).Error(); text != late.Error() {
				t.Errorf("the cause says %q", text)
			}
			return nil
		})
	})
}

// uncomparable is an error that panics if it is compared.
type uncomparable []error

func (uncomparable) Error() string { return "several" }

// A context whose error cannot be compared ends a wait like any other, and the claim is withdrawn.
func TestContextWithUncomparableError(t *testing.T) {
	for _, batch := range []int{0, 4} {
		virtual(t, func(t *testing.T) {
			store := memlock.New()
			one, two := client(t, store, dlock.Config{}), client(t, store, dlock.Config{LocalBatch: batch})
			g := acquire(t, one, "k")
			_, err := two.Acquire(endsAfter(time.Second, uncomparable{context.Canceled}), "k")
			var several uncomparable
			if !errors.As(err, &several) {
				t.Errorf("the wait ended with %v", err)
			}
			unlock(t, g)
			free(t, one, "k")
		})
	}
}

// withBadHook is a driver whose calls panic, like those of a client with a bad hook.
func withBadHook(op string, store *memlock.Store) *scripted {
	s := &scripted{Opener: store, remote: true}
	calls := 0
	s.acquire = func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
		calls++
		if op == "before" && calls == 1 {
			panic("hook")
		}
		st, err := d.Acquire(ctx, r)
		if op == "after" && calls == 1 {
			panic("hook")
		}
		return st, err
	}
	return s
}

// A call in which a hook of the backend's client panics leaves nothing behind, at the backend or
// here.
func TestPanicLeavesNothing(t *testing.T) {
	for _, op := range []string{"before", "after"} {
		for name, call := range map[string]func(*dlock.Client) error{
			"Lock":    func(c *dlock.Client) error { return c.Lock(ctx, "k") },
			"Acquire": func(c *dlock.Client) error { _, err := c.Acquire(ctx, "k"); return err },
			"Do":      func(c *dlock.Client) error { return c.Do(ctx, "k", func(context.Context) error { return nil }) },
		} {
			t.Run(op+" "+name, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					store := memlock.New()
					c := client(t, withBadHook(op, store), dlock.Config{})
					func() {
						defer func() {
							if recover() == nil {
								t.Error("the panic did not pass")
							}
						}()
						_ = call(c)
					}()
					elapse(time.Second)
					free(t, client(t, store, dlock.Config{}), "k")
					if n := c.Entries(); n != 0 {
						t.Errorf("%d entries are left", n)
					}
					if err := call(c); err != nil {
						t.Errorf("the next call: %v", err)
					}
				})
			})
		}
	}
}

// Err and a second Unlock also report a loss that only Unlock has detected.
func TestErrAfterALossThatUnlockFound(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
		c := client(t, faults, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Hour))
		a, err := client(t, store, dlock.Config{}).Admin()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Evict(ctx, "k", g.Token()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
		wantErr(t, g.Err(), dlock.ErrOwnershipLost)
		calls := faults.Calls(faultdriver.Release)
		wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
		elapse(time.Second)
		if n := faults.Calls(faultdriver.Release) - calls; n != 0 {
			t.Errorf("%d releases by the second Unlock", n)
		}
	})
}

// A Do inside a Do reports a loss as the outer one does.
func TestInnerDoReportsALoss(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
		a, err := c.Admin()
		if err != nil {
			t.Fatal(err)
		}
		outer := c.Do(ctx, "k", func(ctx context.Context) error {
			inner := c.Do(ctx, "k", func(ctx context.Context) error {
				g, _ := dlock.FromContext(ctx)
				if err := a.Evict(context.Background(), "k", g.Token()); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
				return nil
			})
			wantErr(t, inner, dlock.ErrOwnershipLost)
			return nil
		})
		wantErr(t, outer, dlock.ErrOwnershipLost)
	})
}

// The context of a Guard that holds nothing has ended, and carries no Guard.
func TestContextOfNoGuard(t *testing.T) {
	c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
	for name, g := range map[string]*dlock.Guard{"nil": nil, "zero": {}} {
		child, cancel := g.WithContext(ctx)
		defer cancel()
		wantErr(t, context.Cause(child), dlock.ErrLockNotHeld)
		alive := context.WithoutCancel(child)
		if _, ok := dlock.FromContext(alive); ok {
			t.Errorf("%s: the context carries a Guard", name)
		}
		if err := c.Lock(alive, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An error names its lock only once.
func TestErrorsDoNotRepeatThemselves(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(second), dlock.WithoutRenewal())
		<-g.Done()
		err := g.Unlock(ctx)
		wantErr(t, err, dlock.ErrOwnershipLost)
		if want := `dlock: unlock "k": ownership of the lock was lost: the lease was not renewed in time`; err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	})
}
