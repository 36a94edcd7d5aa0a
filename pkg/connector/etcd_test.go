package connector_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
)

func TestEtcd(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	log, lines := debugLog()
	c := newEtcd(t, connector.EtcdConfig{Endpoints: []string{server.Endpoint()}}, connector.WithLogger(log))
	mustConnect(t, c)
	lockOnce(t, func() (*dlock.Client, error) { return dlock.NewEtcd(c, &dlock.Config{}, dlock.WithLogger(log)) })
	if _, err := c.Client().Put(t.Context(), "data", "x"); err != nil {
		t.Fatalf("the locks have closed the client: %v", err)
	}
	t.Run("user without need", func(t *testing.T) {
		c := newEtcd(t, connector.EtcdConfig{Endpoints: []string{server.Addr()}, Username: "root", Password: password})
		mustConnect(t, c)
	})
	closedFor(t, c)
	if c.Client().Ctx().Err() == nil {
		t.Fatal("the client is open")
	}
	if text := lines(); !strings.Contains(text, `"msg":"connected"`) || !strings.Contains(text, "retrying of unary invoker") {
		t.Fatalf("log: %s", text)
	}
	etcdComesBack(t, server)
}

func etcdComesBack(t *testing.T, server *servers.Etcd) {
	t.Helper()
	c := newEtcd(t, connector.EtcdConfig{Endpoints: []string{server.Endpoint()}, ConnectTimeout: long})
	mustConnect(t, c)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, testenv.UnderStress(long/2, time.Second), "unreachable", func() bool {
		return errors.Is(c.HealthCheck(t.Context()), connector.ErrUnreachable)
	})
	if err := server.Restart(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, "healthy again", func() bool { return c.HealthCheck(t.Context()) == nil })
}

// etcdWithUsers starts etcd with a root user, and a user who may use the keys below p:.
func etcdWithUsers(t *testing.T) *servers.Etcd {
	t.Helper()
	server := testenv.Etcd(t, "--bcrypt-cost", "4")
	admin := newEtcd(t, connector.EtcdConfig{Endpoints: []string{server.Endpoint()}}).Client()
	read := clientv3.PermissionType(clientv3.PermReadWrite)
	for _, step := range []func() error{
		func() error { _, err := admin.UserAdd(t.Context(), "root", password); return err },
		func() error { _, err := admin.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := admin.RoleAdd(t.Context(), "locks"); return err },
		func() error {
			_, err := admin.RoleGrantPermission(t.Context(), "locks", "p:", clientv3.GetPrefixRangeEnd("p:"), read)
			return err
		},
		func() error { _, err := admin.UserAdd(t.Context(), "locks", password); return err },
		func() error { _, err := admin.UserGrantRole(t.Context(), "locks", "locks"); return err },
		func() error { _, err := admin.AuthEnable(t.Context()); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return server
}

func TestEtcdUsers(t *testing.T) {
	t.Parallel()
	server := etcdWithUsers(t)
	log, lines := debugLog()
	cfg := connector.EtcdConfig{Endpoints: []string{server.Endpoint()}, Username: "locks", Password: password}
	c := newEtcd(t, cfg, connector.WithLogger(log))
	mustConnect(t, c)
	lockOnce(t, func() (*dlock.Client, error) {
		return dlock.NewEtcd(c, &dlock.Config{Prefix: "p:"}, dlock.WithLogger(log))
	})
	t.Run("without Connect", func(t *testing.T) {
		c := newEtcd(t, cfg, connector.WithLogger(log))
		lockOnce(t, func() (*dlock.Client, error) { return dlock.NewEtcd(c, &dlock.Config{Prefix: "p:"}) })
	})
	t.Run("other keys", func(t *testing.T) {
		locks, err := dlock.NewEtcd(c, &dlock.Config{Prefix: "q:"})
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		if err := locks.Lock(t.Context(), "key"); !errors.Is(err, dlock.ErrDenied) {
			t.Errorf("got %v", err)
		}
	})
	for name, cfg := range map[string]connector.EtcdConfig{
		"nobody":         {},
		"wrong password": {Username: "locks", Password: "wrong-" + password},
		"unknown user":   {Username: "stranger", Password: "wrong-" + password},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := testenv.Proxy(t, server.Addr())
			cfg.Endpoints, cfg.ConnectTimeout = []string{proxy.Addr()}, long
			err := refused(t, newEtcd(t, cfg, connector.WithLogger(log)), connector.ErrDenied, 2*time.Second)
			if strings.Contains(err.Error(), password) {
				t.Errorf("password in %v", err)
			}
			if n := proxy.Connections(); n > handful {
				t.Errorf("%d connections", n)
			}
		})
	}
	if strings.Contains(lines(), password) {
		t.Error("password in the log")
	}
}

