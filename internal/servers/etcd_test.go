package servers_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

// etcdClient returns a client that ends with the test.
func etcdClient(t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	check(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// startEtcd is testenv.Etcd with options other than arguments.
func startEtcd(t *testing.T, opts servers.EtcdOptions) *servers.Etcd {
	t.Helper()
	testenv.Etcd(t) // skip here where there is none
	e, err := servers.StartEtcd(t.Context(), opts)
	check(t, err)
	t.Cleanup(func() { check(t, e.Stop()) })
	return e
}

func etcdPut(t *testing.T, client *clientv3.Client, key, value string) {
	t.Helper()
	_, err := client.Put(within(t, patience), key, value)
	check(t, err)
}

func etcdGet(t *testing.T, client *clientv3.Client, key string) string {
	t.Helper()
	got, err := client.Get(within(t, patience), key)
	check(t, err)
	if len(got.Kvs) == 0 {
		return ""
	}
	return string(got.Kvs[0].Value)
}

func TestMissingEtcd(t *testing.T) {
	t.Setenv(servers.EtcdEnv, "no-such-etcd")
	t.Setenv(servers.EtcdctlEnv, "no-such-etcdctl")
	_, err := servers.StartEtcd(t.Context(), servers.EtcdOptions{})
	if !errors.Is(err, servers.ErrNotInstalled) || !strings.Contains(err.Error(), "run ./scripts/etcd") {
		t.Errorf("the error is %v", err)
	}
	if path, err := servers.Etcdctl(); !errors.Is(err, servers.ErrNotInstalled) {
		t.Errorf("etcdctl is %q, %v", path, err)
	}
}

func TestEtcdStartFailuresExplainThemselves(t *testing.T) {
	t.Parallel()
	testenv.Etcd(t) // skip here where there is none
	wrong := servers.EtcdOptions{Args: []string{"--no-such-flag"}}
	if _, err := servers.StartEtcdCluster(t.Context(), 3, wrong); err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("with a wrong flag: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := servers.StartEtcd(ended, servers.EtcdOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

func TestEtcdShortestLease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		election time.Duration
		want     int64 // seconds
	}{
		{"by default", 0, 1},
		{"with the timers of etcd itself", time.Second, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := startEtcd(t, servers.EtcdOptions{Election: c.election})
			lease, err := etcdClient(t, e.Endpoint()).Grant(within(t, patience), 1)
			check(t, err)
			if lease.TTL != c.want {
				t.Errorf("granted %d s, want %d s", lease.TTL, c.want)
			}
		})
	}
}

func TestPausedEtcdIsSilentAndResumes(t *testing.T) {
	t.Parallel()
	e := testenv.Etcd(t)
	client := etcdClient(t, e.Endpoint())
	etcdPut(t, client, "key", "before")
	check(t, e.Pause())
	if !e.Running() {
		t.Error("a paused server counts as ended")
	}
	if _, err := client.Get(within(t, soon), "key"); !timedOut(err) {
		t.Errorf("a paused server answers %v", err)
	}
	check(t, e.Resume())
	if got := etcdGet(t, client, "key"); got != "before" {
		t.Errorf("after the pause %q", got)
	}
}

func TestEtcdRestart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		before   func(*servers.Etcd) error
		keepData bool
		want     string
	}{
		{"running, data lost", nil, false, ""},
		{"running, data kept", nil, true, "value"},
		{"paused, data kept", (*servers.Etcd).Pause, true, "value"},
		{"killed, data kept", (*servers.Etcd).Kill, true, "value"},
		{"killed, data lost", (*servers.Etcd).Kill, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := testenv.Etcd(t)
			etcdPut(t, etcdClient(t, e.Endpoint()), "key", "value")
			addr, pid := e.Addr(), e.Pid()
			if c.before != nil {
				check(t, c.before(e))
			}
			check(t, e.Restart(t.Context(), c.keepData))
			if e.Addr() != addr || e.Pid() == pid {
				t.Error("not a new process on the old port")
			}
			if got := etcdGet(t, etcdClient(t, e.Endpoint()), "key"); got != c.want {
				t.Errorf("key is %q, want %q", got, c.want)
			}
		})
	}
}

func TestEtcdGoesOnInItsDirectory(t *testing.T) {
	t.Parallel()
	opts := servers.EtcdOptions{Dir: t.TempDir(), Fsync: true}
	first := startEtcd(t, opts)
	etcdPut(t, etcdClient(t, first.Endpoint()), "key", "value")
	check(t, first.Stop())
	second := startEtcd(t, opts)
	if got := etcdGet(t, etcdClient(t, second.Endpoint()), "key"); got != "value" {
		t.Errorf("the second server has %q", got)
	}
}

func TestNothingRemainsOfEtcd(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(*servers.Etcd) error{
		"running": (*servers.Etcd).Resume, // which does nothing
		"paused":  (*servers.Etcd).Pause,
		"killed":  (*servers.Etcd).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			e := testenv.Etcd(t)
			check(t, before(e))
			check(t, e.Stop())
			checkNothingRemains(t, e)
			check(t, e.Stop())
		})
	}
}

func checkNothingRemains(t *testing.T, e *servers.Etcd) {
	t.Helper()
	if e.Running() {
		t.Errorf("process %d remains", e.Pid())
	}
	if _, err := os.Stat(e.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory remains: %v", err)
	}
	if conn, err := net.Dial("tcp", e.Addr()); err == nil {
		conn.Close()
		t.Error("the port still answers")
	}
}
