package etcdlock_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A userServer is an etcd with authentication enabled. Under stress it is as slow as by default, about 70 ms of
// processor time each.
type userServer struct {
	*servers.Etcd
	authentications atomic.Int64 // of all its clients
}

func startWithUsers(t *testing.T, args ...string) *userServer {
	t.Helper()
	args = append(args, "--bcrypt-cost", testenv.UnderStress("4", "10"))
	s := &userServer{Etcd: testenv.Etcd(t, args...)}
	admin, ctx := dial(t, s.Endpoint()), t.Context()
	for _, step := range []func() error{
		func() error { _, err := admin.UserAdd(ctx, "root", "secret"); return err },
		func() error { _, err := admin.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := admin.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// dial returns a client of a user.
func (s *userServer) dial(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	count := func(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if path == "/etcdserverpb.Auth/Authenticate" {
			s.authentications.Add(1)
		}
		return call(ctx, path, req, reply, cc, opts...)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, Username: "root", Password: "secret", Logger: zap.NewNop(), DialTimeout: patience,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// cpu returns how much time the server has used.
func (s *userServer) cpu(t *testing.T) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.Pid()))
	if err != nil {
		t.Skipf("the CPU time of a server is read from /proc: %v", err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond // a tick
}

// Processes hold locks as users of etcd: renewals do not authenticate, because that would take the
// server longer than the interval between renewals.
func TestHoldersAsUsers(t *testing.T) {
	t.Parallel()
	holders, ttl, span := 8, 10*time.Second, 8*time.Second // two renewals
	if os.Getenv("DLOCK_STRESS") != "" {
		holders, ttl, span = 100, 5*time.Second, time.Minute
	}
	hazardtest.UntilValid(t, func(t *testing.T) bool { return holdAsUsers(t, holders, ttl, span) })
	if os.Getenv("DLOCK_STRESS") != "" {
		compareSessions(t, holders, ttl, span)
	}
}

// holdAsUsers is a round of TestHoldersAsUsers, with a server of its own.
func holdAsUsers(t *testing.T, holders int, ttl, span time.Duration) (valid bool) {
	t.Helper()
	server := startWithUsers(t)
	var holds []*hazardtest.Hold
	for i := range holders {
		c := locksOn(t, server.dial(t, server.Endpoint()), dlock.Config{DefaultTTL: ttl})
		holds = append(holds, hazardtest.Keep(t, acquire(t, c, fmt.Sprintf("k%d", i)), ttl/4))
	}
	began, cpu := server.authentications.Load(), server.cpu(t)
	elapse(span)
	used, lost := server.cpu(t)-cpu, 0
	for _, h := range holds {
		if h.Lost(t) {
			lost++
		}
	}
	total := server.authentications.Load()
	t.Logf("%d holders, TTL %v, %v: %d lost, %d authentications to start and %d since, %.3f cores of the server",
		holders, ttl, span, lost, began, total-began, used.Seconds()/span.Seconds())
	if lost > 0 { // by stalls
		return false
	}
	// One for the client itself, one for each long-lived stream, and one to spare.
	if total > int64(4*holders) {
		t.Errorf("%d authentications of %d holders", total, holders)
	}
	return true
}

// compareSessions logs what the same number of etcd's own sessions cost.
func compareSessions(t *testing.T, holders int, ttl, span time.Duration) {
	t.Helper()
	server := startWithUsers(t)
	lost := 0
	var sessions []*concurrency.Session
	for i := range holders {
		session, err := concurrency.NewSession(server.dial(t, server.Endpoint()), concurrency.WithTTL(int(ttl.Seconds())))
		if err != nil {
			t.Fatal(err)
		}
		if err := concurrency.NewMutex(session, fmt.Sprintf("m%d", i)).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, session)
	}
	began, cpu := server.authentications.Load(), server.cpu(t)
	elapse(span)
	used := server.cpu(t) - cpu
	for _, s := range sessions {
		select {
		case <-s.Done():
			lost++
		default:
		}
	}
	t.Logf("%d sessions for comparison: %d lost, %d authentications to start and %d since, %.3f cores of the server",
		holders, lost, began, server.authentications.Load()-began, used.Seconds()/span.Seconds())
}

// The token of a user expires while its locks are held and waited for: renewals and waits continue,
// also on a stream that is older than the token or breaks after it.
func TestTokenOfAUserEnds(t *testing.T) {
	t.Parallel()
	hazardtest.UntilValid(t, tokenEnds)
}

func tokenEnds(t *testing.T) (valid bool) {
	t.Helper()
	server := startWithUsers(t, "--auth-token-ttl", "1")
	proxy := testenv.Proxy(t, server.Addr())
	const ttl = 5 * time.Second
	c := locksOn(t, server.dial(t, urlOf(proxy)), dlock.Config{DefaultTTL: ttl})
	g := acquire(t, c, "k")
	held := hazardtest.Keep(t, g, ttl/4)
	elapse(ttl + time.Second)
	proxy.Cut()
	elapse(ttl + time.Second)
	if !held.RenewedAgain(t) {
		return false
	}
	admin := server.dial(t, server.Endpoint())
	fixed := acquire(t, c, "fixed", dlock.WithTTL(lossTTL), dlock.WithoutRenewal())
	loss := watchLoss(fixed)
	if _, err := admin.Delete(t.Context(), string(storedClaims(t, admin, "fixed")[0].Key)); err != nil {
		t.Fatal(err)
	}
	loss.when(t)
	got := startWait(t, locksOn(t, server.dial(t, urlOf(proxy)), dlock.Config{DefaultTTL: ttl}), admin, "k")
	elapse(ttl)
	unlock(t, g)
	unlock(t, granted(t, got).guard)
	return true
}

// All connections of a fleet break at once. Each process authenticates once more for each of its
// streams, however long the server takes for that, and no lock is lost.
func TestFleetOfUsersReconnects(t *testing.T) {
	t.Parallel()
	hazardtest.UntilValid(t, fleetReconnects)
}

func fleetReconnects(t *testing.T) (valid bool) {
	t.Helper()
	const holders, ttl = 8, 10 * time.Second
	server := startWithUsers(t)
	proxy := testenv.Proxy(t, server.Addr())
	var stall sharedStall
	var holds []*hazardtest.Hold
	for i := range holders {
		c := locksOn(t, server.dial(t, urlOf(proxy)), dlock.Config{DefaultTTL: ttl})
		holds = append(holds, hazardtest.Keep(t, acquire(t, c, fmt.Sprintf("k%d", i)), ttl/4))
	}
	elapse(ttl / 2) // all have a stream for their keep-alives
	before := server.authentications.Load()
	proxy.Cut()
	cut := time.Now()
	elapse(ttl)
	for _, h := range holds {
		if !h.RenewedAgain(t) {
			return false
		}
	}
	again := server.authentications.Load() - before
	t.Logf("%d authentications of %d processes", again, holders)
	if again > 3*holders && stall.excuses(t, cut, giveUpAfter) { // then the server was as well, and some have tried again
		return false
	}
	if again == 0 || again > 3*holders {
		t.Errorf("%d authentications of %d processes", again, holders)
	}
	return true
}