func TestEtcdTLS(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	open := func(t *testing.T, addr string, tls *connector.TLSConfig) conn {
		return newEtcd(t, connector.EtcdConfig{Endpoints: []string{addr}, TLS: tls, ConnectTimeout: long})
	}
	testTLS(t, server.Addr(), open)
	t.Run("https", func(t *testing.T) {
		ca := newAuthority(t)
		cert, key := ca.issue("127.0.0.1", time.Now().Add(time.Hour))
		front := newFront(t, server.Addr(), cert, key, nil)
		c := newEtcd(t, connector.EtcdConfig{Endpoints: []string{"https://" + front.addr()}, TLS: &connector.TLSConfig{CAFile: ca.file}})
		lockOnce(t, func() (*dlock.Client, error) { return dlock.NewEtcd(c, &dlock.Config{}) })
		refused(t, open(t, "https://"+front.addr(), nil), connector.ErrTLS, atOnce)
	})
}

func TestEtcdUnreachable(t *testing.T) {
	t.Run("no server", func(t *testing.T) {
		c := newEtcd(t, connector.EtcdConfig{Endpoints: []string{unused(t), unused(t)}, Username: "root", Password: password, ConnectTimeout: long})
		if err := refused(t, c, connector.ErrUnreachable, atOnce); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("no cause: %v", err)
		}
	})
	t.Run("closes", func(t *testing.T) {
		door, began := shutDoor(t), time.Now()
		c := newEtcd(t, connector.EtcdConfig{Endpoints: []string{door.addr()}, ConnectTimeout: long})
		refused(t, c, connector.ErrUnreachable, atOnce)
		if n := door.knocks.Load(); n > int64(2*handful+reconnects(began)) {
			t.Errorf("%d connections", n)
		}
	})
	t.Run("half-open", func(t *testing.T) {
		t.Parallel()
		proxy := halfOpen(t)
		c := newEtcd(t, connector.EtcdConfig{Endpoints: []string{proxy.Addr()}, ConnectTimeout: short})
		refused(t, c, connector.ErrTimeout, short)
		if n := proxy.Connections(); n > 2*handful {
			t.Errorf("%d connections", n)
		}
	})
}

func TestEtcdContext(t *testing.T) {
	testContext(t, func(addr string) conn {
		return newEtcd(t, connector.EtcdConfig{Endpoints: []string{addr}, ConnectTimeout: long})
	})
}

// etcd behind a socket of this host, which may be there later.
func TestEtcdOnASocket(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	path := filepath.Join(t.TempDir(), "etcd")
	c := newEtcd(t, connector.EtcdConfig{Endpoints: []string{"unix://" + path}, ConnectTimeout: long})
	err := c.Connect(t.Context())
	if !errors.Is(err, connector.ErrUnreachable) || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("without a socket: %v", err)
	}
	forward(t, path, server.Addr())
	testenv.Eventually(t, patience, "it is reached", func() bool { return c.Connect(t.Context()) == nil })
	lockOnce(t, func() (*dlock.Client, error) { return dlock.NewEtcd(c, &dlock.Config{}) })
}

// forward passes the connections to a socket on to an address.
func forward(t *testing.T, path, addr string) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); _ = listener.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				_ = in.Close()
				continue
			}
			stop := context.AfterFunc(ctx, func() { _, _ = in.Close(), out.Close() })
			wg.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			wg.Go(func() { _, _ = io.Copy(in, out); _ = in.Close(); stop() })
		}
	})
}

// A client that knows one member finds the others, and goes on without the first.
func TestEtcdFindsItsMembers(t *testing.T) {
	t.Parallel()
	cluster := testenv.EtcdCluster(t)
	all := cluster.Endpoints()
	c := newEtcd(t, connector.EtcdConfig{Endpoints: all[:1], AutoSyncInterval: 50 * time.Millisecond, ConnectTimeout: long})
	mustConnect(t, c)
	testenv.Eventually(t, patience, "all members are known", func() bool { return len(c.Client().Endpoints()) == len(all) })
	if err := cluster.Nodes()[0].Kill(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, "the others serve", func() bool { return c.HealthCheck(t.Context()) == nil })
}
