package dlock_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Readers hold the key together, and a writer waits for the last of them.
func TestShared(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		a, b, c := client(t, store, dlock.Config{}), client(t, store, dlock.Config{}), client(t, store, dlock.Config{})
		one, two := acquire(t, a, "k", dlock.WithShared()), acquire(t, b, "k", dlock.WithShared())
		if one.Token() >= two.Token() {
			t.Errorf("tokens %d and %d", one.Token(), two.Token())
		}
		writer := async(func() *dlock.Guard { return acquire(t, c, "k") })
		synctest.Wait()
		_, err := a.TryAcquire(ctx, "k", dlock.WithShared())
		wantErr(t, err, dlock.ErrLockHeldByOther) // the writer is ahead of it
		unlock(t, one)
		synctest.Wait()
		select {
		case <-writer:
			t.Fatal("a writer came in while there was a reader")
		default:
		}
		unlock(t, two)
		g := <-writer
		_, err = a.TryAcquire(ctx, "k", dlock.WithShared())
		wantErr(t, err, dlock.ErrLockHeldByOther)
		unlock(t, g)
		free(t, a, "k")
	})
}

// At most as many callers hold the key as there are permits, and each renews its own.
func TestPermits(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{})
		one, two := acquire(t, c, "k", dlock.WithPermits(2)), acquire(t, c, "k", dlock.WithPermits(2))
		_, err := c.TryAcquire(ctx, "k", dlock.WithPermits(2))
		wantErr(t, err, dlock.ErrLockHeldByOther)
		_, err = c.TryAcquire(ctx, "k", dlock.WithPermits(3))
		wantErr(t, err, dlock.ErrLockHeldByOther) // another limit is another semaphore
		elapse(100 * second)
		alive(t, one)
		alive(t, two)
		third := async(func() *dlock.Guard { return acquire(t, c, "k", dlock.WithPermits(2)) })
		synctest.Wait()
		unlock(t, one)
		unlock(t, <-third)
		unlock(t, two)
	})
}

// A mode that the backend does not have is refused before anything is sent.
func TestUnsupportedModes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := &scripted{Opener: memlock.New(), caps: func(c *driver.Caps) { c.Modes = []driver.Mode{driver.Exclusive} }}
		c := client(t, store, dlock.Config{})
		for name, opt := range map[string]dlock.LockOption{"shared": dlock.WithShared(), "permit": dlock.WithPermits(2)} {
			_, err := c.Acquire(ctx, "k", opt)
			if !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A reader that asks for the writer's lock inside its own gets an error at once: two of them would
// wait for each other.
func TestNoUpgrade(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{EnableReentrant: true})
		owner := dlock.OwnerContext(ctx)
		if err := c.Lock(owner, "k", dlock.WithShared()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, c.Lock(owner, "k"), dlock.ErrLockAlreadyHeld)
		wantErr(t, c.Lock(owner, "k", dlock.WithPermits(1)), dlock.ErrLockAlreadyHeld)
		if err := c.Lock(owner, "k", dlock.WithShared()); err != nil {
			t.Errorf("the same once more: %v", err)
		}
		unlockKey(t, c, "k")
		unlockKey(t, c, "k")
		free(t, c, "k")

		g := acquire(t, c, "k", dlock.WithShared())
		_, err := c.Acquire(g.Context(), "k")
		wantErr(t, err, dlock.ErrLockAlreadyHeld)
		wantErr(t, c.Lock(g.Context(), "k"), dlock.ErrLockAlreadyHeld)
		unlock(t, g)

		lock(t, c, owner, "k")
		if err := c.Lock(owner, "k", dlock.WithShared()); err != nil {
			t.Errorf("shared inside exclusive: %v", err)
		}
		unlockKey(t, c, "k")
		unlockKey(t, c, "k")
		free(t, c, "k")
	})
}

// A caller that wants the exclusive lock gets the holder of a permit in its error, without a note
// about limits.
func TestPermitInTheWay(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		acquire(t, client(t, store, dlock.Config{}), "k", dlock.WithPermits(2))
		elapse(1234 * time.Millisecond)
		other := client(t, store, dlock.Config{})
		_, err := other.TryAcquire(ctx, "k")
		wantErr(t, err, dlock.ErrLockHeldByOther)
		if text := err.Error(); !strings.Contains(text, " for 1s, 0 waiting") || strings.Contains(text, "permits") {
			t.Error(text)
		}
		_, err = other.TryAcquire(ctx, "k", dlock.WithPermits(3))
		if text := err.Error(); !strings.Contains(text, "one of 2 permits, and 3 were requested") {
			t.Error(text)
		}
	})
}
