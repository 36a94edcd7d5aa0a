package dlock_test

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// The simulator: seeded worlds in virtual time, in which everything that the library offers
// is used at once over a network that delays, loses, repeats and reorders messages. See
// docs/reliability.md.

// A seed that failed once stays here for ever, with what was wrong.
var failedSeeds = []uint64{
	16,    // a waiter was told of a deadline that it never had
	67,    // a suspend was noticed late
	8068,  // a grant made void by a suspend was "held by another"
	10639, // and a place in the queue
	53717, // and a wait for a release that was not answered
}

// TestSimulation runs worlds. DLOCK_SEED runs one of them and tells its story.
func TestSimulation(t *testing.T) {
	if text := os.Getenv("DLOCK_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		w := simulate(t, seed, true)
		t.Log(w.report())
		return
	}
	for _, seed := range failedSeeds {
		judgeSeed(t, seed)
	}
	first, n := 1, times(2000, 100_000)
	if raced {
		n /= 20
	}
	if text := os.Getenv("DLOCK_SEEDS"); text != "" {
		if _, err := fmt.Sscanf(text, "%d-%d", &first, &n); err != nil {
			t.Fatalf("DLOCK_SEEDS=%s: want FIRST-LAST", text)
		}
		n -= first - 1
	}
	for i := range n {
		judgeSeed(t, uint64(first+i))
		if t.Failed() {
			return
		}
	}
}

func judgeSeed(t *testing.T, seed uint64) {
	t.Helper()
	if w := simulate(t, seed, false); len(w.bugs) > 0 {
		t.Errorf("%s\nDLOCK_SEED=%d go test -run TestSimulation -v ./pkg/dlock", w.report(), seed)
	}
}

// simulate runs one world to its end.
func simulate(t *testing.T, seed uint64, verbose bool) (w *world) {
	t.Helper()
	virtual(t, func(*testing.T) {
		w = newWorld(seed)
		w.verbose = verbose
		w.run()
	})
	return w
}

// patienceOfWorlds is when everybody must have got what it waits for.
const patienceOfWorlds = 20 * time.Minute

func (w *world) run() {
	r := w.draw("crew")
	done := make(chan struct{})
	var users, others sync.WaitGroup
	others.Go(func() { w.suspend(done) })
	others.Go(func() {
		select {
		case <-time.After(90 * time.Second):
		case <-done:
		}
		w.healed.Store(true)
	})
	var processes []*process
	for i := range 2 + r.IntN(2) {
		p := &process{world: w, name: fmt.Sprintf("process %d ", i), cfg: dlock.Config{
			DefaultTTL: 5 * time.Second, EnableReentrant: r.IntN(2) == 0, LocalBatch: r.IntN(2) * r.IntN(10),
		}}
		if err := p.restart(); err != nil {
			panic(err)
		}
		processes = append(processes, p)
		for j := range 1 + r.IntN(3) {
			u := &user{world: w, process: p, name: fmt.Sprintf("user %d.%d", i, j)}
			u.r = w.draw(u.name)
			users.Go(func() { u.run(4 + u.r.IntN(8)) })
		}
	}
	ended := make(chan struct{})
	go func() { users.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patienceOfWorlds):
		w.mu.Lock()
		w.bug("stuck", "somebody still waits after %v", patienceOfWorlds)
		w.mu.Unlock()
	}
	close(done)
	others.Wait()
	for _, p := range processes {
		_ = p.get().Close()
	}
	users.Wait()
	w.mail.Wait()
}
