//go:build unix

package lockreader_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A holder that has ended, and whose child has the lock, cannot be killed.
func TestCannotEvictEndedHolder(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	dead := cmd.ProcessState.Pid()
	for _, test := range []struct {
		holder dlock.Info
		want   string
	}{
		{dlock.Info{Host: host, PID: dead}, "lslocks"},
		{dlock.Info{Host: host + "-2", PID: dead}, fmt.Sprintf("kill %d", dead)},
		{dlock.Info{Host: host, PID: os.Getpid()}, fmt.Sprintf("kill %d", os.Getpid())},
	} {
		err := lockreader.CannotEvict(dlock.BackendFile, "k", 1, test.holder)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %s", test.holder, err, test.want)
		}
	}
}
