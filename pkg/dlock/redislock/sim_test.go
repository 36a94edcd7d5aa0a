package redislock_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/ceyewan/genesis/internal/sim"
	"github.com/ceyewan/genesis/internal/sim/simredis"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A seed that failed once stays here, with what was wrong.
var failedSeeds []uint64

// TestScriptSimulation runs simulations of the engine, the driver and the scripts on a real
// server, in virtual time. DLOCK_SEED runs one of them and prints every message.
func TestScriptSimulation(t *testing.T) {
	server := testenv.Redis(t)
	if text := os.Getenv("DLOCK_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		replay(t, server.Addr(), seed)
		return
	}
	seeds := append([]uint64(nil), failedSeeds...)
	for i := range seedsToRun(t) {
		seeds = append(seeds, i)
	}
	for _, seed := range seeds {
		s, failures := simulate(t, server.Addr(), seed, false)
		if len(failures) > 0 {
			t.Fatalf("%s\nDLOCK_SEED=%d go test -run TestScriptSimulation -v ./pkg/dlock/redislock", s.Report(), seed)
		}
	}
}

// replay runs one seed until it fails, a few times: the pool and the pipelines of the
// client decide with it. It prints the story of the last run.
func replay(t *testing.T, addr string, seed uint64) {
	t.Helper()
	var s *sim.Simulation
	var failures []string
	for range 20 {
		if s, failures = simulate(t, addr, seed, true); len(failures) > 0 {
			t.Fail()
			break
		}
	}
	t.Log(s.Report())
}

func seedsToRun(t *testing.T) func(func(uint64) bool) {
	t.Helper()
	first, last := uint64(1), uint64(40)
	if os.Getenv("DLOCK_STRESS") != "" {
		last = 10_000
	}
	if text := os.Getenv("DLOCK_SEEDS"); text != "" {
		if _, err := fmt.Sscanf(text, "%d-%d", &first, &last); err != nil {
			t.Fatalf("DLOCK_SEEDS=%s: want FIRST-LAST", text)
		}
	}
	return func(yield func(uint64) bool) {
		for seed := first; seed <= last; seed++ {
			if !yield(seed) {
				return
			}
		}
	}
}

// simulate runs one seed to its end.
func simulate(t *testing.T, addr string, seed uint64, verbose bool) (s *sim.Simulation, failures []string) {
	t.Helper()
	t.Run(fmt.Sprint(seed), func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		synctest.Test(t, func(t *testing.T) {
			s = sim.New(sim.Settings{Seed: seed, Verbose: verbose, Modes: []driver.Mode{driver.Exclusive}, Fences: true, FIFO: true})
			store, err := newSimStore(s, addr)
			if err != nil {
				t.Fatal(err)
			}
			failures = s.Run(store)
			if err := store.close(); err != nil {
				t.Fatalf("the server: %v\n%s", err, s.Report())
			}
		})
	})
	if s == nil || t.Failed() {
		t.FailNow()
	}
	return s, failures
}

// A simStore is a real server behind a simulated network.
type simStore struct {
	*simredis.Server
	sim     *sim.Simulation
	admin   driver.Driver
	clients []*redis.Client
}

func newSimStore(s *sim.Simulation, addr string) (*simStore, error) {
	server, err := simredis.New(s, addr)
	if err != nil {
		return nil, err
	}
	m := &simStore{Server: server, sim: s}
	m.admin, err = redislock.New(m.client(server.Direct())).Open(driver.Options{})
	if err != nil {
		return nil, err
	}
	server.Called = func(key string) {
		for _, known := range []string{"plain", "mixed"} {
			if strings.Contains(key, known) {
				s.Look(known)
			}
		}
	}
	return m, nil
}

func (m *simStore) client(dial simredis.Dialer) *redis.Client {
	r := m.sim.Draw("client", len(m.clients))
	c := redis.NewClient(&redis.Options{
		Addr: "simulated:6379", Dialer: dial, DisableIdentity: true, MaxRetries: -1 + r.IntN(2)*4,
		ContextTimeoutEnabled: r.IntN(4) > 0, DialTimeout: 2 * time.Second, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	m.clients = append(m.clients, c)
	return c
}

// Backend is reached in one of two ways. In even runs whole calls of the driver are
// delayed, lost and repeated, and each then is alone at the server. In odd runs connections
// are, and the client's pool and pipelines take part.
func (m *simStore) Backend(string) driver.Opener {
	if m.sim.Seed%2 == 0 {
		return m.sim.Remote(redislock.New(m.client(m.Direct())))
	}
	return redislock.New(m.client(m.Over(m.sim.NextLink())))
}

func (m *simStore) Claims(key string) []driver.Claim {
	claims, err := m.admin.(driver.Admin).Inspect(context.Background(), key)
	if err != nil {
		panic(err) // nothing stands between
	}
	return claims
}

func (m *simStore) Evict(key, id string, token int64) {
	_, _ = m.admin.(driver.Admin).Evict(context.Background(), key, id, token)
}

func (m *simStore) close() error {
	_ = m.admin.Close()
	for _, c := range m.clients {
		_ = c.Close()
	}
	return m.Close()
}
