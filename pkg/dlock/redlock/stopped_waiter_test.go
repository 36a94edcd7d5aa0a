package redlock_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A waiter whose process is stopped is told once that it is its turn. Until it is forgotten, others get the lock about as
// often as without it, also one that is the only other and so never waits when it unlocks.
func TestStoppedWaiterCostsOneTurn(t *testing.T) {
	s := start(t, 3).straight(t)
	clients := []*dlock.Client{locksOn(t, s.clients, dlock.Config{}, patient), locksOn(t, s.clients, dlock.Config{}, patient)}
	const period = 2 * time.Second
	var without [2]int64
	for i := range clients {
		without[i] = acquisitions(t, clients[:i+1], period)
	}
	holder, known := acquire(t, clients[0], "k"), s.channels(t)
	r := driver.Request{Ref: claim(1), Wait: true}
	r.QueueTTL = time.Minute
	submit(t, s.open(t, patient), r, driver.Queued) // it does nothing more
	testenv.Eventually(t, patience, "all nodes can tell it", func() bool {
		for channel, n := range s.channels(t) {
			if n == len(s.direct) && known[channel] == 0 {
				return true
			}
		}
		return false
	})
	unlock(t, holder)
	unlock(t, acquire(t, clients[0], "k")) // after its turn, which may be as long as the period
	for i := range clients {
		with := acquisitions(t, clients[:i+1], period)
		t.Logf("%d Clients: %d acquisitions without it, %d with it", i+1, without[i], with)
		if with < without[i]/40 {
			t.Errorf("%d Clients: %d acquisitions next to a waiter that is stopped, %d without it", i+1, with, without[i])
		}
	}
}

// channels returns on how many nodes each channel of a Client is subscribed to.
func (s *set) channels(tb testing.TB) map[string]int {
	tb.Helper()
	on := map[string]int{}
	for _, c := range s.direct {
		channels, err := c.PubSubChannels(tb.Context(), "dlock:\x01*").Result()
		check(tb, err)
		for _, channel := range channels {
			on[channel]++
		}
	}
	return on
}

// acquisitions returns how often Clients together lock a key within a time.
func acquisitions(tb testing.TB, clients []*dlock.Client, period time.Duration) int64 {
	tb.Helper()
	var n atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(period)
	for _, c := range clients {
		wg.Go(func() {
			for time.Now().Before(end) {
				g, err := c.Acquire(tb.Context(), "k")
				if err != nil {
					tb.Error(err)
					return
				}
				n.Add(1)
				began := time.Now()
				err = g.Unlock(tb.Context())
				if err != nil && !hazardtest.GaveUp(tb, err, began) {
					tb.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return n.Load()
}
