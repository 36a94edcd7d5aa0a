package errors_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// noHost is a name that does not exist.
const noHost = "no-such-host.invalid"

// answerNoHost has this process ask a name server of its own, which knows no name: what
// that of the machine would say, and how soon, is not ours to know.
func answerNoHost() {
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			answer := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RCode: dnsmessage.RCodeNameError}, Questions: m.Questions}
			packed, _ := answer.Pack()
			_, _ = conn.WriteTo(packed, from)
		}
	}()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp4", conn.LocalAddr().String())
	}}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func config() *dlock.Config { return &dlock.Config{DefaultTTL: ttl} }

// keep closes what a test has opened.
func keep(t *testing.T, locks *dlock.Client, err error, conn interface{ Close() error }) *dlock.Client {
	t.Helper()
	check(t, err)
	t.Cleanup(func() {
		_ = locks.Close()
		_ = conn.Close()
	})
	return locks
}

func onRedis(t *testing.T, cfg connector.RedisConfig) *dlock.Client {
	t.Helper()
	conn, err := connector.NewRedis(&cfg)
	check(t, err)
	locks, err := dlock.NewRedis(conn, config())
	return keep(t, locks, err, conn)
}

func onRedlock(t *testing.T, cfg connector.RedlockConfig, opts ...redlock.Option) *dlock.Client {
	t.Helper()
	conn, err := connector.NewRedlock(&cfg, connector.WithRedlockOptions(opts...))
	check(t, err)
	locks, err := dlock.NewRedlock(conn, config())
	return keep(t, locks, err, conn)
}

func onEtcd(t *testing.T, cfg connector.EtcdConfig) *dlock.Client {
	t.Helper()
	conn, err := connector.NewEtcd(&cfg)
	check(t, err)
	return onConnected(t, conn)
}

func onConnected(t *testing.T, conn *connector.Etcd) *dlock.Client {
	t.Helper()
	locks, err := dlock.NewEtcd(conn, config())
	return keep(t, locks, err, conn)
}

// warm makes connections, a lease and the scripts, so that the fault comes after them.
func warm(t *testing.T, locks *dlock.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		check(t, locks.Lock(ctx, "warm"))
		began := time.Now()
		err := locks.Unlock(ctx, "warm")
		if errors.Is(err, dlock.ErrUnknownOutcome) && testenv.Stalled(t, began, answered) {
			continue // the next lock waits until the release in the background is over
		}
		check(t, err)
		break
	}
	// The first lock starts a check in the background, which may keep that connection for a while. This one leaves another.
	began := time.Now()
	_, err := locks.Check(ctx)
	for err != nil && testenv.Stalled(t, began, answered) {
		began = time.Now()
		_, err = locks.Check(ctx)
	}
	check(t, err)
}

// A redisSet is one server or several, each behind a proxy.
type redisSet struct {
	servers []*servers.Redis
	proxies []*faultproxy.Proxy
	direct  []*redis.Client
}

func startRedis(t *testing.T, n int, args ...string) *redisSet {
	t.Helper()
	s := &redisSet{}
	for range n {
		server := testenv.Redis(t, args...)
		s.servers = append(s.servers, server)
		s.proxies = append(s.proxies, testenv.Proxy(t, server.Addr()))
		client := server.Client()
		t.Cleanup(func() { _ = client.Close() })
		s.direct = append(s.direct, client)
	}
	return s
}

func (s *redisSet) addrs() (addrs []string) {
	for _, p := range s.proxies {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// locks are on one server, or on all as redlock.
func (s *redisSet) locks(t *testing.T, user, password string, opts ...redlock.Option) *dlock.Client {
	t.Helper()
	if len(s.servers) == 1 {
		return onRedis(t, connector.RedisConfig{Addr: s.proxies[0].Addr(), Username: user, Password: password})
	}
	return onRedlock(t, connector.RedlockConfig{Addrs: s.addrs(), Username: user, Password: password}, opts...)
}

// answering is locks on servers that answer, each as late as the whole attempt allows: then no server of a busy machine
// is taken for silent.
func (s *redisSet) answering(t *testing.T, user, password string) *dlock.Client {
	t.Helper()
	return s.locks(t, user, password, redlock.WithNodeTimeout(testenv.UnderStress(5*time.Second, 0)))
}

func (s *redisSet) each(t *testing.T, do func(i int) error) {
	t.Helper()
	for i := range s.servers {
		check(t, do(i))
	}
}

// command sends a command to every server, past the proxies.
func (s *redisSet) command(t *testing.T, args ...any) {
	t.Helper()
	s.each(t, func(i int) error { return s.direct[i].Do(t.Context(), args...).Err() })
}

func (s *redisSet) stored(t *testing.T, key string) bool {
	t.Helper()
	for _, c := range s.direct {
		n, err := c.Exists(t.Context(), key).Result()
		check(t, err)
		if n > 0 {
			return true
		}
	}
	return false
}

// An etcdServer is one member behind a proxy.
type etcdServer struct {
	*servers.Etcd
	proxy  *faultproxy.Proxy
	direct *clientv3.Client
}

func startEtcd(t *testing.T, args ...string) *etcdServer {
	t.Helper()
	server := testenv.Etcd(t, args...)
	s := &etcdServer{Etcd: server, proxy: testenv.Proxy(t, server.Addr())}
	s.direct = dialEtcd(t, connector.EtcdConfig{Endpoints: []string{server.Endpoint()}})
	return s
}

func dialEtcd(t *testing.T, cfg connector.EtcdConfig) *clientv3.Client {
	t.Helper()
	conn, err := connector.NewEtcd(&cfg)
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn.Client()
}

func (s *etcdServer) locks(t *testing.T, user, password string) *dlock.Client {
	t.Helper()
	return onConnected(t, s.connect(t, user, password))
}

func (s *etcdServer) connect(t *testing.T, user, password string) *connector.Etcd {
	t.Helper()
	conn, err := connector.NewEtcd(&connector.EtcdConfig{Endpoints: []string{s.proxy.Addr()}, Username: user, Password: password})
	check(t, err)
	return conn
}

// awaitRefusal waits until calls fail because the connection is refused: the first attempt to connect
// again may have begun before.
func awaitRefusal(t *testing.T, locks *dlock.Client) {
	t.Helper()
	testenv.Eventually(t, time.Minute, "the connection is refused", func() bool {
		_, err := locks.TryLock(t.Context(), "none")
		return err != nil && strings.Contains(err.Error(), "connection refused")
	})
}

func (s *etcdServer) stored(t *testing.T, key string) bool { return etcdHas(t, s.direct, key) }

func etcdHas(t *testing.T, client *clientv3.Client, key string) bool {
	t.Helper()
	resp, err := client.Get(t.Context(), key, clientv3.WithPrefix(), clientv3.WithCountOnly())
	check(t, err)
	return resp.Count > 0
}
