package dlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
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

// queueUp starts calls that wait for a key one after the other, so that their order is known.
func queueUp(t *testing.T, c *dlock.Client, ctx context.Context, key string, n int) []chan *dlock.Guard { //nolint:revive // the test comes first
	t.Helper()
	var all []chan *dlock.Guard
	for range n {
		got := make(chan *dlock.Guard, 1)
		go func() {
			g, _ := c.Acquire(ctx, key)
			got <- g
		}()
		all = append(all, got)
		synctest.Wait()
	}
	return all
}

// The lock is handed over with one call to the backend for the whole turn, in order, and every
// holder has a greater token than the last.
func TestHandoff(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{LocalBatch: 4})
		other := client(t, faults, dlock.Config{})
		first := acquire(t, c, "k")
		waiters := queueUp(t, c, ctx, "k", 7)
		stranger := async(func() *dlock.Guard { return acquire(t, other, "k") })
		synctest.Wait()
		calls := faults.Calls(faultdriver.Acquire) + faults.Calls(faultdriver.Release)
		token := first.Token()
		unlock(t, first)
		for _, got := range waiters[:4] {
			synctest.Wait()
			g := <-got
			if g.Token() <= token || g.Key() != "k" || g.Remaining() <= 0 {
				t.Errorf("token %d after %d, %v left", g.Token(), token, g.Remaining())
			}
			alive(t, g)
			token = g.Token()
			unlock(t, g)
			ended(t, g, context.Canceled)
			wantErr(t, g.Unlock(ctx), dlock.ErrLockNotHeld)
		}
		synctest.Wait()
		if now := faults.Calls(faultdriver.Acquire) + faults.Calls(faultdriver.Release); now != calls+2 {
			t.Errorf("%d calls for a turn, not one release and one claim for the next", now-calls)
		}
		ended(t, first, context.Canceled)
		g := <-stranger // the turn has ended: other Clients come before the remaining waiters
		if g.Token() <= token {
			t.Errorf("token %d after %d", g.Token(), token)
		}
		token = g.Token()
		unlock(t, g)
		for _, got := range waiters[4:] {
			g := <-got
			if g.Token() <= token {
				t.Errorf("token %d after %d", g.Token(), token)
			}
			token = g.Token()
			unlock(t, g)
		}
		synctest.Wait()
		free(t, c, "k")
	})
}

// A turn is also limited in time.
func TestHandoffTurnEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{LocalBatch: 1000}), client(t, store, dlock.Config{})
		first := acquire(t, c, "k")
		waiters := queueUp(t, c, ctx, "k", 1)
		stranger := async(func() *dlock.Guard { return acquire(t, other, "k") })
		synctest.Wait()
		elapse(6 * time.Millisecond)
		unlock(t, first)
		unlock(t, <-stranger)
		unlock(t, <-waiters[0])
	})
}

// A waiter that gives up leaves its place in the queue to those behind it.
func TestHandoffKeepsItsPlace(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{LocalBatch: 8}), client(t, store, dlock.Config{})
		holder := acquire(t, other, "k")
		impatient, cancel := context.WithCancel(ctx)
		first := queueUp(t, c, impatient, "k", 1)
		second := queueUp(t, c, ctx, "k", 1)
		stranger := async(func() *dlock.Guard { return acquire(t, other, "k") })
		synctest.Wait()
		cancel()
		if g := <-first[0]; g != nil {
			t.Error("a call that was given up has the lock")
		}
		unlock(t, holder)
		unlock(t, <-second[0])
		unlock(t, <-stranger)
	})
}

// A waiter that joins while the acquisition for others is being canceled does not get their
// cancellation.
func TestHandoffJoinedWhileGivingUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		gate := make(chan struct{})
		var attempts atomic.Int64
		store := &scripted{Opener: memlock.New(), acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			switch attempts.Add(1) {
			case 1: // of the first call itself
				return driver.State{}, driver.Classify(errors.New("busy"), driver.Transient)
			case 2:
				<-gate // ignores the context
			}
			return d.Acquire(ctx, r)
		}}
		c := client(t, store, dlock.Config{LocalBatch: 8})
		impatient, cancel := context.WithCancel(ctx)
		first := queueUp(t, c, impatient, "k", 1)
		time.Sleep(time.Second)
		if n := attempts.Load(); n != 2 {
			t.Fatalf("%d attempts", n)
		}
		cancel()
		<-first[0]
		second := async(func() error {
			g, err := c.Acquire(ctx, "k")
			if err == nil {
				err = g.Unlock(ctx)
			}
			return err
		})
		synctest.Wait()
		close(gate)
		if err := <-second; err != nil {
			t.Error(err)
		}
	})
}

