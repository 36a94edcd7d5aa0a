package redlock_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/sim"
	"github.com/ceyewan/genesis/internal/sim/simredis"
	"github.com/ceyewan/genesis/internal/sim/simtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/suspend"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// TestScriptSimulation runs simulations of the engine, the driver and the scripts on three
// real servers, in virtual time.
func TestScriptSimulation(t *testing.T) {
	var addrs []string
	for range 3 {
		addrs = append(addrs, testenv.Redis(t).Addr())
	}
	simtest.Suite{
		Command:  "go test -run TestScriptSimulation -v ./pkg/dlock/redlock",
		Settings: sim.Settings{Modes: []driver.Mode{driver.Exclusive}, Sleeps: true, SetBack: true},
		Few:      8, Full: 5_000, Raced: 4, Tries: 20,
		Open: func(s *sim.Simulation) (sim.Store, func() error, error) {
			store, err := simredis.NewStore(s, addrs, func(c []redis.UniversalClient) driver.Opener { return redlock.New(c) })
			suspend.Simulate(s.Slept)
			return store, func() error { suspend.Simulate(nil); return store.Close() }, err
		},
	}.Run(t)
}
