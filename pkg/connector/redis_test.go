package connector_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

const password = "pa55-w0rd-of-the-server"

// redisWithUsers starts a server with a password and two ACL users: one who may lock, as
// docs/backends/redis.md describes it, and one who may do nothing.
func redisWithUsers(t *testing.T) *servers.Redis {
	t.Helper()
	server := testenv.Redis(t)
	admin := server.Client()
	defer admin.Close()
	for _, command := range []string{
		"ACL SETUSER locks on >" + password + " resetkeys resetchannels -@all " +
			"+eval +evalsha +get +set +setrange +del +exists +pexpire +pttl +time " +
			"+hget +hset +hsetnx +hdel +hmget +hrandfield +zadd +zrange +zrank +zrem +zcard +zcount " +
			"+publish +subscribe +pubsub|numsub +ping +info +scan +getrange ~p:* ~{p:* ~dlock:token* &dlock:*",
		"ACL SETUSER nobody on >" + password + " -@all",
		"CONFIG SET requirepass " + password,
	} {
		var args []any
		for _, word := range strings.Fields(command) {
			args = append(args, word)
		}
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return server
}

func TestRedisSingle(t *testing.T) {
	server := redisWithUsers(t)
	log, lines := debugLog()
	c := newRedis(t, connector.RedisConfig{Addr: server.Addr(), Password: password, DB: 3, MinIdleConns: 1}, connector.WithLogger(log))
	mustConnect(t, c)
	lockOnce(t, func() (*dlock.Client, error) {
		return dlock.NewRedis(c, &dlock.Config{Prefix: "p:"}, dlock.WithLogger(log))
	})

	client, ok := c.Client().(*redis.Client)
	if !ok || client.Options().DB != 3 || !client.Options().ContextTimeoutEnabled {
		t.Fatalf("client: %v", c.Client())
	}
	if err := client.Set(t.Context(), "p:data", "x", time.Minute).Err(); err != nil {
		t.Fatalf("the locks have closed the client: %v", err)
	}
	closedFor(t, c)
	if err := client.Ping(t.Context()).Err(); !errors.Is(err, redis.ErrClosed) {
		t.Fatalf("the client is open: %v", err)
	}
	if text := lines(); strings.Contains(text, password) || !strings.Contains(text, `"msg":"connected"`) || !strings.Contains(text, `"msg":"closed"`) {
		t.Fatalf("log: %s", text)
	}
}

func TestRedisUsers(t *testing.T) {
	server := redisWithUsers(t)
	c := newRedis(t, connector.RedisConfig{Addr: server.Addr(), Username: "locks", Password: password})
	mustConnect(t, c)
	lockOnce(t, func() (*dlock.Client, error) { return dlock.NewRedis(c, &dlock.Config{Prefix: "p:"}) })
	admin := newRedis(t, connector.RedisConfig{Addr: server.Addr(), Password: password})
	if entries, err := admin.Client().ACLLog(t.Context(), 10).Result(); err != nil || len(entries) > 0 {
		t.Errorf("the server has refused something to the user: %v %v", entries, err)
	}

	for name, cfg := range map[string]connector.RedisConfig{
		"no password":     {},
		"wrong password":  {Password: "wrong-" + password},
		"unknown user":    {Username: "stranger", Password: "wrong-" + password},
		"user's password": {Username: "locks", Password: "wrong-" + password},
		"no rights":       {Username: "nobody", Password: password},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := testenv.Proxy(t, server.Addr())
			cfg.Addr, cfg.ConnectTimeout = proxy.Addr(), long
			err := refused(t, newRedis(t, cfg), connector.ErrDenied, atOnce)
			if reply := redis.Error(nil); !errors.As(err, &reply) {
				t.Errorf("no cause: %v", err)
			}
			if strings.Contains(err.Error(), password) {
				t.Errorf("password in %v", err)
			}
			if n := proxy.Connections(); n > 2*handful {
				t.Errorf("%d connections", n)
			}
		})
	}
}