// If no waiter is left in the local queue, nothing is left at the backend.
func TestHandoffGivesUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c, other := client(t, store, dlock.Config{LocalBatch: 8}), client(t, store, dlock.Config{})
		holder := acquire(t, other, "k")
		impatient, cancel := context.WithCancel(ctx)
		all := queueUp(t, c, impatient, "k", 3)
		_, err := c.Acquire(ctx, "k", dlock.WithWait(time.Second))
		wantErr(t, err, dlock.ErrLockHeldByOther)
		cancel()
		for _, got := range all {
			<-got
		}
		synctest.Wait()
		if claims := inspect(t, c, "k"); len(claims) != 1 {
			t.Errorf("claims %v", claims)
		}
		unlock(t, holder)
		free(t, c, "k")
		if n := c.Entries(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

// A lock that was handed over is renewed like any other.
func TestHandoffRenews(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{LocalBatch: 8, DefaultTTL: 3 * second})
		first := acquire(t, c, "k")
		waiters := queueUp(t, c, ctx, "k", 2)
		unlock(t, first)
		g := <-waiters[0]
		elapse(100 * second)
		alive(t, g)
		unlock(t, g)
		h := <-waiters[1]
		if h.Token() <= g.Token() {
			t.Errorf("token %d after %d", h.Token(), g.Token())
		}
		last := queueUp(t, c, ctx, "k", 1)
		if err := h.Extend(ctx, 10*second); err != nil {
			t.Fatal(err)
		}
		unlock(t, h) // a lock with another TTL is not handed over
		g = <-last[0]
		if left := g.Remaining(); left > 3*second || g.Token() <= h.Token() {
			t.Errorf("%v left, token %d after %d", left, g.Token(), h.Token())
		}
		unlock(t, g)
	})
}

// A loss ends the turn of one holder, and the next one gets its own claim.
func TestHandoffLoss(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{LocalBatch: 8})
		first := acquire(t, c, "k")
		waiters := queueUp(t, c, ctx, "k", 2)
		unlock(t, first)
		g := <-waiters[0]
		a, err := c.Admin()
		if err != nil {
			t.Fatal(err)
		}
		claims := inspect(t, c, "k")
		if err := a.Evict(ctx, "k", claims[0].Token); err != nil {
			t.Fatal(err)
		}
		h := <-waiters[1]
		ended(t, g, dlock.ErrOwnershipLost)
		if h.Token() <= g.Token() {
			t.Errorf("token %d after %d", h.Token(), g.Token())
		}
		wantErr(t, g.Unlock(ctx), dlock.ErrOwnershipLost)
		alive(t, h)
		unlock(t, h)
		synctest.Wait()
		free(t, c, "k")
	})
}

// A lock that cannot be renewed is not handed over.
func TestHandoffIsCareful(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{LocalBatch: 8, DefaultTTL: 12 * time.Millisecond})
		first := acquire(t, c, "k")
		waiters := queueUp(t, c, ctx, "k", 1)
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Fail})
		elapse(4500 * time.Microsecond) // the turn has not ended, and a renewal was due
		if faults.Injected(faultdriver.Fail) == 0 {
			t.Fatal("no renewal has failed")
		}
		releases := faults.Calls(faultdriver.Release)
		unlock(t, first)
		g := <-waiters[0]
		if faults.Calls(faultdriver.Release) != releases+1 {
			t.Error("passed on, though its renewal had failed")
		}
		unlock(t, g)
	})
}

func TestHandoffClose(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{LocalBatch: 8})
		g := acquire(t, c, "k")
		errs := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := c.Acquire(ctx, "k")
				errs <- err
			}()
		}
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for range 3 {
			wantErr(t, <-errs, dlock.ErrClosed)
		}
		ended(t, g, dlock.ErrClosed)
	})
}

// Calls with other settings do not share a claim.
func TestHandoffOfEqualsOnly(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{LocalBatch: 8})
		for name, opt := range map[string]dlock.LockOption{
			"TTL": dlock.WithTTL(second), "margin": dlock.WithMargin(second), "owner": dlock.WithInfo(dlock.Info{Owner: "another"}),
			"no renewal": dlock.WithoutRenewal(), "least hold": dlock.WithMinHold(time.Millisecond), "longest hold": dlock.WithMaxHold(time.Hour),
			"shared": dlock.WithShared(), "permit": dlock.WithPermits(1),
		} {
			first := acquire(t, c, name)
			got := async(func() *dlock.Guard { return acquire(t, c, name, opt) })
			synctest.Wait()
			if claims := inspect(t, c, name); len(claims) != 2 {
				t.Errorf("%s: claims %v", name, claims)
			}
			unlock(t, first)
			unlock(t, <-got)
		}
		g := acquire(t, c, "k")
		_, err := c.TryAcquire(ctx, "k")
		wantErr(t, err, dlock.ErrLockHeldByOther)
		unlock(t, g)
	})
}

