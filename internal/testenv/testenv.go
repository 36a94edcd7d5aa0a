// Package testenv gives tests real servers and a faulty network, and removes them when the test
// ends. A test fails if one of its servers cannot be stopped or has ended without being asked to.
//
// If a server is not installed, such tests are skipped. With DLOCK_TEST_REQUIRE=1 or CI in the
// environment they fail instead.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/metronome"
	"github.com/ceyewan/genesis/internal/servers"
)

// RequireEnv set to 1 makes a missing server a failure instead of a skip.
const RequireEnv = "DLOCK_TEST_REQUIRE"

// StressEnv is set where tests run their full counts and check every limit of real time.
const StressEnv = metronome.StressEnv

// Lease is that of a lock whose test is not about leases: longer than any machine, or server, stands still.
var Lease = UnderStress(time.Minute, 10*time.Second)

// UnderStress is metronome.UnderStress.
func UnderStress[T any](usual, full T) T { return metronome.UnderStress(usual, full) }

// A Metronome is a metronome.Metronome.
type Metronome = metronome.Metronome

// StartMetronome is metronome.Start.
func StartMetronome(tb testing.TB) *Metronome {
	tb.Helper()
	return metronome.Start(tb)
}

// Stalled is metronome.Stalled.
func Stalled(tb testing.TB, began time.Time, limit time.Duration) bool {
	tb.Helper()
	return metronome.Stalled(tb, began, limit)
}

// Late is metronome.Late.
func Late(tb testing.TB, began time.Time, limit time.Duration) bool {
	tb.Helper()
	return metronome.Late(tb, began, limit)
}

const (
	startWithin = 60 * time.Second
	pollFirst   = time.Millisecond
	pollEvery   = 20 * time.Millisecond
)

// Redis starts a server for this test. args override the defaults, which are a server without
// persistence.
func Redis(tb testing.TB, args ...string) *servers.Redis {
	tb.Helper()
	return start(tb, func(ctx context.Context) (*servers.Redis, error) {
		return servers.StartRedis(ctx, servers.RedisOptions{Args: args})
	})
}

// Sentinel starts a master, two replicas and three sentinels for this test.
func Sentinel(tb testing.TB) *servers.Sentinel {
	tb.Helper()
	return start(tb, func(ctx context.Context) (*servers.Sentinel, error) {
		return servers.StartSentinel(ctx, 2)
	})
}

// Cluster starts a cluster of three masters for this test.
func Cluster(tb testing.TB) *servers.Cluster {
	tb.Helper()
	return ClusterWithReplicas(tb, 0)
}

// ClusterWithReplicas starts a cluster of three masters with this many replicas each.
func ClusterWithReplicas(tb testing.TB, perMaster int) *servers.Cluster {
	tb.Helper()
	return start(tb, func(ctx context.Context) (*servers.Cluster, error) {
		return servers.StartCluster(ctx, perMaster)
	})
}

// Etcd starts a server for this test. args override the defaults, which are those of
// servers.EtcdOptions.
func Etcd(tb testing.TB, args ...string) *servers.Etcd {
	tb.Helper()
	return start(tb, func(ctx context.Context) (*servers.Etcd, error) {
		return servers.StartEtcd(ctx, servers.EtcdOptions{Args: args})
	})
}

// EtcdCluster starts a cluster of three servers for this test.
func EtcdCluster(tb testing.TB) *servers.EtcdCluster {
	tb.Helper()
	return start(tb, func(ctx context.Context) (*servers.EtcdCluster, error) {
		return servers.StartEtcdCluster(ctx, 3, servers.EtcdOptions{})
	})
}

// Etcdctl returns the path of etcdctl.
func Etcdctl(tb testing.TB) string {
	tb.Helper()
	path, err := servers.Etcdctl()
	if err != nil {
		skipOrFail(tb, err)
	}
	return path
}

// Chromium returns the path of a browser.
func Chromium(tb testing.TB) string {
	tb.Helper()
	path, err := servers.Chromium()
	if err != nil {
		skipOrFail(tb, err)
	}
	return path
}

// Proxy starts a proxy in front of addr for this test. It is closed before the server that was
// started before it.
func Proxy(tb testing.TB, addr string) *faultproxy.Proxy {
	tb.Helper()
	p, err := faultproxy.Start(addr)
	if err != nil {
		tb.Fatalf("proxy: %v", err)
	}
	tb.Cleanup(func() { check(tb, p.Close()) })
	return p
}

// Child starts a command for this test. When the test ends, it kills the command and every process
// that the command has started.
func Child(tb testing.TB, cmd *exec.Cmd) *servers.Child {
	tb.Helper()
	child, err := servers.StartChild(cmd)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(child.Kill)
	return child
}

// Eventually polls cond until it is true, and fails the test if that takes longer than within. what
// describes the awaited condition.
func Eventually(tb testing.TB, within time.Duration, what string, cond func() bool) {
	tb.Helper()
	pause := pollFirst
	for end := time.Now().Add(within); !cond(); time.Sleep(pause) {
		if time.Now().After(end) {
			tb.Fatalf("not within %v: %s", within, what)
		}
		pause = min(2*pause, pollEvery)
	}
}

type stopper interface{ Stop() error }

func start[S stopper](tb testing.TB, begin func(context.Context) (S, error)) S {
	tb.Helper()
	StartMetronome(tb) // for calls that the machine may delay: see Stalled
	ctx, cancel := context.WithTimeout(tb.Context(), startWithin)
	defer cancel()
	server, err := begin(ctx)
	if err != nil {
		skipOrFail(tb, err)
	}
	tb.Cleanup(func() { check(tb, server.Stop()) })
	return server
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Errorf("cleaning up: %v", err)
	}
}

// Missing ends a test that needs a program that is not installed: with a skip, or with a failure where
// servers are required.
func Missing(tb testing.TB, advice string) {
	tb.Helper()
	skipOrFail(tb, fmt.Errorf("%w: %s", servers.ErrNotInstalled, advice))
}

// skipOrFail ends the test. It also writes a skip to standard error: go test shows the reason of a
// skip only on request.
func skipOrFail(tb testing.TB, err error) {
	tb.Helper()
	if !errors.Is(err, servers.ErrNotInstalled) || required() {
		tb.Fatal(err)
	}
	fmt.Fprintf(os.Stderr, "SKIP %s: %v\n", tb.Name(), err)
	tb.Skip(err)
}

func required() bool {
	return os.Getenv(RequireEnv) == "1" || os.Getenv("CI") != ""
}
