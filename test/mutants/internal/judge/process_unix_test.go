//go:build unix

package judge

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A child in its own process group, as servers are, and one in the group of the command.
const parent = `setsid sleep 300 & echo $! >"$TMPDIR/pids"; sleep 300 & echo $! >>"$TMPDIR/pids"; mv "$TMPDIR/pids" "$TMPDIR/ready"; wait`

func TestNothingOutlivesACommand(t *testing.T) {
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("processes are found by their environment in /proc, which this system does not have")
	}
	for _, how := range []string{"limit", "cancel"} {
		t.Run(how, func(t *testing.T) {
			c := command{dir: t.TempDir(), tmp: t.TempDir(), args: []string{"sh", "-c", parent}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ready := filepath.Join(c.tmp, "ready")
			if how == "limit" {
				c.limit = 8 * time.Second
			} else {
				go func() {
					for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
						if _, err := os.Stat(ready); err == nil {
							cancel()
						}
					}
				}()
			}
			_, timedOut, err := c.run(ctx)
			if timedOut != (how == "limit") || (how == "cancel") != errors.Is(err, context.Canceled) {
				t.Errorf("timed out: %v, error: %v", timedOut, err)
			}
			pids, err := os.ReadFile(ready)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range strings.Fields(string(pids)) {
				awaitEnd(t, text)
			}
		})
	}
}

// awaitEnd waits until a process that was killed is gone or waits for its parent.
func awaitEnd(t *testing.T, text string) {
	t.Helper()
	pid, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		stat, _ := os.ReadFile(filepath.Join("/proc", text, "stat"))
		if syscall.Kill(pid, 0) != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("process %d lives on", pid)
}
