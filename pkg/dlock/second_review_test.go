package dlock_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// far is a working store to which every call takes some time.
func far(store driver.Opener, trip time.Duration) *scripted {
	travel := func(ctx context.Context) error {
		select {
		case <-time.After(trip):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return &scripted{
		Opener: store, remote: true,
		acquire: func(ctx context.Context, d driver.Driver, r driver.Request) (driver.State, error) {
			if err := travel(ctx); err != nil {
				return driver.State{}, err
			}
			st, err := d.Acquire(context.Background(), r)
			st.Until = time.Time{}
			return st, err
		},
		release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
			if err := travel(ctx); err != nil {
				return driver.State{}, err
			}
			return d.Release(context.Background(), r)
		},
	}
}

// Callers that give up do not keep other calls of their Client from a free key.
func TestGivingUpStarvesNoWaiter(t *testing.T) {
	for _, batch := range []int{0, 8} {
		virtual(t, func(t *testing.T) {
			store := memlock.New()
			holder := acquire(t, client(t, store, dlock.Config{}), "k")
			c := client(t, far(store, 5*time.Millisecond), dlock.Config{LocalBatch: batch})
			stop := make(chan struct{})
			var impatient sync.WaitGroup
			defer impatient.Wait()
			defer close(stop)
			call := func(patience time.Duration) bool {
				limit, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				g, err := c.Acquire(limit, "k")
				if err != nil {
					return false
				}
				unlock(t, g)
				return true
			}
			for range 20 {
				impatient.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
							call(50 * time.Millisecond)
						}
					}
				})
			}
			elapse(second)
			unlock(t, holder)
			served := 0
			for range 100 {
				if call(150 * time.Millisecond) {
					served++
				}
			}
			if served < 50 {
				t.Errorf("LocalBatch %d: %d of 100 calls got a free key", batch, served)
			}
		})
	}
}

// TryLock waits for calls of its Client that gave up before it, and not for later ones.
func TestTryWaitsForEarlierDeparturesOnly(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		holder := acquire(t, client(t, store, dlock.Config{}), "k")
		c := client(t, far(store, 20*time.Millisecond), dlock.Config{})
		cancel := func() {
			limit, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			_, err := c.Acquire(limit, "k")
			wantErr(t, err, context.DeadlineExceeded)
		}
		cancel()
		unlock(t, holder)
		var later sync.WaitGroup
		for i := range 40 {
			later.Go(func() { elapse(time.Duration(5*i) * time.Millisecond); giveUpSoon(c) })
		}
		began := time.Now()
		_, _ = c.TryLock(ctx, "k")
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("a try took %v, with 20ms to the backend", took)
		}
		later.Wait()
	})
}

func giveUpSoon(c *dlock.Client) {
	limit, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, _ = c.Acquire(limit, "k")
}

// Close releases a lock that was lost by its maximum hold.
func TestCloseAfterMaxHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c := client(t, store, dlock.Config{})
		g := acquire(t, c, "k", dlock.WithTTL(time.Hour), dlock.WithMaxHold(time.Minute))
		<-g.Done()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		free(t, client(t, store, dlock.Config{}), "k")
	})
}

// A grant ends what its Client held in another mode, or with another limit of permits.
func TestGrantEndsOtherModes(t *testing.T) {
	for name, modes := range map[string][2]dlock.LockOption{
		"reader after permit":     {dlock.WithPermits(2), dlock.WithShared()},
		"permit after reader":     {dlock.WithShared(), dlock.WithPermits(2)},
		"one of 3 after one of 2": {dlock.WithPermits(2), dlock.WithPermits(3)},
		"the only one, again":     {dlock.WithPermits(1), dlock.WithPermits(1)},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				c, old := evicted(t, modes[0])
				g := acquire(t, c, "k", modes[1])
				ended(t, old, dlock.ErrOwnershipLost)
				alive(t, g)
			})
		})
	}
}

// One permit too many makes the Client verify which of them has ended.
func TestTooManyPermitsAreVerified(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty(faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
		c := client(t, faults, dlock.Config{})
		first, second := acquire(t, c, "k", dlock.WithPermits(2), dlock.WithTTL(time.Hour)), acquire(t, c, "k", dlock.WithPermits(2), dlock.WithTTL(time.Hour))
		a, err := client(t, store, dlock.Config{}).Admin()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Evict(ctx, "k", first.Token()); err != nil {
			t.Fatal(err)
		}
		third := acquire(t, c, "k", dlock.WithPermits(2))
		elapse(time.Second)
		ended(t, first, dlock.ErrOwnershipLost)
		alive(t, second)
		alive(t, third)
	})
}

