package dlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// panics reports whether f panics.
func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

// An Unlock in which a hook of the backend's client panics leaves nothing behind, and the next
// local waiter is served.
func TestUnlockThatPanics(t *testing.T) {
	for _, batch := range []int{0, 1} {
		for _, remote := range []bool{false, true} {
			virtual(t, func(t *testing.T) {
				store, calls := memlock.New(), 0
				release := func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
					calls++
					if calls == 1 {
						panic("hook")
					}
					return d.Release(ctx, r)
				}
				c := client(t, &scripted{Opener: store, remote: remote, release: release}, dlock.Config{LocalBatch: batch})
				g := acquire(t, c, "k")
				if !panics(func() { _ = g.Unlock(ctx) }) {
					t.Error("the panic did not pass")
				}
				elapse(time.Second)
				free(t, client(t, store, dlock.Config{}), "k")
				if n := c.Entries(); n != 0 {
					t.Errorf("LocalBatch %d: %d entries are left", batch, n)
				}
				next, err := c.Acquire(ctx, "k", dlock.WithWait(time.Minute))
				if err != nil {
					t.Fatalf("LocalBatch %d: %v", batch, err)
				}
				unlock(t, next)
			})
		}
	}
}

// badContext panics in one of its methods when it is armed.
type badContext struct {
	context.Context
	in    string
	armed atomic.Bool
}

func (b *badContext) call(method string) {
	if b.armed.Load() && b.in == method {
		panic(method)
	}
}

func (b *badContext) Done() <-chan struct{}       { b.call("Done"); return b.Context.Done() }
func (b *badContext) Err() error                  { b.call("Err"); return b.Context.Err() }
func (b *badContext) Value(key any) any           { b.call("Value"); return b.Context.Value(key) }
func (b *badContext) Deadline() (time.Time, bool) { b.call("Deadline"); return b.Context.Deadline() }

// A call whose context panics leaves nothing behind.
func TestContextThatPanics(t *testing.T) {
	for _, in := range []string{"Done", "Err", "Value", "Deadline"} {
		for _, batch := range []int{0, 1} {
			for name, call := range map[string]func(*dlock.Client, context.Context) error{
				"Lock":    func(c *dlock.Client, ctx context.Context) error { return c.Lock(ctx, "k") },
				"Acquire": func(c *dlock.Client, ctx context.Context) error { _, err := c.Acquire(ctx, "k"); return err },
				"Do": func(c *dlock.Client, ctx context.Context) error {
					return c.Do(ctx, "k", func(context.Context) error { return nil })
				},
				"AcquireAll": func(c *dlock.Client, ctx context.Context) error {
					_, err := c.AcquireAll(ctx, []string{"k", "l", "m"})
					return err
				},
				"DoAll": func(c *dlock.Client, ctx context.Context) error {
					return c.DoAll(ctx, []string{"k", "l"}, func(context.Context) error { return nil })
				},
			} {
				t.Run(name+" "+in, func(t *testing.T) {
					virtual(t, func(t *testing.T) {
						store := memlock.New()
						own, cancel := context.WithCancel(ctx)
						defer cancel()
						bad := &badContext{Context: own, in: in}
						bad.armed.Store(in == "Done") // which a call needs before it asks the backend
						acquire := func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
							bad.armed.Store(true)
							return d.Acquire(ctx, r)
						}
						c := client(t, &scripted{Opener: store, acquire: acquire}, dlock.Config{LocalBatch: batch})
						if !panics(func() { _ = call(c, bad) }) {
							return
						}
						elapse(time.Minute)
						other := client(t, store, dlock.Config{})
						for _, key := range []string{"k", "l", "m"} {
							free(t, other, key)
						}
						if n := c.Entries() + c.LocalWaiters(); n != 0 {
							t.Errorf("LocalBatch %d: %d entries are left", batch, n)
						}
					})
				})
			}
		}
	}
}

// UnlockInto releases the lock even if the context that it was acquired with panics.
func TestUnlockIntoWithAContextThatPanics(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		bad := &badContext{Context: ctx, in: "Value"}
		g, err := c.Acquire(bad, "k")
		if err != nil {
			t.Fatal(err)
		}
		bad.armed.Store(true)
		_ = panics(func() { dlock.UnlockInto(&err, g) })
		free(t, c, "k")
		if err != nil {
			t.Error(err)
		}
	})
}
