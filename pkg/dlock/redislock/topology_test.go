package redislock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// fewGrants is for the servers and networks here. What the driver itself does is shown by the whole
// count, on a single server.
var fewGrants = testenv.UnderStress(300, 2000)

// withoutCostly leaves out the cases that take most of the processors' time, for other clients and networks: these change
// neither the calls nor the scripts. All other suites have all cases, and under stress these have them too.
var withoutCostly = drivertest.Except(testenv.UnderStress([]string{"HostileKeys", "UnreadPushes", "BigBatch", "FenceIncreases"}, nil)...)

func TestConformanceSentinel(t *testing.T) {
	t.Parallel()
	s := testenv.Sentinel(t)
	keepMaster(t, s)
	master, err := s.Master(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: servers.MasterName, SentinelAddrs: s.SentinelAddrs(), ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	h := harness(client, master.Addr())
	drivertest.Run(t, func(t *testing.T) *drivertest.Harness {
		harness := h(t)
		harness.Grants = fewGrants
		return harness
	}, drivertest.AtOnce(), withoutCostly)
}

// With replicas that must confirm, all cases still pass.
func TestConformanceMinReplicas(t *testing.T) {
	t.Parallel()
	s := testenv.Sentinel(t)
	keepMaster(t, s)
	master, err := s.Master(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := master.Client()
	defer func() { _ = client.Close() }()
	h := harness(client, master.Addr(), redislock.WithMinReplicas(1, time.Second))
	drivertest.Run(t, func(t *testing.T) *drivertest.Harness {
		harness := h(t)
		harness.Grants = fewGrants
		return harness
	}, drivertest.AtOnce())
}

// keepMaster makes sentinels leave the master its role, even if a busy machine keeps it from answering for a while.
func keepMaster(t *testing.T, s *servers.Sentinel) {
	t.Helper()
	setDownAfter(t, s, time.Minute)
}

// replaceDeadMaster makes sentinels replace a silent master again soon, after keepMaster.
func replaceDeadMaster(t *testing.T, s *servers.Sentinel) {
	t.Helper()
	setDownAfter(t, s, 500*time.Millisecond)
}

func setDownAfter(t *testing.T, s *servers.Sentinel, silent time.Duration) {
	t.Helper()
	for _, node := range s.Sentinels() {
		check(t, dialRedis(t, node.Addr()).Do(t.Context(), "SENTINEL", "SET", servers.MasterName, "down-after-milliseconds", silent.Milliseconds()).Err())
	}
}

func clusterClient(t testing.TB, c *servers.Cluster) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	c := testenv.Cluster(t)
	tolerateStalls(t, c)
	client := clusterClient(t, c)
	drivertest.Run(t, func(t *testing.T) *drivertest.Harness {
		node, err := c.NodeFor(t.Context(), "suite:"+t.Name()+":k") // where the child asks
		if err != nil {
			t.Fatal(err)
		}
		h := harness(client, node.Addr())(t)
		h.Grants = fewGrants
		return h
	}, drivertest.AtOnce())
}

// The suite through a proxy, with a client that does not honor contexts.
func TestConformanceProxy(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	defer func() { _ = client.Close() }()
	proxy.Delay(time.Millisecond, time.Millisecond)
	h := harness(client, server.Addr())
	drivertest.Run(t, func(t *testing.T) *drivertest.Harness {
		harness := h(t)
		harness.Grants = fewGrants
		return harness
	}, drivertest.AtOnce(), withoutCostly)
}

// The suite with calls that arrive twice, and pushes that arrive twice or late.
func TestConformanceFaults(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	client := server.Client()
	defer func() { _ = client.Close() }()
	faults := faultdriver.New(redislock.New(client), 7,
		faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Duplicate, Chance: 0.3},
		faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Duplicate, Chance: 0.3},
		faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.Duplicate, Chance: 0.3},
		faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.RepeatPush, Chance: 0.3},
		faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.ReorderPush, Chance: 0.3},
	)
	h := harness(client, server.Addr())
	drivertest.Run(t, func(t *testing.T) *drivertest.Harness {
		harness := h(t)
		harness.Grants = fewGrants
		harness.Open = func(t *testing.T, o driver.Options) driver.Driver {
			t.Helper()
			d, err := faults.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		return harness
	}, drivertest.AtOnce())
	if faults.Injected(faultdriver.Duplicate) == 0 {
		t.Error("no fault happened")
	}
}
