package servers_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

func TestMissingBinary(t *testing.T) {
	t.Setenv(servers.BinaryEnv, "no-such-redis-server")
	_, err := servers.StartRedis(t.Context(), servers.RedisOptions{})
	if !errors.Is(err, servers.ErrNotInstalled) || !strings.Contains(err.Error(), "apt-get install redis-server") {
		t.Errorf("the error is %v", err)
	}
}

func TestStartFailuresExplainThemselves(t *testing.T) {
	t.Parallel()
	testenv.Redis(t) // skip here where there is none
	_, err := servers.StartRedis(t.Context(), servers.RedisOptions{Args: []string{"--no-such-setting", "1"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-setting") {
		t.Errorf("with a wrong setting: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := servers.StartRedis(ended, servers.RedisOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

func TestPasswordIsRequiredAndSent(t *testing.T) {
	t.Parallel()
	testenv.Redis(t) // skip here where there is none
	r, err := servers.StartRedis(t.Context(), servers.RedisOptions{Password: "secret"})
	check(t, err)
	t.Cleanup(func() { check(t, r.Stop()) })
	check(t, clientOf(t, r).Ping(t.Context()).Err())
	stranger := clientAt(t, testenv.Redis(t), r.Addr())
	if err := stranger.Ping(t.Context()).Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("without password: %v", err)
	}
}

func TestPausedServerIsSilentAndResumes(t *testing.T) {
	t.Parallel()
	r := testenv.Redis(t)
	client := clientOf(t, r)
	check(t, client.Set(t.Context(), "key", "before", 0).Err())
	check(t, r.Pause())
	if !r.Running() {
		t.Error("a paused server counts as ended")
	}
	if err := client.Get(within(t, 100*time.Millisecond), "key").Err(); !timedOut(err) {
		t.Errorf("a paused server answers %v", err)
	}
	check(t, r.Resume())
	if got := get(t, client, "key"); got != "before" {
		t.Errorf("after the pause %q", got)
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	aof := []string{"--appendonly", "yes", "--appendfsync", "always"}
	for _, c := range []struct {
		name     string
		args     []string
		before   func(*servers.Redis) error
		keepData bool
		want     string
	}{
		{"running, data lost", nil, nil, false, ""},
		{"running, data kept", nil, nil, true, "value"},
		{"paused, data kept", nil, (*servers.Redis).Pause, true, "value"},
		{"killed without persistence", nil, (*servers.Redis).Kill, true, ""},
		{"killed with persistence", aof, (*servers.Redis).Kill, true, "value"},
		{"killed with persistence, data lost", aof, (*servers.Redis).Kill, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testenv.Redis(t, c.args...)
			client := clientOf(t, r)
			check(t, client.Set(t.Context(), "key", "value", 0).Err())
			addr, pid := r.Addr(), r.Pid()
			if c.before != nil {
				check(t, c.before(r))
			}
			check(t, r.Restart(t.Context(), c.keepData))
			if r.Addr() != addr || r.Pid() == pid {
				t.Error("not a new process on the old port")
			}
			if got := get(t, clientOf(t, r), "key"); got != c.want {
				t.Errorf("key is %q, want %q", got, c.want)
			}
		})
	}
}

func TestKilledServerRefusesConnections(t *testing.T) {
	t.Parallel()
	r := testenv.Redis(t)
	check(t, r.Kill())
	if conn, err := net.Dial("tcp", r.Addr()); err == nil {
		conn.Close()
		t.Error("the port of a killed server still answers")
	}
}
