package dlock_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"

	"github.com/ceyewan/genesis/internal/sim"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A seed that failed once stays here for ever, with what was wrong.
var failedSeeds = []uint64{
	16,    // a waiter was told of a deadline that it never had
	67,    // a suspend was noticed late
	8068,  // a grant made void by a suspend was "held by another"
	10639, // and a place in the queue
	53717, // and a wait for a release that was not answered
}

// TestSimulation runs simulations of the engine over a memory store. DLOCK_SEED runs one of
// them and prints every message.
func TestSimulation(t *testing.T) {
	if text := os.Getenv("DLOCK_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		s, failures := simulate(t, seed, true)
		t.Log(s.Report())
		if len(failures) > 0 {
			t.Fail()
		}
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
	s, failures := simulate(t, seed, false)
	if len(failures) > 0 {
		t.Errorf("%s\nDLOCK_SEED=%d go test -run TestSimulation -v ./pkg/dlock", s.Report(), seed)
	}
}

// simulate runs one seed to its end.
func simulate(t *testing.T, seed uint64, verbose bool) (s *sim.Simulation, failures []string) {
	t.Helper()
	t.Run(fmt.Sprint(seed), func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		virtual(t, func(*testing.T) {
			s = sim.New(sim.Settings{
				Seed: seed, Verbose: verbose, Modes: []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}, Fences: true, Local: true, Sleeps: true, FIFO: true,
				Options: func(string) []dlock.Option { return []dlock.Option{dlock.WithSleptClock(s.Slept)} },
			})
			failures = s.Run(memoryStore{memlock.New(), s})
		})
	})
	return s, failures
}

// memoryStore is a Store of the memory backend behind a simulated network.
type memoryStore struct {
	*memlock.Store
	sim *sim.Simulation
}

func (m memoryStore) Backend(string) driver.Opener { return m.sim.Remote(m.Store) }

func (m memoryStore) admin(use func(driver.Admin)) {
	d, err := m.Open(driver.Options{})
	if err != nil {
		panic(err) // a store in memory has no reason to refuse
	}
	defer d.Close()
	use(d.(driver.Admin))
}

func (m memoryStore) Claims(key string) (claims []driver.Claim) {
	m.admin(func(a driver.Admin) { claims, _ = a.Inspect(ctx, key) })
	return claims
}

func (m memoryStore) Evict(key, id string, token int64) {
	m.admin(func(a driver.Admin) { _, _ = a.Evict(ctx, key, id, token) })
}

// A seed replays: every message and every answer is the same, at the same time. What is
// left to chance is the order of a few goroutines that one cause wakes, such as Close.
func TestSimulationReplays(t *testing.T) {
	const seeds = 40
	differ := 0
	for seed := range uint64(seeds) {
		if !slices.Equal(story(t, seed), story(t, seed)) {
			differ++
		}
	}
	t.Logf("%d of %d seeds differ", differ, seeds)
	if differ > seeds/10 {
		t.Errorf("%d of %d seeds do not replay", differ, seeds)
	}
}

// story is everything that happens under a seed, in order but for what happens at one
// instant.
func story(t *testing.T, seed uint64) []string {
	t.Helper()
	s, _ := simulate(t, seed, true)
	lines := strings.Split(s.Report(), "\n")
	slices.Sort(lines)
	return lines
}