func TestHandoffNeedsTokens(t *testing.T) {
	store := &scripted{Opener: memlock.New(), caps: func(c *driver.Caps) { c.TokenRange = false }}
	_, err := dlock.New(&dlock.Config{LocalBatch: 1}, dlock.WithBackend(store))
	if !errors.Is(err, dlock.ErrUnsupported) || !strings.Contains(err.Error(), "LocalBatch") {
		t.Error(err)
	}
	for _, n := range []int{-1, 1<<16 + 1} {
		_, err := dlock.New(&dlock.Config{LocalBatch: n}, dlock.WithBackend(memlock.New()))
		wantErr(t, err, dlock.ErrInvalidConfig)
	}
}

// Many goroutines of several Clients, some of which give up at any moment: there are never two
// holders, tokens only increase, and nothing is left.
func TestHandoffRandom(t *testing.T) {
	store := memlock.New()
	var clients []*dlock.Client
	for range 3 {
		clients = append(clients, client(t, store, dlock.Config{LocalBatch: 5}))
	}
	var inside, last, taken atomic.Int64
	var all sync.WaitGroup
	for i := range 24 {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		all.Go(func() {
			for range times(300, 10_000) {
				ctx, cancel := context.WithTimeout(ctx, time.Duration(random.IntN(3000))*time.Microsecond)
				g, err := clients[i%3].Acquire(ctx, "k")
				if err == nil {
					taken.Add(1)
					if inside.Add(1) != 1 {
						t.Error("two at a time")
					}
					if before := last.Swap(g.Token()); before >= g.Token() {
						t.Errorf("token %d after %d", g.Token(), before)
					}
					inside.Add(-1)
					if err := g.Unlock(context.Background()); err != nil {
						t.Error(err)
					}
				}
				cancel()
			}
		})
	}
	all.Wait()
	if taken.Load() == 0 {
		t.Error("the lock was never held")
	}
	eventually(t, "everything is cleaned up", func() bool {
		left := len(inspect(t, clients[0], "k"))
		for _, c := range clients {
			left += c.Entries() + c.Unanswered()
		}
		return left == 0
	})
}

// A tardyContext gets its Err from a function of the test.
type tardyContext struct {
	context.Context
	end func() error
}

func (c *tardyContext) Err() error { return c.end() }

// The machine is suspended for longer than the lease while the lock is handed to a call that has
// given up. The claim has then expired, and the next waiter gets its own claim.
func TestHandoffRefusedAfterTheLease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var slept atomic.Int64
		store := memlock.New()
		c := client(t, store, dlock.Config{LocalBatch: 8}, dlock.WithSleptClock(func() time.Duration { return time.Duration(slept.Load()) }))
		first := acquire(t, c, "k")
		var handed atomic.Bool
		tardy := &tardyContext{ctx, func() error {
			if !handed.Load() {
				return nil
			}
			if slept.Swap(int64(time.Minute)) == 0 {
				store.Advance(time.Minute)
			}
			return context.Canceled
		}}
		gone := queueUp(t, c, tardy, "k", 1)
		next := queueUp(t, c, ctx, "k", 1)
		handed.Store(true)
		unlock(t, first)
		if g := <-gone[0]; g != nil {
			t.Fatal("a call that was given up has the lock")
		}
		g := <-next[0]
		alive(t, g)
		if claims := inspect(t, c, "k"); len(claims) != 1 || claims[0].Token != g.Token() {
			t.Errorf("token %d, claims %v", g.Token(), claims)
		}
		unlock(t, g)
	})
}

// A claim reserves tokens for the handoffs that are likely, not for all that LocalBatch allows: unused
// tokens move the counter of a backend ahead of the time.
func TestHandoffReservesWhatItNeeds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		c := client(t, memlock.New(), dlock.Config{LocalBatch: 1000})
		reserved := func(g *dlock.Guard) int64 { return inspect(t, c, "k")[0].LastToken - g.Token() }
		lone := acquire(t, c, "k")
		if n := reserved(lone); n > 8 {
			t.Errorf("a lone caller reserves %d tokens more than its own", n)
		}
		waiters := queueUp(t, c, ctx, "k", 40)
		unlock(t, lone)
		handed := 0
		for _, got := range waiters {
			synctest.Wait()
			g := <-got
			if handed == 8 { // the first of the next turn, with 31 behind it
				if n := reserved(g); n < 31 || n > 64 {
					t.Errorf("with 31 more waiters, %d more tokens are reserved", n)
				}
			}
			handed++
			unlock(t, g)
		}
	})
}
