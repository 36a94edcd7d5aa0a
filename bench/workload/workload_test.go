package workload

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/bench/peer"
	"github.com/ceyewan/genesis/internal/stats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A queue is a fair lock in memory; with broken set, one without mutual exclusion.
type queue struct {
	mu     *sync.Mutex
	broken bool
	fails  *atomic.Int64 // so many calls to come
}

func (q queue) Lock(context.Context, string) (peer.Lock, error) {
	if q.fails != nil && q.fails.Add(-1) >= 0 {
		return nil, peer.ErrGaveUp
	}
	if !q.broken {
		q.mu.Lock()
	}
	return q, nil
}

func (q queue) Unlock(context.Context) error {
	if !q.broken {
		q.mu.Unlock()
	}
	return nil
}

func (q queue) Close() error { return nil }

func contendOn(t *testing.T, q queue, section, lasts time.Duration) *Outcome {
	t.Helper()
	w := &worker{}
	for range 4 {
		w.clients = append(w.clients, q)
	}
	o, err := w.contend(Contention{Key: "k", Clients: 4, Section: section, For: lasts, Witness: filepath.Join(t.TempDir(), "witness")})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// lasts is so long that clients have a turn in a round even if they are stopped at first.
const lasts = 2 * time.Second

func TestOverlapsAreSeen(t *testing.T) {
	t.Parallel()
	if o := contendOn(t, queue{mu: &sync.Mutex{}}, 10*time.Millisecond, lasts); o.Trouble.Overlaps != 0 || sum(o.Shares) == 0 {
		t.Errorf("%+v", o)
	}
	if o := contendOn(t, queue{broken: true}, 10*time.Millisecond, lasts); o.Trouble.Overlaps == 0 {
		t.Errorf("not seen: %+v", o)
	}
}

func TestErrorsAreSeen(t *testing.T) {
	t.Parallel()
	q := queue{mu: &sync.Mutex{}, fails: &atomic.Int64{}}
	q.fails.Store(3)
	if o := contendOn(t, q, 10*time.Millisecond, lasts); o.Trouble.GaveUp != 3 || o.Trouble.Errors != 0 || sum(o.Shares) == 0 {
		t.Errorf("%+v", o)
	}
}

// Waits that are open at the end count, and a client that starves is not hidden by the many
// short waits of others.
func TestWaitsAreWeighted(t *testing.T) {
	var waits []float64
	for range 999 {
		waits = append(waits, 0.001)
	}
	waits = append(waits, 60)
	c := &contention{Contention: Contention{Clients: 1}, runners: []*runner{{waits: waits, handOffs: waits}}}
	if o := c.outcome(); o.Waits.P50 != 60 || o.HandOffs.P50 != 0.001 {
		t.Errorf("%+v", o)
	}
	if w := waitsAt(waits, stats.PercentileByTime); w.P50 != 60 || w.P99 != 60 || w.Max != 60 {
		t.Errorf("%+v", w)
	}
	if w := waitsAt(waits, stats.Percentile); w.P99 != 0.001 || w.Max != 60 {
		t.Errorf("%+v", w)
	}
	if n := starved([]int{10, 0, 10}); n != 1 {
		t.Error(n)
	}
	if n := starved([]int{1, 0, 1}); n != 0 {
		t.Error("a short round starves no client", n)
	}
}

// A holder that keeps the key for the whole round leaves the others with open waits.
func TestOpenWaitsCount(t *testing.T) {
	t.Parallel()
	o := contendOn(t, queue{mu: &sync.Mutex{}}, 3*time.Second, 2*time.Second)
	// Others may begin late on a busy machine. If open waits did not count, no client would have waited.
	if sum(o.Shares) > 2 || o.Waits.P50 < 0.2 || o.Waits.Max > o.Seconds {
		t.Errorf("%+v", o)
	}
}

func TestWitnessIsShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	a, errA := openWitness(path)
	b, errB := openWitness(path)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = a.close(), b.close() }()
	if a.enter(1) || !b.enter(2) {
		t.Error("another mapping does not see who is inside")
	}
	a.leave(1) // 2 is inside now
	if !a.enter(3) {
		t.Error("leaving has removed another client")
	}
}
