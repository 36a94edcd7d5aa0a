package redlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A waiter is released while a renewal of it is about to ask the nodes: whatever the renewal does
// then, no node lists the waiter afterwards.
func TestReleasedWaiterIsNotShownAgain(t *testing.T) {
	d, listed := openOnThree(t)
	ctx := context.Background()
	holder := driver.Ref{Key: "k", ID: fmt.Sprintf("%032x", 1), TTL: time.Hour}
	if st, err := d.Acquire(ctx, driver.Request{Ref: holder}); err != nil || st.Phase != driver.Held {
		t.Fatalf("acquired: %v, %v", st.Phase, err)
	}
	id := 1
	for name, renewal := range renewalsOf(t, d) {
		t.Run(name, func(t *testing.T) {
			id++ // a node may have a tombstone of the last one
			waiter := driver.Ref{Key: "k", ID: fmt.Sprintf("%032x", id), TTL: time.Hour}
			if st, err := d.Acquire(ctx, driver.Request{Ref: waiter, Wait: true}); err != nil || st.Phase != driver.Queued {
				t.Fatalf("waits: %v, %v", st.Phase, err)
			}
			testenv.Eventually(t, time.Minute, "all nodes list it", func() bool {
				if listed() == 3 {
					return true
				}
				_, _ = d.Renew(ctx, []driver.Ref{waiter}) // a node may have been too slow for the first call
				return listed() == 3
			})
			q := d.enter("k")
			defer d.leave(q)
			d.mu.Lock()
			c := d.claims[claimID{"k", waiter.ID}]
			d.mu.Unlock()
			if renewal.late {
				d.retire(waiter)
			} else if _, err := d.Release(ctx, waiter); err != nil {
				t.Fatal(err)
			}
			if st := renewal.continues(q, c); st.Phase != driver.Gone {
				t.Errorf("the released waiter is %v", st.Phase)
			}
			testenv.Eventually(t, 20*time.Second, "no node lists it", func() bool { return listed() == 0 })
		})
	}
}

// openOnThree opens a driver on three nodes, and returns what counts the waiters of "k" on them.
func openOnThree(t *testing.T) (d *redDriver, listed func() int64) {
	t.Helper()
	var clients []redis.UniversalClient
	for range 3 {
		c := testenv.Redis(t).Client()
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	opened, err := New(clients, WithNodeTimeout(maxNodeTimeout)).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d = opened.(*redDriver)
	t.Cleanup(func() { _ = d.Close() })
	return d, func() (waiters int64) {
		for _, c := range clients {
			n, err := c.HLen(context.Background(), d.namesOf("k").waiters).Result()
			if err != nil {
				t.Fatal(err)
			}
			waiters += n
		}
		return waiters
	}
}

// A lateRenewal goes on after its waiter was released.
type lateRenewal struct {
	late      bool // the nodes list it after the release, as they do if a call arrives late
	continues func(*waitQueue, *claim) driver.State
}

func renewalsOf(t *testing.T, d *redDriver) map[string]lateRenewal {
	t.Helper()
	ctx := context.Background()
	return map[string]lateRenewal{
		"that finds it blocked": {false, func(q *waitQueue, c *claim) driver.State {
			st, err := d.stay(ctx, q, c, time.Now(), 0)
			if err != nil {
				t.Error(err)
			}
			return st
		}},
		"that tries": {false, func(q *waitQueue, c *claim) driver.State {
			out := d.contend(ctx, c)
			defer out.rest()
			st, err := d.judge(q, c, time.Now(), out)
			if err != nil {
				t.Error(err)
			}
			return st
		}},
		"of many waiters": {false, func(_ *waitQueue, c *claim) driver.State {
			r := &renewal{driver: d, claims: []*claim{c}, states: make([]driver.State, 1)}
			r.renewQueued(ctx, []int{0})
			return r.states[0]
		}},
		"that fails": {true, func(q *waitQueue, c *claim) driver.State {
			st, err := d.judge(q, c, time.Now(), outcome{err: errNotEnough})
			if err != nil {
				t.Error(err)
			}
			return st
		}},
	}
}

// A call that is canceled before its turn comes has sent nothing, unless it did so before.
func TestCutOffBeforeItsTurn(t *testing.T) {
	for name, tt := range map[string]struct {
		c    claim
		want driver.Class
	}{
		"first":               {claim{}, driver.Transient},
		"after a round":       {claim{tried: true}, driver.Ambiguous},
		"after it was listed": {claim{shown: true}, driver.Ambiguous},
	} {
		d := threeNodes()
		q := &waitQueue{key: "k", turn: make(chan struct{}, 1)}
		q.turn <- struct{}{}
		c := tt.c
		c.key, c.id, c.phase, c.waits, c.until = "k", "id", driver.Queued, true, time.Now().Add(time.Hour)
		q.waiting = []*claim{&c}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.attempt(ctx, q, &c); !errors.Is(err, context.Canceled) || driver.ClassOf(err) != tt.want {
			t.Errorf("%s: %v, class %v", name, err, driver.ClassOf(err))
		}
	}
}
