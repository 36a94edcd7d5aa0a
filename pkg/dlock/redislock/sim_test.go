package redislock_test

import (
	"testing"

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
		Settings: sim.Settings{Modes: []driver.Mode{driver.Exclusive}, Sleeps: true, SetBack: true, Fences: true, FIFO: true},
		Few:      40, Full: 10_000, Tries: 20,
		Open: func(s *sim.Simulation) (sim.Store, func() error, error) {
			store, err := simredis.NewStore(s, []string{addr}, func(c []redis.UniversalClient) driver.Opener { return redislock.New(c[0]) })
			suspend.Simulate(s.Slept)
			return store, func() error { suspend.Simulate(nil); return store.Close() }, err
		},
	}.Run(t)
}