// A server that does not know AUTH repeats what it was sent.
func TestRedisRepeatsPassword(t *testing.T) {
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	proxy.Intercept(faultproxy.Every(faultproxy.ReplyError("ERR unknown command, with args beginning with: '"+password+"'"), "HELLO", "AUTH"))
	err := newRedis(t, connector.RedisConfig{Addr: proxy.Addr(), Password: password}).Connect(t.Context())
	if err == nil || !strings.Contains(err.Error(), "unknown command") {
		t.Fatalf("got %v", err)
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		if strings.Contains(e.Error(), password) {
			t.Fatalf("password in %v", e)
		}
	}
}

func TestRedisTLS(t *testing.T) {
	server := testenv.Redis(t)
	testTLS(t, server.Addr(), func(t *testing.T, addr string, tls *connector.TLSConfig) conn {
		return newRedis(t, connector.RedisConfig{Addr: addr, TLS: tls, ConnectTimeout: long})
	})
	t.Run("first lock", func(t *testing.T) {
		ca, other := newAuthority(t), newAuthority(t)
		cert, key := ca.issue("127.0.0.1", time.Now().Add(time.Hour))
		front := newFront(t, server.Addr(), cert, key, nil)
		good := newRedis(t, connector.RedisConfig{Addr: front.addr(), TLS: &connector.TLSConfig{CAFile: ca.file}})
		lockOnce(t, func() (*dlock.Client, error) { return dlock.NewRedis(good, &dlock.Config{}) })

		before := front.connections()
		bad := newRedis(t, connector.RedisConfig{Addr: front.addr(), TLS: &connector.TLSConfig{CAFile: other.file}})
		locks, err := dlock.NewRedis(bad, &dlock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close()
		ctx, cancel := context.WithTimeout(t.Context(), testenv.UnderStress(patience, 2*time.Second))
		defer cancel()
		if err := locks.Lock(ctx, "key"); !errors.Is(err, connector.ErrTLS) || ctx.Err() != nil {
			t.Errorf("got %v, %v", err, ctx.Err())
		}
		if n := front.connections() - before; n > handful {
			t.Errorf("%d connections", n)
		}
	})
}

func TestRedisUnreachable(t *testing.T) {
	t.Run("no server", func(t *testing.T) {
		c := newRedis(t, connector.RedisConfig{Addr: unused(t), Password: password, ConnectTimeout: long})
		err := refused(t, c, connector.ErrUnreachable, atOnce)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("no cause: %v", err)
		}
	})
	t.Run("unknown host", func(t *testing.T) {
		err := newRedis(t, connector.RedisConfig{Addr: "no-such-host.invalid:6379", ConnectTimeout: time.Second}).Connect(t.Context())
		if !errors.Is(err, connector.ErrUnreachable) && !errors.Is(err, connector.ErrTimeout) { // as the resolver has it
			t.Errorf("got %v", err)
		}
	})
	for name, cfg := range map[string]connector.RedisConfig{
		"single":   {},
		"sentinel": {MasterName: "m"},
		"cluster":  {Cluster: true},
	} {
		t.Run(name+" closes", func(t *testing.T) {
			door := shutDoor(t)
			cfg := cfg
			cfg.Addrs, cfg.ConnectTimeout = []string{door.addr()}, long
			c := newRedis(t, cfg)
			refused(t, c, connector.ErrUnreachable, atOnce)
			if n := door.knocks.Load(); n > 2*handful {
				t.Errorf("%d connections", n)
			}
		})
		t.Run(name+" half-open", func(t *testing.T) {
			t.Parallel()
			proxy := halfOpen(t)
			cfg := cfg
			cfg.Addrs, cfg.ConnectTimeout, cfg.DialTimeout = []string{proxy.Addr()}, short, short
			c := newRedis(t, cfg)
			err := refused(t, c, connector.ErrTimeout, short)
			if n := proxy.Connections(); n > 2*handful {
				t.Errorf("%d connections: %v", n, err)
			}
		})
	}
}

func TestRedisContext(t *testing.T) {
	testContext(t, func(addr string) conn {
		return newRedis(t, connector.RedisConfig{Addr: addr, ConnectTimeout: long, DialTimeout: long})
	})
}

