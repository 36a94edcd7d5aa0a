package redlock_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// childAddrs tells a child process where the servers are.
const childAddrs = "REDLOCK_TEST_ADDRS"

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // it reports every fault that the tests inject
	if addrs := os.Getenv(childAddrs); addrs != "" {
		child(strings.Split(addrs, ","))
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// child is the main function of a process that tests start.
func child(addrs []string) {
	var clients []redis.UniversalClient
	for _, a := range addrs {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: a, ContextTimeoutEnabled: true}))
	}
	if !drivertest.IsChild() {
		contend(clients)
		return
	}
	d, err := redlock.New(clients).Open(driver.Options{Prefix: "suite:", Logger: quietLog})
	if err != nil {
		panic(err)
	}
	drivertest.Child(d)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// caps are what the harness expects.
var caps = driver.Caps{
	Name: "redlock", Lease: true, Remote: true, Fencing: true, Push: true,
	Modes: []driver.Mode{driver.Exclusive}, MinTTL: 100 * time.Millisecond,
}

// harness is the suite on a set of nodes. Every case begins with empty servers.
func harness(s *set, opts ...redlock.Option) func(*testing.T) *drivertest.Harness {
	return func(t *testing.T) *drivertest.Harness {
		s.flush(t)
		return &drivertest.Harness{
			Caps: caps, TTL: time.Second, Slack: 600 * time.Millisecond, Grants: times(60, 2000),
			Open: func(t *testing.T, o driver.Options) driver.Driver {
				t.Helper()
				d, err := redlock.New(s.clients, opts...).Open(o)
				if err != nil {
					t.Fatal(err)
				}
				return d
			},
			Child: func(t *testing.T) *exec.Cmd {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), childAddrs+"="+strings.Join(s.addrs(), ","))
				return cmd
			},
		}
	}
}

func TestConformance3(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, harness(start(t, 3).straight(t)))
}

func TestConformance5(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, brief(harness(start(t, 5).straight(t))))
}

// The suite with as many nodes gone as may be.
func TestConformanceWithout(t *testing.T) {
	for name, fault := range map[string]struct {
		nodes int
		ci    bool
		make  func(t *testing.T, s *set, i int)
	}{
		"1of3dead":      {3, false, func(t *testing.T, s *set, i int) { check(t, s.servers[i].Kill()) }},
		"2of5dead":      {5, true, func(t *testing.T, s *set, i int) { check(t, s.servers[i].Kill()) }},
		"1of3blackhole": {3, true, func(_ *testing.T, s *set, i int) { s.proxies[i].BlackHole(true) }},
		"2of5blackhole": {5, false, func(_ *testing.T, s *set, i int) { s.proxies[i].BlackHole(true) }},
		"1of3slow":      {3, false, func(_ *testing.T, s *set, i int) { s.proxies[i].Delay(20*time.Millisecond, 20*time.Millisecond) }},
		"2of5slow":      {5, true, func(_ *testing.T, s *set, i int) { s.proxies[i].Delay(20*time.Millisecond, 20*time.Millisecond) }},
	} {
		t.Run(name, func(t *testing.T) {
			if !fault.ci && times(0, 1) == 0 {
				t.Skip("with DLOCK_STRESS=1")
			}
			s := start(t, fault.nodes)
			for i := range fault.nodes / 2 {
				fault.make(t, s, i)
			}
			drivertest.Run(t, brief(harness(s)))
		})
	}
}

// short are the cases that run on five nodes and with faults in CI; on three nodes all
// do, and under stress everywhere.
var short = []string{"Filing", "BarredID", "ReleaseInAnyPhase", "HandOff", "Push", "MixedBatch", "FenceIncreases", "AdminEvict", "MutualExclusion"}

func brief(h func(*testing.T) *drivertest.Harness) func(*testing.T) *drivertest.Harness {
	return func(t *testing.T) *drivertest.Harness {
		name := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		if !slices.Contains(short, name) && times(0, 1) == 0 {
			t.Skip("with DLOCK_STRESS=1")
		}
		return h(t)
	}
}

// A set is some servers, each behind a proxy, and clients through the proxies.
type set struct {
	servers []*servers.Redis
	proxies []*servers.Proxy
	direct  []*redis.Client
	clients []redis.UniversalClient
}

func start(tb testing.TB, n int, args ...string) *set {
	tb.Helper()
	s := &set{}
	for range n {
		server := testenv.Redis(tb, args...)
		s.servers = append(s.servers, server)
		s.proxies = append(s.proxies, testenv.Proxy(tb, server.Addr()))
		direct := server.Client()
		tb.Cleanup(func() { _ = direct.Close() })
		s.direct = append(s.direct, direct)
	}
	s.clients = s.dial(tb)
	return s
}

// dial returns new clients through the proxies, as users make them.
func (s *set) dial(tb testing.TB) []redis.UniversalClient {
	tb.Helper()
	var clients []redis.UniversalClient
	for _, p := range s.proxies {
		c := redis.NewClient(&redis.Options{Addr: p.Addr(), ContextTimeoutEnabled: true})
		tb.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	return clients
}

// straight goes around the proxies from now on.
func (s *set) straight(tb testing.TB) *set {
	tb.Helper()
	s.clients = nil
	for _, server := range s.servers {
		c := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
		tb.Cleanup(func() { _ = c.Close() })
		s.clients = append(s.clients, c)
	}
	return s
}

func (s *set) addrs() (all []string) {
	for _, p := range s.proxies {
		all = append(all, p.Addr())
	}
	return all
}

func (s *set) flush(t *testing.T) {
	t.Helper()
	for i, c := range s.direct {
		if s.servers[i].Running() {
			check(t, c.FlushAll(t.Context()).Err())
		}
	}
}
