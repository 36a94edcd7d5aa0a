package servers

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"
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

// skipMissing is what testenv does, which cannot be imported from here: without
// a server, a test is skipped locally and fails where servers are required.
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
		args: func(p []*port) []string {
			if tried = append(tried, p[0].addr()); len(tried) == 1 {
				occupy(t, p[0].addr()) // somebody was faster
			}
			return dataArgs(p[0], nil)
		},
		files: func([]*port) map[string]string { return map[string]string{redisConf: ""} },
	})
	skipMissing(t, err)
	if len(tried) != 2 || r.Addr() != tried[1] {
		t.Errorf("tried %v, runs at %s", tried, r.Addr())
	}
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
}

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
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := r.Restart(short, true); err == nil {
		t.Fatal("it started on a port that is taken")
	}
	squatter.Close()
	if err := r.Restart(t.Context(), true); err != nil {
		t.Error(err)
	}
}

func TestReservedPortsAreApart(t *testing.T) {
	t.Parallel()
	ports, err := reservePorts(100)
	if err != nil {
		t.Fatal(err)
	}
	defer releasePorts(ports)
	seen := make(map[int]bool)
	for _, p := range ports {
		if seen[p.number] || p.number < portLow || p.number >= portHigh {
			t.Errorf("port %d", p.number)
		}
		seen[p.number] = true
		occupy(t, p.addr()) // TCP is free to take
		if token, err := net.ListenPacket("udp4", p.addr()); err == nil {
			token.Close()
			t.Errorf("port %d can be reserved twice", p.number)
		}
	}
}
