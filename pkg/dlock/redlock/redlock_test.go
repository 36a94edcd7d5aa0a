package redlock_test

import (
	"context"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// childAddrs and childPrefix pass the addresses of the servers, and the prefix of its keys, to a
// child process.
const (
	childAddrs  = "REDLOCK_TEST_ADDRS"
	childPrefix = "REDLOCK_TEST_PREFIX"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // it reports every fault that the tests inject
	if hazardtest.IsChild() {
		hazardtest.Child(func(endpoints []string) driver.Opener { return redlock.New(clientsOf(endpoints), patient) })
	}
	if addrs := os.Getenv(childAddrs); addrs != "" {
		child(strings.Split(addrs, ","))
		return
	}
	// The tests that run in parallel wait more than they work. Under stress their limits are
	// strict, and they must not take time from each other. A command-line flag takes precedence.
	if os.Getenv(testenv.StressEnv) == "" {
		err := flag.Set("test.parallel", "8")
		if err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// child is the main function of a process that tests start.
func child(addrs []string) {
	clients := clientsOf(addrs)
	if !drivertest.IsChild() {
		contend(clients)
		return
	}
	d, err := redlock.New(clients, patient).Open(driver.Options{Prefix: os.Getenv(childPrefix), Logger: quietLog})
	if err != nil {
		panic(err)
	}
	drivertest.Child(d)
}

// clientsOf returns the clients of a separate process, which end with it.
func clientsOf(addrs []string) (clients []redis.UniversalClient) {
	for _, a := range addrs {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: a, ContextTimeoutEnabled: true}))
	}
	return clients
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// A set is some servers, each behind a proxy, and clients through the proxies.
type set struct {
	servers []*servers.Redis
	proxies []*faultproxy.Proxy
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

// dial returns new clients through the proxies, as users create them.
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

// straight bypasses the proxies from now on.
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
