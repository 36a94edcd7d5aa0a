package redislock_test

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// childAddrs passes the addresses of the servers to a child process of the suite.
const childAddrs = "REDISLOCK_TEST_ADDRS"

func TestMain(m *testing.M) {
	if drivertest.IsChild() {
		d, err := redislock.New(redis.NewClient(&redis.Options{Addr: os.Getenv(childAddrs)})).Open(driver.Options{Prefix: os.Getenv("REDISLOCK_TEST_PREFIX")})
		if err != nil {
			panic(err)
		}
		drivertest.Child(d)
	}
	if hazardtest.IsChild() {
		hazardtest.Child(func(endpoints []string) driver.Opener {
			return redislock.New(redis.NewClient(&redis.Options{Addr: endpoints[0], ContextTimeoutEnabled: true}))
		})
	}
	// The tests wait more than they work. Under stress their limits are strict, and they must not
	// take time from each other. A command-line flag takes precedence.
	if os.Getenv(testenv.StressEnv) == "" {
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	redis.SetLogger(silent{}) // it reports every fault that the tests inject
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// caps are what the harness expects of Redis.
var caps = driver.Caps{
	Name: "redis", Lease: true, Remote: true, Fencing: true, TokenRange: true, FIFO: true, Push: true,
	Modes: []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}, MinTTL: 10 * time.Millisecond,
}

// harness runs the suite on a client. Every case has its own prefix.
func harness(client redis.UniversalClient, addr string, opts ...redislock.Option) func(*testing.T) *drivertest.Harness {
	return func(t *testing.T) *drivertest.Harness {
		prefix := "suite:" + t.Name() + ":"
		return &drivertest.Harness{
			Caps: caps, Prefix: prefix, TTL: 4 * time.Second, WaiterTTL: time.Minute, Slack: 4 * time.Second, Grants: 2000,
			Open: func(t *testing.T, o driver.Options) driver.Driver {
				t.Helper()
				d, err := redislock.New(client, opts...).Open(o)
				if err != nil {
					t.Fatal(err)
				}
				return d
			},
			Child: func(t *testing.T) *exec.Cmd {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), childAddrs+"="+addr, "REDISLOCK_TEST_PREFIX="+prefix)
				return cmd
			},
		}
	}
}

func TestConformanceSingle(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	client := server.Client()
	defer func() { _ = client.Close() }()
	drivertest.Run(t, harness(client, server.Addr()), drivertest.AtOnce())
}
