package redislock_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// An operator gets an answer from a server that is busy for a second: read-only calls are repeated.
func TestReadsAreRepeated(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	acquire(t, locksAt(t, server.Addr()), "k")
	c := locksAt(t, proxy.Addr())
	admin, err := c.Admin()
	check(t, err)
	inspect := redislock.Scripts("inspect")
	for name, read := range map[string]struct {
		is   func(cmd []string) bool
		keys func() (int, error)
	}{
		"Inspect": {
			func(cmd []string) bool { return cmd[0] == "EVALSHA" && inspect[cmd[1]] != "" },
			func() (int, error) { claims, err := admin.Inspect(t.Context(), "k"); return len(claims), err },
		},
		"List": {
			func(cmd []string) bool { return strings.EqualFold(cmd[0], "SCAN") },
			func() (int, error) { keys, _, err := admin.ListPage(t.Context(), "", "", 10); return len(keys), err },
		},
	} {
		if n, err := answered(t, read.keys); n != 1 || err != nil { // and the script is known
			t.Fatalf("%s: %d, %v", name, n, err)
		}
		for {
			var swallowed atomic.Int64
			proxy.Intercept(func(cmd []string) faultproxy.Action {
				if read.is(cmd) && swallowed.Add(1) <= 2 {
					return faultproxy.Swallow
				}
				return faultproxy.Forward
			})
			began := time.Now()
			n, err := read.keys()
			sent := swallowed.Load()
			if n == 1 && err == nil && sent == 3 {
				break
			}
			if !testenv.Stalled(t, began, 500*time.Millisecond) { // which leaves a call without an answer as well
				t.Fatalf("%s was sent %d times, want 3: %d, %v", name, sent, n, err)
			}
		}
	}
}
