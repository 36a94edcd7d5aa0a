//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/cli"
	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/clog"
	library "github.com/ceyewan/genesis/pkg/dlock"
)

// A sharedServer serves all tests that neither stop nor configure a server. Each test has a prefix of its own.
type sharedServer struct {
	scheme string
	start  func(context.Context) (server, error)
	once   sync.Once
	server server
	err    error
}

type server interface {
	Addr() string
	Stop() error
}

var (
	theRedis = &sharedServer{scheme: "redis", start: func(ctx context.Context) (server, error) {
		return servers.StartRedis(ctx, servers.RedisOptions{})
	}}
	theEtcd = &sharedServer{scheme: "etcd", start: func(ctx context.Context) (server, error) {
		return servers.StartEtcd(ctx, servers.EtcdOptions{})
	}}
	prefixes atomic.Int64
)

// backend is the URL of the server for one test.
func (s *sharedServer) backend(t testing.TB) string {
	t.Helper()
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		server, err := s.start(ctx)
		if s.err = err; err == nil {
			s.server = server
		}
	})
	if errors.Is(s.err, servers.ErrNotInstalled) {
		testenv.Missing(t, s.err.Error())
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	return fmt.Sprintf("%s://%s?prefix=test%d:", s.scheme, s.server.Addr(), prefixes.Add(1))
}

func (s *sharedServer) stop() error {
	if s.server == nil {
		return nil
	}
	return s.server.Stop()
}

// stopping stops shared servers after the tests, before goroutines are counted.
type stopping struct{ *testing.M }

func (s stopping) Run() int {
	code := s.M.Run()
	if err := errors.Join(theRedis.stop(), theEtcd.stop()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// where is a backend without its parameters, as it is shown.
func where(backend string) string {
	at, _, _ := strings.Cut(backend, "?")
	return at
}

// through is a backend past a proxy.
func through(t testing.TB, backend string) (faulty string, p *faultproxy.Proxy) {
	t.Helper()
	_, addr, _ := strings.Cut(where(backend), "://")
	p = testenv.Proxy(t, addr)
	return strings.Replace(backend, addr, p.Addr(), 1), p
}

// queued waits until so many wait for a key. It asks in this process: each call of dlock costs the time of many questions.
func queued(t testing.TB, backend, key string, want int) {
	t.Helper()
	u, err := cli.ParseURL(backend)
	if err != nil {
		t.Fatal(err)
	}
	b, err := schemes()[u.Scheme](u, clog.Logger{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	client, err := library.New(&b.Config, library.WithBackend(b.Opener), library.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	admin, err := client.Admin()
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, fmt.Sprintf("%d wait for %s", want, key), func() bool {
		claims, err := admin.Inspect(t.Context(), key)
		waiters := 0
		for i := range claims {
			if claims[i].Phase == library.PhaseQueued {
				waiters++
			}
		}
		return err == nil && waiters == want
	})
}
