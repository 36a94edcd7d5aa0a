package servers

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/loopback"
)

func occupy(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// aMinute returns the context of a wait that must end.
func aMinute(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("not within a minute"))
	t.Cleanup(cancel)
	return ctx
}

// ended returns the result of a call in the background.
func ended(t *testing.T, call <-chan error) error {
	t.Helper()
	select {
	case err := <-call:
		return err
	case <-time.After(time.Minute):
		return errors.New("the call in the background does not end within a minute")
	}
}

// skipMissing does what testenv does, which cannot be imported here: without a server, a test is
// skipped locally and fails where servers are required.
func skipMissing(t *testing.T, err error) {
	t.Helper()
	required := os.Getenv("DLOCK_TEST_REQUIRE") == "1" || os.Getenv("CI") != ""
	if errors.Is(err, ErrNotInstalled) && !required {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestStartTriesAnotherPort(t *testing.T) {
	t.Parallel()
	var tried []string
	r, err := launchRedis(t.Context(), redisPlan{
		ports: 1,
		args: func(p []*loopback.Port) []string {
			tried = append(tried, p[0].Addr())
			if len(tried) == 1 {
				occupy(t, p[0].Addr()) // another process was faster
			}
			return dataArgs(p[0], nil)
		},
		files: func([]*loopback.Port) map[string]string { return map[string]string{redisConf: ""} },
	})
	skipMissing(t, err)
	if len(tried) != 2 || r.Addr() != tried[1] {
		t.Errorf("tried %v, runs at %s", tried, r.Addr())
	}
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
}

// A server must restart while another process has its port: it does not start elsewhere, and it
// starts when the port is free again.
func TestRestartWaitsForItsPort(t *testing.T) {
	t.Parallel()
	r, err := StartRedis(t.Context(), RedisOptions{})
	skipMissing(t, err)
	defer func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	squatter := occupy(t, r.Addr())
	restarted := make(chan error, 1)
	go func() { restarted <- r.Restart(t.Context(), true) }()
	err = await(aMinute(t), "a failed start", func(context.Context) error {
		if !strings.Contains(r.Log(), "ddress already in use") {
			return errors.New(r.Log())
		}
		return nil
	})
	select {
	case err := <-restarted:
		t.Fatalf("it started on a port that is taken: %v", err)
	default:
	}
	squatter.Close()
	if err := errors.Join(err, ended(t, restarted)); err != nil {
		t.Error(err)
	}
}

// A restart is abandoned while the server is still starting: the next one ends that server, which
// does not listen yet.
func TestRestartAfterOneThatWasGivenUp(t *testing.T) {
	t.Parallel()
	r, err := StartRedis(t.Context(), RedisOptions{})
	skipMissing(t, err)
	defer func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for range 3 {
		if err := r.Kill(); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_ = r.Restart(short, true) // it may be quicker
		cancel()
		if err := r.Restart(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
}
