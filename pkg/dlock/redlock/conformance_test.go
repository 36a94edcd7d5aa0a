package redlock_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// caps are what the harness expects.
var caps = driver.Caps{
	Name: "redlock", Lease: true, Remote: true, Fencing: true, Push: true,
	Modes: []driver.Mode{driver.Exclusive}, MinTTL: 100 * time.Millisecond,
}

// A farm is the servers on which all variants of the suite run: some that are alive, and two that
// are dead. Every case has its own prefix, and so an empty store.
type farm struct{ live, dead []*servers.Redis }

func startFarm(t *testing.T) *farm {
	t.Helper()
	f := &farm{}
	for range 5 {
		f.live = append(f.live, testenv.Redis(t))
	}
	for range 2 {
		server := testenv.Redis(t)
		check(t, server.Kill())
		f.dead = append(f.dead, server)
	}
	return f
}

// A variant has as many nodes with the same fault as a majority can spare.
type variant struct {
	name    string
	nodes   int
	timeout time.Duration                                    // of a node, as far as TTLs allow it
	fault   func(t *testing.T, f *farm, i int) (addr string) // nil: none
}

// Unlike the engine, the suite does not retry, and a busy machine may not run a server for a
// second. So nodes get a long timeout, except those for which Close would wait as long.
const (
	ample  = 5 * time.Second
	enough = 1500 * time.Millisecond
)

var variants = []variant{
	{"3", 3, ample, nil},
	{"5", 5, ample, nil},
	{"1of3dead", 3, ample, dead},
	{"1of3blackhole", 3, enough, blackHole},
	{"1of3slow", 3, ample, slow},
	{"2of5dead", 5, ample, dead},
	{"2of5blackhole", 5, enough, blackHole},
	{"2of5slow", 5, ample, slow},
}

func dead(_ *testing.T, f *farm, i int) string { return f.dead[i].Addr() }

func blackHole(t *testing.T, f *farm, i int) string {
	t.Helper()
	p := testenv.Proxy(t, f.live[i].Addr())
	p.BlackHole(true)
	return p.Addr()
}

func slow(t *testing.T, f *farm, i int) string {
	t.Helper()
	p := testenv.Proxy(t, f.live[i].Addr())
	p.Delay(20*time.Millisecond, 20*time.Millisecond)
	return p.Addr()
}

// addrs returns the addresses of the nodes of a variant.
func (v *variant) addrs(t *testing.T, f *farm) (all []string) {
	t.Helper()
	for i := range v.nodes {
		if v.fault != nil && i < v.nodes/2 {
			all = append(all, v.fault(t, f, i))
		} else {
			all = append(all, f.live[i].Addr())
		}
	}
	return all
}

// run runs the suite on a variant.
func (v *variant) run(t *testing.T, f *farm, opts ...drivertest.Option) {
	addrs := v.addrs(t, f)
	var clients []redis.UniversalClient
	for _, a := range addrs {
		c := redis.NewClient(&redis.Options{Addr: a, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	drivertest.Run(t, v.harness(clients, addrs), opts...)
}

func (v *variant) harness(clients []redis.UniversalClient, addrs []string) func(*testing.T) *drivertest.Harness {
	return func(t *testing.T) *drivertest.Harness {
		own := t.Name() + ":"
		return &drivertest.Harness{
			Caps: caps, Prefix: own, TTL: 4 * time.Second, WaiterTTL: time.Minute, Slack: 4 * time.Second, Grants: testenv.UnderStress(60, 2000), Quorum: true,
			Open: func(t *testing.T, o driver.Options) driver.Driver {
				t.Helper()
				d, err := redlock.New(clients, redlock.WithNodeTimeout(v.timeout)).Open(o)
				check(t, err)
				return d
			},
			Child: func(t *testing.T) *exec.Cmd {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), childAddrs+"="+strings.Join(addrs, ","), childPrefix+"="+own)
				return cmd
			},
		}
	}
}

// lasting lists the cases that wait for leases, and take more time than work.
var lasting = []string{
	"SilentHolder", "RenewalKeeps", "RenewalSetsTTL", "UntilIsPessimistic", "GrantKeepsDeadline", "GhostHeads", "PatientWaiter", "Crash",
	"ResubmissionRestarts", "FenceOutlastsLeases", "TombstoneLasts", "LateWaiter",
}

// The cases that run with faults in CI; without faults all cases run on three nodes, and on five all but the costly ones, which
// take most of the processors' time. Under stress all cases run everywhere. Most of those with faults wait for nodes that do not
// answer.
var (
	costly      = []string{"HostileKeys", "UnreadPushes", "BigBatch"}
	faultyWork  = []string{"FenceIncreases", "MutualExclusion"}
	faultyWaits = []string{
		"Submit", "TombstonedID", "ReleaseInAnyPhase", "DeadContext", "HandOff", "Push", "CancelInQueue", "MixedBatch", "RenewalKeeps", "UntilIsPessimistic",
	}
)

// waits selects the cases of a variant that take time, and works those that take work.
func (v *variant) waits() drivertest.Option {
	if v.isBrief() {
		return drivertest.Only(faultyWaits...)
	}
	return drivertest.Only(lasting...)
}

func (v *variant) works() drivertest.Option {
	if v.isBrief() {
		return drivertest.Only(faultyWork...)
	}
	if v.nodes > 3 && testenv.UnderStress(true, false) {
		return drivertest.Except(slices.Concat(costly, lasting)...)
	}
	return drivertest.Except(lasting...)
}

func (v *variant) isBrief() bool { return v.fault != nil && testenv.UnderStress(0, 1) == 0 }

// The suite on three and on five nodes, and with as many of them down or slow as a majority can
// spare: the cases that take work, one variant after another.
func TestConformance(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { v.run(t, f, v.works()) })
	}
}

// The cases that take time, all variants at once.
func TestConformanceInTime(t *testing.T) {
	t.Parallel()
	f := startFarm(t)
	var wg sync.WaitGroup
	for _, v := range variants {
		wg.Go(func() {
			t.Run(v.name, func(t *testing.T) { v.run(t, f, v.waits(), drivertest.AtOnce()) })
		})
	}
	wg.Wait()
}
