package dlock_test

import (
	"testing"

	"github.com/ceyewan/genesis/internal/sim"
	"github.com/ceyewan/genesis/internal/sim/simtest"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/suspend"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// simulations simulate the engine on a memory store.
func simulations() simtest.Suite {
	return simtest.Suite{
		Command: "go test -run TestSimulation -v ./pkg/dlock",
		Settings: sim.Settings{
			Modes: []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}, Fences: true, Local: true, Sleeps: true, FIFO: true, Exact: true,
		},
		Open: func(s *sim.Simulation) (sim.Store, func() error, error) {
			suspend.Simulate(s.Slept)
			return memoryStore{memlock.New(), s}, func() error { suspend.Simulate(nil); return nil }, nil
		},
		Failed: []uint64{
			16,    // a waiter got an error of a deadline that it never had
			67,    // a suspend was detected late
			8068,  // a grant that ended in a suspend was reported as held by another
			10639, // the same for a place in the queue
			53717, // the same for a wait for a release that was not answered
			683,   // a release that was answered after the lease was reported as a loss
			59299, // a lock that was evicted before the answer was delivered to its caller
			76847, // the oracle took the end of a lease for that of a maximum hold
			47851, // the oracle judged an Unlock after that of another user
			66160, // the oracle expected to know how a lock ended whose lease had passed
			98124, // the oracle did not expect an eviction before the answer
			45107, // the oracle forgot a grant that was evicted and stored again
			11805, // a cleanup waited for another one in progress
			33519, // the minimum hold of a user that was blocked by its logger
			39939, // a loss and the next grant in one answer, for the same Client
			// The oracle did not expect a permit that was evicted while a logger held up its user.
			109897,
			// A lock that must not be renewed was extended after an event during an attempt to renew that failed.
			312624,
		},
		Few: 1000, Full: 100_000, Raced: 40, Tries: 5,
	}
}

func TestSimulation(t *testing.T) { simulations().Run(t) }

// The same with users who do not wait for all of their unlocks.
func TestSimulationAsyncUnlock(t *testing.T) {
	s := simulations()
	s.Command = "go test -run TestSimulationAsyncUnlock -v ./pkg/dlock"
	s.Settings.Async, s.Failed, s.Few, s.Full = true, nil, 400, 20_000
	s.Run(t)
}

// The same with users who also lock all keys together.
func TestSimulationSeveralKeys(t *testing.T) {
	s := simulations()
	s.Command = "go test -run TestSimulationSeveralKeys -v ./pkg/dlock"
	s.Settings.Several, s.Settings.Async, s.Few, s.Full = true, true, 400, 20_000
	// The oracle did not expect a Close while a tracer held up Unlock (2372, 2678), nor a renewal that was answered too late (383).
	s.Failed = []uint64{2372, 2678, 383}
	s.Run(t)
}

// The same with users who also ask for margins and for holders, leave locks to their leases, and extend several together.
func TestSimulationRest(t *testing.T) {
	s := simulations()
	s.Command = "go test -run 'TestSimulationRest$' -v ./pkg/dlock"
	s.Settings.Several, s.Settings.Async, s.Settings.Rest, s.Few, s.Full = true, true, true, 400, 20_000
	// A longer Extend after a shorter one without an answer lost the lock (48). The oracle did not expect the push of a grant after
	// the lease to which the lock was left (1435), nor that one lost by WithMaxHold is left (1837), nor a logger
	// that blocks Leave for longer than the lease (2263).
	s.Failed = []uint64{48, 1435, 1837, 2263}
	s.Run(t)
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
		panic(err) // a memory store never fails to open
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
