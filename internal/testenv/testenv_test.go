package testenv

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A witness is a test that records how it ended instead of ending the real test.
type witness struct {
	testing.TB
	skipped, failed string
	cleanups        []func()
}

func (w *witness) Helper()          {}
func (w *witness) Cleanup(f func()) { w.cleanups = append(w.cleanups, f) }

func (w *witness) Skip(args ...any) {
	w.skipped = args[0].(error).Error()
	runtime.Goexit()
}

func (w *witness) Fatal(args ...any) {
	w.failed = args[0].(error).Error()
	runtime.Goexit()
}

func (w *witness) Fatalf(format string, _ ...any) {
	w.failed = format
	runtime.Goexit()
}

func (w *witness) Errorf(_ string, args ...any) {
	w.failed = args[0].(error).Error()
}

// observe runs test as go test would: in a goroutine that it may end.
func observe(t *testing.T, test func(tb testing.TB)) *witness {
	t.Helper()
	w, done := &witness{TB: t}, make(chan struct{})
	go func() {
		defer close(done)
		test(w)
	}()
	<-done
	for _, f := range w.cleanups {
		f()
	}
	return w
}

func TestMissingServer(t *testing.T) {
	for _, server := range []struct {
		name, env, advice string
		start             func(testing.TB)
	}{
		{"redis", servers.BinaryEnv, "apt-get install redis-server", func(tb testing.TB) { Redis(tb) }},
		{"etcd", servers.EtcdEnv, "run ./scripts/etcd", func(tb testing.TB) { Etcd(tb) }},
		{"etcd cluster", servers.EtcdEnv, "run ./scripts/etcd", func(tb testing.TB) { EtcdCluster(tb) }},
		{"etcdctl", servers.EtcdctlEnv, "run ./scripts/etcd", func(tb testing.TB) { Etcdctl(tb) }},
	} {
		for _, c := range []struct {
			name, require, ci string
			fatal             bool
		}{
			{"skips", "", "", false},
			{"fails when required", "1", "", true},
			{"fails in CI", "", "true", true},
		} {
			t.Run(server.name+" "+c.name, func(t *testing.T) {
				t.Setenv(server.env, "no-such-binary")
				t.Setenv(RequireEnv, c.require)
				t.Setenv("CI", c.ci)
				w := observe(t, server.start)
				said, other := w.skipped, w.failed
				if c.fatal {
					said, other = other, said
				}
				if !strings.Contains(said, server.advice) || other != "" {
					t.Errorf("skipped %q, failed %q", w.skipped, w.failed)
				}
			})
		}
	}
}

func TestServersEndWithTheTest(t *testing.T) {
	var redis *servers.Redis
	var proxy *faultproxy.Proxy
	t.Run("inner", func(t *testing.T) {
		redis = Redis(t)
		proxy = Proxy(t, redis.Addr())
		client := redis.ClientAt(proxy.Addr())
		defer client.Close()
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	})
	if redis == nil {
		t.Skip("redis-server is not installed, so the inner test was skipped")
	}
	if redis.Running() || proxy.Open() != 0 {
		t.Error("the server or a connection outlived its test")
	}
}

func TestUnaskedEndFailsTheTest(t *testing.T) {
	Redis(t) // skip here where there is none
	w := observe(t, func(tb testing.TB) {
		redis := Redis(tb)
		client := redis.Client()
		defer client.Close()
		_ = client.Do(tb.Context(), "SHUTDOWN", "NOSAVE").Err()
		Eventually(tb, time.Minute, "the server ends", func() bool { return !redis.Running() })
	})
	if !strings.Contains(w.failed, "ended by itself") {
		t.Errorf("failed %q", w.failed)
	}
}

func TestArgsReachTheServer(t *testing.T) {
	client := Redis(t, "--appendonly", "yes").Client()
	defer client.Close()
	got, err := client.ConfigGet(t.Context(), "appendonly").Result()
	if err != nil || got["appendonly"] != "yes" {
		t.Errorf("appendonly is %v, %v", got, err)
	}
}

func TestEventually(t *testing.T) {
	calls := 0
	Eventually(t, time.Minute, "third call", func() bool { calls++; return calls == 3 })
	w := observe(t, func(tb testing.TB) {
		Eventually(tb, time.Millisecond, "never", func() bool { return false })
	})
	if w.failed == "" {
		t.Error("it waited forever and was content")
	}
}

func TestOtherErrorsAreFatal(t *testing.T) {
	w := observe(t, func(tb testing.TB) { skipOrFail(tb, errors.New("broken")) })
	if w.failed != "broken" || w.skipped != "" {
		t.Errorf("skipped %q, failed %q", w.skipped, w.failed)
	}
}
