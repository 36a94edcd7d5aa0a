package etcdlock_test

import (
	"flag"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// childEndpoints passes the endpoints of the servers to a child process of the suite, and
// childPrefix the prefix of the case.
const (
	childEndpoints = "ETCDLOCK_TEST_ENDPOINTS"
	childPrefix    = "ETCDLOCK_TEST_PREFIX"
)

func TestMain(m *testing.M) {
	if drivertest.IsChild() {
		client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(os.Getenv(childEndpoints), ","), Logger: zap.NewNop()})
		if err != nil {
			panic(err)
		}
		d, err := etcdlock.New(client).Open(driver.Options{Prefix: os.Getenv(childPrefix), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			panic(err)
		}
		drivertest.Child(d)
	}
	if hazardtest.IsChild() {
		hazardtest.Child(func(endpoints []string) driver.Opener {
			client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
			if err != nil {
				panic(err)
			}
			return etcdlock.New(client)
		})
	}
	// The tests wait more than they work. Under stress their limits are strict, and they must not
	// take time from each other. A command-line flag takes precedence.
	if os.Getenv(testenv.StressEnv) == "" {
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// dial returns a client that is closed when the test ends. It logs none of the faults that tests
// inject.
func dial(tb testing.TB, endpoints ...string) *clientv3.Client {
	tb.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// caps are what the harness expects of etcd.
var caps = driver.Caps{
	Name: "etcd", Lease: true, LeaseRestarts: true, Remote: true, Fencing: true, FIFO: true, Push: true,
	Modes: []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}, MinTTL: time.Second,
}

// harness runs the suite on some servers. Every case has its own prefix.
func harness(client *clientv3.Client, endpoints []string) func(*testing.T) *drivertest.Harness {
	return func(t *testing.T) *drivertest.Harness {
		prefix := "suite:" + t.Name() + ":"
		return &drivertest.Harness{
			Caps: caps, Prefix: prefix, TTL: 4 * time.Second, Slack: 5 * time.Second, Grants: testenv.UnderStress(300, 1000),
			Open: func(t *testing.T, o driver.Options) driver.Driver {
				t.Helper()
				d, err := etcdlock.New(client).Open(o)
				if err != nil {
					t.Fatal(err)
				}
				return d
			},
			Child: func(t *testing.T) *exec.Cmd {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), childEndpoints+"="+strings.Join(endpoints, ","), childPrefix+"="+prefix)
				return cmd
			},
		}
	}
}

func TestConformanceSingle(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	client := dial(t, server.Endpoint())
	drivertest.Run(t, harness(client, []string{server.Endpoint()}), drivertest.AtOnce())
}
