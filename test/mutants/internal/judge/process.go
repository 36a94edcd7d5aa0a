package judge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"time"
)

// marker is the environment variable by which leftovers are found.
const marker = "DLOCK_MUTANT"

var runs atomic.Int64

// A command is a process with all its children, which do not outlive it.
type command struct {
	dir   string
	env   []string
	args  []string
	tmp   string        // the folder for its temporary files
	limit time.Duration // 0: none
}

// run returns what the command wrote, and whether it had to be killed after the limit. The
// error is an *exec.ExitError if the command failed.
func (c command) run(ctx context.Context) (out []byte, timedOut bool, err error) {
	if err := os.MkdirAll(c.tmp, 0o755); err != nil {
		return nil, false, err
	}
	file, err := os.CreateTemp(c.tmp, "output-*")
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	mark := fmt.Sprintf("%s=%d.%d", marker, os.Getpid(), runs.Add(1))
	cmd := exec.Command(c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, file, file // a file: a pipe would wait for leftovers
	cmd.Env = append(append(os.Environ(), "TMPDIR="+c.tmp, mark), c.env...)
	ownGroup(cmd)
	runtime.LockOSThread() // the child is killed when the thread that started it ends
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, false, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	timedOut, err = c.await(ctx, cmd, ended)
	killGroup(cmd)
	killMarked(mark)
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	out, readErr := os.ReadFile(file.Name())
	return out, timedOut, errors.Join(err, readErr)
}

func (c command) await(ctx context.Context, cmd *exec.Cmd, ended <-chan error) (timedOut bool, err error) {
	var limit <-chan time.Time
	if c.limit > 0 {
		timer := time.NewTimer(c.limit)
		defer timer.Stop()
		limit = timer.C
	}
	select {
	case err = <-ended:
		return false, err
	case <-limit:
		timedOut = true
	case <-ctx.Done():
	}
	killGroup(cmd)
	return timedOut, <-ended
}
