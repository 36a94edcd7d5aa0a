package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// subreaper makes this program one that gets all orphans, and then what its arguments say.
const subreaper = "DLOCK_TEST_SUBREAPER"

func init() {
	if os.Getenv(subreaper) == "" {
		return
	}
	_ = os.Unsetenv(subreaper)
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if err == nil {
		err = syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	panic(err)
}

// As the first process of a container, dlock gets the children that the command has left. It does not wait for
// them when they have ended.
func TestRunReapsOrphans(t *testing.T) {
	t.Parallel()
	const grace = 100 * time.Second
	witness := filepath.Join(t.TempDir(), "witness")
	cmd := exec.CommandContext(t.Context(), os.Args[0], program, "run", "--max-hold", "20s", "--ttl", "10m", "--grace", grace.String(), "k", "--", os.Args[0], witness)
	cmd.Env = append(os.Environ(), "DLOCK_BACKEND="+files(t), subreaper+"=1", childMode+"=obedient")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w := &wrapped{Cmd: cmd, out: bufio.NewReader(out), pipe: out}
	cmd.Stderr = &w.stderr
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killChild(witness) })
	w.says(t, "ready")
	_, _ = io.Copy(io.Discard, w.out)
	_ = cmd.Wait()
	took := time.Since(start)
	if code := cmd.ProcessState.ExitCode(); code != 76 || took > grace/2 || !isFree(t, witness) {
		t.Errorf("exit %d after %v, %s", code, took, w.stderr.String())
	}
}
