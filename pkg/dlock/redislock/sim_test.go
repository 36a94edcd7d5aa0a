package redislock_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/sim"
	"github.com/ceyewan/genesis/internal/sim/simredis"
	"github.com/ceyewan/genesis/internal/sim/simtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/suspend"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// TestScriptSimulation runs simulations of the engine, the driver and the scripts on a real
// server, in virtual time.
func TestScriptSimulation(t *testing.T) {
	addr := testenv.Redis(t).Addr()
	simtest.Suite{
		Command:  "go test -run TestScriptSimulation -v ./pkg/dlock/redislock",
		Settings: sim.Settings{Modes: []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}, Sleeps: true, SetBack: true, Fences: true, FIFO: true, Async: true, Several: true},
		Few:      40, Full: 10_000, Raced: 10, Tries: 20,
		Open: func(s *sim.Simulation) (sim.Store, func() error, error) {
			store, err := simredis.NewStore(s, []string{addr}, func(c []redis.UniversalClient) driver.Opener { return redislock.New(c[0]) })
			suspend.Simulate(s.Slept)
			return &fragileStore{Store: store, sim: s}, func() error { suspend.Simulate(nil); return store.Close() }, err
		},
	}.Run(t)
}

// A fragileStore can be damaged.
type fragileStore struct {
	*simredis.Store
	sim *sim.Simulation

	mu             sync.Mutex
	wentBack, lost bool // the clock was set back, or the last token of a lock was lost
}

// Advance does not set the clock back after a token was lost: nothing then keeps tokens increasing.
func (f *fragileStore) Advance(d time.Duration) {
	f.mu.Lock()
	f.wentBack = f.wentBack || d < 0
	lost := f.lost
	f.mu.Unlock()
	if d >= 0 || !lost {
		f.Store.Advance(d)
	}
}

// loseToken loses the last token of a lock, unless the clock was set back.
func (f *fragileStore) loseToken(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.wentBack {
		f.lost = true
		f.Server(0).Delete(redislock.CounterOf(key))
	}
}

// Damage loses one half of a queue or both, or the last token, makes deadlines wrong, or hides the
// subscribers from the server.
func (f *fragileStore) Damage(r *rand.Rand) {
	server, key := f.Server(0), sim.Keys()[r.IntN(2)]
	what := r.IntN(7)
	f.sim.Tracef("damage %d to %s", what, key)
	switch what {
	case 0:
		server.Delete(queueOf(key))
	case 1:
		server.Delete(waitersOf(key))
	case 2:
		server.Delete(queueOf(key), waitersOf(key))
	case 3:
		server.SetBack(queueOf(key), waitersOf(key))
	case 4:
		f.loseToken(key)
	default:
		server.MoveAway(r.IntN(2) == 0)
	}
}
