package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A holderLog records which claims consider themselves holders of one lock, and finds holders that
// overlap and tokens that do not increase.
type holderLog struct {
	mu       sync.Mutex
	inside   map[int64]int // by token
	last     int64
	entries  int
	overlaps int
	most     int
	first    string // the first violation
	unknown  int    // releases that were still in progress when Unlock returned
}

// enter records a holder by its token.
func (h *holderLog) enter(token int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inside == nil {
		h.inside = map[int64]int{}
	}
	h.entries++
	if len(h.inside) > 0 {
		h.overlaps++
		h.record(fmt.Sprintf("token %d enters while %v holds", token, h.inside))
	}
	if token <= h.last {
		h.record(fmt.Sprintf("token %d enters after %d", token, h.last))
	}
	h.last = max(h.last, token)
	h.inside[token]++
	h.most = max(h.most, len(h.inside))
}

func (h *holderLog) leave(token int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inside[token]--
	if h.inside[token] == 0 {
		delete(h.inside, token)
	}
}

func (h *holderLog) record(violation string) {
	if h.first == "" {
		h.first = violation
	}
}

// hold enters, stays for a while or until the lock is lost, leaves and unlocks.
func (h *holderLog) hold(g *dlock.Guard, stay time.Duration) error {
	h.enter(g.Token())
	timer := time.NewTimer(stay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.Done():
	}
	h.leave(g.Token())
	return h.unlock(g)
}

// unlock releases a lock. A node that was just demoted refuses, and the release then continues in
// the background: that delays the next holder but does no harm.
func (h *holderLog) unlock(g *dlock.Guard) error {
	err := g.Unlock(context.Background())
	if !errors.Is(err, dlock.ErrUnknownOutcome) {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unknown++
	return nil
}

// check fails the test if there was ever more than one holder, or a token out of order.
func (h *holderLog) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.first != "" {
		t.Fatalf("%d overlaps in %d acquisitions, %d holders at once; first: %s", h.overlaps, h.entries, h.most, h.first)
	}
}

// serveWaiters lets many callers of several Clients wait for a key, calls between when all of them
// are queued, and returns when each has held the key once.
func serveWaiters(t *testing.T, clients []*dlock.Client, key string, waiters int, log *holderLog, between func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	first, err := clients[0].Acquire(ctx, key, dlock.WithTTL(time.Minute))
	check(t, err)
	log.enter(first.Token())
	errs := make(chan error, waiters)
	for i := range waiters {
		c := clients[i%len(clients)]
		go func() {
			g, err := c.Acquire(ctx, key)
			if err == nil {
				err = log.hold(g, 5*time.Millisecond)
			}
			errs <- err
		}()
	}
	awaitQueued(t, clients[0], key, waiters)
	between()
	alive(t, first)
	log.leave(first.Token())
	check(t, log.unlock(first))
	for i := range waiters {
		err := <-errs
		log.check(t)
		if err != nil {
			cancel()
			t.Fatalf("%d of %d waiters served, then %v", i, waiters, err)
		}
	}
}

// awaitQueued waits until this many callers are queued for a key.
func awaitQueued(t testing.TB, c *dlock.Client, key string, want int) {
	t.Helper()
	testenv.Eventually(t, 30*time.Second, fmt.Sprintf("%d are queued", want), func() bool { return countQueued(t, c, key) == want })
}

// clusterClients returns Clients, each with its own cluster client.
func clusterClients(t *testing.T, cl *servers.Cluster, n int) []*dlock.Client {
	t.Helper()
	var all []*dlock.Client
	for range n {
		all = append(all, locksOn(t, redislock.New(clusterClient(t, cl)), dlock.Config{}))
	}
	return all
}

// count returns how often the lock was held so far.
func (h *holderLog) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.entries
}
