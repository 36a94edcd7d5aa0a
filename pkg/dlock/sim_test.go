package dlock_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/sim"
	"github.com/ceyewan/genesis/internal/sim/simtest"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/suspend"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// simulations are of the engine over a memory store.
func simulations() simtest.Suite {
	few := 2000
	if raced {
		few /= 20
	}
	return simtest.Suite{
		Command: "go test -run TestSimulation -v ./pkg/dlock",
		Settings: sim.Settings{
			Modes: []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}, Fences: true, Local: true, Sleeps: true, FIFO: true,
		},
		Open: func(s *sim.Simulation) (sim.Store, func() error, error) {
			suspend.Simulate(s.Slept)
			return memoryStore{memlock.New(), s}, func() error { suspend.Simulate(nil); return nil }, nil
		},
		Failed: []uint64{
			16,    // a waiter was told of a deadline that it never had
			67,    // a suspend was noticed late
			8068,  // a grant made void by a suspend was "held by another"
			10639, // and a place in the queue
			53717, // and a wait for a release that was not answered
			683,   // a release that was answered after the lease was told as a loss
			59299, // a lock that was evicted before the answer came was handed to its caller
			76847, // the oracle took a lease that had ended for a longest hold
			47851, // the oracle judged an Unlock after another user's
			66160, // the oracle wanted to know how a lock ended whose lease was over
			98124, // the oracle did not expect an eviction before the answer
			45107, // the oracle forgot a grant that was evicted and stored again
		},
		Few: few, Full: 100_000, Tries: 5,
	}
}

func TestSimulation(t *testing.T) { simulations().Run(t) }

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
	allowed := seeds / 10
	if raced { // it shuffles goroutines
		allowed = seeds / 2
	}
	if differ > allowed {
		t.Errorf("%d of %d seeds do not replay", differ, seeds)
	}
}

// story is everything that happens under a seed, in order but for what happens at one
// instant.
func story(t *testing.T, seed uint64) []string {
	t.Helper()
	s, _ := simulations().One(t, seed, true)
	lines := strings.Split(s.Report(), "\n")
	slices.Sort(lines)
	return lines
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