// testContext checks on a half-open host that the end of a context ends the call, and that Close
// does too.
func testContext(t *testing.T, open func(addr string) conn) {
	t.Helper()
	c := open(halfOpen(t).Addr())
	for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if end == context.Canceled { //nolint:errorlint // one of the two above
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
		}
		began := time.Now()
		err := c.Connect(ctx)
		cancel()
		if !errors.Is(err, end) || time.Since(began) > 100*time.Millisecond+overrun {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if errors.Is(err, connector.ErrTimeout) != (end == context.DeadlineExceeded) { //nolint:errorlint // see above
			t.Errorf("kind: %v", err)
		}
	}
	host := halfOpen(t)
	c = open(host.Addr())
	answer := make(chan error)
	go func() { answer <- c.Connect(context.Background()) }()
	testenv.Eventually(t, patience, "Connect is under way", func() bool { return host.Connections() > 0 })
	began := time.Now()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-answer; !errors.Is(err, connector.ErrClosed) || time.Since(began) > overrun {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

func TestRedisSentinel(t *testing.T) {
	t.Parallel()
	group := testenv.Sentinel(t)
	c := newRedis(t, connector.RedisConfig{Addrs: group.SentinelAddrs(), MasterName: servers.MasterName},
		connector.WithRedisLockOptions(redislock.WithMinReplicas(1, time.Second)))
	mustConnect(t, c)
	lockOnce(t, func() (*dlock.Client, error) { return dlock.NewRedis(c, &dlock.Config{}) })
	closedFor(t, c)

	stranger := newRedis(t, connector.RedisConfig{Addrs: group.SentinelAddrs(), MasterName: "stranger", ConnectTimeout: long})
	if err := refused(t, stranger, connector.ErrInvalidConfig, atOnce); !strings.Contains(err.Error(), "MasterName") {
		t.Error(err)
	}
	closed := redisWithUsers(t) // stands for sentinels with a password
	c = newRedis(t, connector.RedisConfig{Addrs: []string{closed.Addr()}, MasterName: "m", SentinelPassword: "wrong-" + password, ConnectTimeout: long})
	if err := refused(t, c, connector.ErrDenied, atOnce); strings.Contains(err.Error(), password) {
		t.Error(err)
	}
}

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	for name, cfg := range map[string]connector.RedisConfig{
		"several addresses": {Addrs: cluster.Addrs()},
		"one address":       {Addr: cluster.Addrs()[0], Cluster: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newRedis(t, cfg)
			mustConnect(t, c)
			lockOnce(t, func() (*dlock.Client, error) { return dlock.NewRedis(c, &dlock.Config{}) })
			client, ok := c.Client().(*redis.ClusterClient)
			if !ok || !client.Options().ContextTimeoutEnabled {
				t.Fatalf("client: %v", c.Client())
			}
			closedFor(t, c)
		})
	}
	c := newRedis(t, connector.RedisConfig{Addrs: cluster.Addrs(), ConnectTimeout: long})
	mustConnect(t, c)
	if err := cluster.Nodes()[2].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.HealthCheck(t.Context()); err == nil {
		t.Error("healthy without a master")
	}

	single := testenv.Redis(t)
	c = newRedis(t, connector.RedisConfig{Addr: single.Addr(), Cluster: true, ConnectTimeout: long})
	refused(t, c, connector.ErrInvalidConfig, atOnce)
	c = newRedis(t, connector.RedisConfig{Addr: single.Addr(), DB: 99, ConnectTimeout: long})
	refused(t, c, connector.ErrInvalidConfig, atOnce)
}

func TestRedisSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "redis.sock")
	testenv.Redis(t, "--unixsocket", path)
	mustConnect(t, newRedis(t, connector.RedisConfig{Addr: path}))
}

func TestRedisComesBack(t *testing.T) {
	server := testenv.Redis(t)
	c := newRedis(t, connector.RedisConfig{Addr: server.Addr(), ConnectTimeout: long})
	mustConnect(t, c)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	refused(t, c, connector.ErrUnreachable, atOnce)
	if err := server.Restart(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, "healthy again", func() bool { return c.HealthCheck(t.Context()) == nil })
}