// A grant that had expired is forgotten after the backend answers that the claim waits.
func TestVoidGrantIsForgotten(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var silent atomic.Bool
		var id string
		events := make(chan driver.Event, 1)
		queued := driver.State{Phase: driver.Queued}
		c := client(t, &scripted{
			Opener: memlock.New(), remote: true, events: events,
			acquire: func(_ context.Context, _ driver.Driver, r driver.Request) (driver.State, error) {
				id = r.ID
				return queued, nil
			},
			renew: func(ctx context.Context, _ driver.Driver, _ []driver.Ref) ([]driver.State, error) {
				if silent.Load() {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return []driver.State{queued}, nil
			},
		}, dlock.Config{})
		silent.Store(true)
		got := async(func() error { _, err := c.Acquire(ctx, "k", dlock.WithWait(20*second)); return err })
		elapse(3500 * time.Millisecond)
		events <- driver.Event{Key: "k", ID: id, State: driver.State{Phase: driver.Held, Token: 7}}
		synctest.Wait()
		silent.Store(false)
		if err := <-got; !errors.Is(err, dlock.ErrLockHeldByOther) {
			t.Errorf("queued and answered for 16s: %v", err)
		}
	})
}

// Of many waiters for permits, one looks up whether the limits differ.
func TestOneOfManyLooksAhead(t *testing.T) {
	var log safeBuffer
	store := memlock.New()
	acquire(t, client(t, store, dlock.Config{}), "k", dlock.WithPermits(5))
	c := client(t, store, dlock.Config{}, dlock.WithLogger(clog.FromSlog(slog.New(slog.NewTextHandler(&log, nil)))))
	waiting, cancel := context.WithCancel(ctx)
	var waiters sync.WaitGroup
	for range 500 {
		waiters.Go(func() { _, _ = c.Acquire(waiting, "k", dlock.WithPermits(3)) })
	}
	eventually(t, "all wait", func() bool { return c.Queued() == 500 })
	cancel()
	waiters.Wait()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	told := strings.Count(log.String(), "number of permits differs")
	if told == 0 || told > 50 {
		t.Errorf("%d of 500 waiters were told", told)
	}
}

// A safeBuffer may be read during writes.
type safeBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A caller whose deadline is little longer than the round trip gets a free key, even if an earlier
// call has given up.
func TestGivingUpOnceStarvesNoWaiter(t *testing.T) {
	for _, batch := range []int{0, 8} {
		virtual(t, func(t *testing.T) {
			store := memlock.New()
			holder := acquire(t, client(t, store, dlock.Config{}), "k")
			c := client(t, far(store, 50*time.Millisecond), dlock.Config{LocalBatch: batch})
			call := func() error {
				limit, cancel := context.WithTimeout(ctx, 80*time.Millisecond)
				defer cancel()
				g, err := c.Acquire(limit, "k")
				if err == nil {
					unlock(t, g)
				}
				return err
			}
			wantErr(t, call(), context.DeadlineExceeded)
			unlock(t, holder)
			var err error
			for range 20 {
				if err = call(); err == nil {
					return
				}
			}
			t.Errorf("LocalBatch %d: 20 calls for a free key: %v", batch, err)
		})
	}
}

// A context that ends after the place in the queue was lost is not reported as a lock that another
// holds.
func TestEndAfterAPlaceWasLost(t *testing.T) {
	virtual(t, func(t *testing.T) {
		gone := func(context.Context, driver.Driver, driver.Request) (driver.State, error) {
			return driver.State{Phase: driver.Gone}, nil
		}
		c := client(t, &scripted{Opener: memlock.New(), acquire: gone}, dlock.Config{})
		limit, cancel := context.WithTimeout(ctx, second)
		defer cancel()
		_, err := c.Acquire(limit, "k")
		wantErr(t, err, context.DeadlineExceeded)
		if errors.Is(err, dlock.ErrLockHeldByOther) {
			t.Errorf("it is not held: %v", err)
		}
	})
}

// A timeout of the backend itself is not reported as the end of the caller's context.
func TestAdminHidesTimeoutsOfOthers(t *testing.T) {
	late := func(context.Context) ([]driver.Finding, error) { return nil, context.DeadlineExceeded }
	_, err := client(t, &scripted{Opener: memlock.New(), check: late}, dlock.Config{}).Check(ctx)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Check = %v", err)
	}
}

// deniesEvict is a backend that refuses evictions.
type deniesEvict struct{ driver.Opener }

type deniedAdmin struct {
	driver.Driver
	driver.Admin
}

func (o deniesEvict) Open(opts driver.Options) (driver.Driver, error) {
	d, err := o.Opener.Open(opts)
	return &deniedAdmin{d, d.(driver.Admin)}, err //nolint:forcetypeassert // memlock is one
}

func (*deniedAdmin) Evict(context.Context, string, string, int64) (driver.State, error) {
	return driver.State{}, driver.Classify(driver.ErrDenied, driver.Fatal)
}

// A refused eviction is reported as such: the lock is still held.
func TestEvictRefused(t *testing.T) {
	store := memlock.New()
	g := acquire(t, client(t, store, dlock.Config{}), "k")
	a, err := client(t, deniesEvict{store}, dlock.Config{}).Admin()
	if err != nil {
		t.Fatal(err)
	}
	err = a.Evict(ctx, "k", g.Token())
	wantErr(t, err, dlock.ErrDenied)
	if errors.Is(err, dlock.ErrLockNotHeld) {
		t.Error(err)
	}
	alive(t, g)
}
