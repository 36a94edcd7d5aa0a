package etcdlock_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
)

// withoutCostly leaves out the cases that take most of the processors' time and are the same for every client: they run on
// one server without faults, and everywhere under stress. With duplicated calls they are not the same.
var withoutCostly = drivertest.Except(testenv.UnderStress([]string{"HostileKeys", "UnreadPushes", "BigBatch", "FenceIncreases"}, nil)...)

func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.EtcdCluster(t)
	client := dial(t, cluster.Endpoints()...)
	drivertest.Run(t, harness(client, cluster.Endpoints()), drivertest.AtOnce(), withoutCostly)
}

// The suite through a slow network.
func TestConformanceProxy(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	client := dial(t, "http://"+proxy.Addr())
	proxy.Delay(time.Millisecond, time.Millisecond)
	drivertest.Run(t, harness(client, []string{server.Endpoint()}), drivertest.AtOnce(), withoutCostly)
}

// The suite with calls that arrive twice, and pushes that arrive twice or late. Each call that may
// share a transaction with others does.
func TestConformanceFaults(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	client := dial(t, server.Endpoint())
	faults := faultdriver.New(etcdlock.New(client, etcdlock.AlwaysBatch()), 7,
		faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Duplicate, Chance: 0.3},
		faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Duplicate, Chance: 0.3},
		faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.Duplicate, Chance: 0.3},
		faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.RepeatPush, Chance: 0.3},
		faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.ReorderPush, Chance: 0.3},
	)
	h := harness(client, []string{server.Endpoint()})
	drivertest.Run(t, func(t *testing.T) *drivertest.Harness {
		harness := h(t)
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
