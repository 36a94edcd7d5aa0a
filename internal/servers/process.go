package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	logName     = "output.log"
	logTail     = 4 << 10
	stopTimeout = 3 * time.Second
	killTimeout = time.Minute
)

// ProcessOptions say what to run.
type ProcessOptions struct {
	// Path of the binary, and its arguments without the name.
	Path string
	Args []string
	// Dir is the working directory. Empty: a new temporary directory, which Stop removes. A
	// directory that the caller names is never removed.
	Dir string
	// Files are written into the directory only before the first start, so that files that the
	// process rewrites survive a Restart.
	Files map[string]string
	// UID is the user and the group that the process runs as, if this process is root. 0: those of
	// this process.
	UID uint32
	// Abrupt makes Stop send SIGKILL at once.
	Abrupt bool
	// StopWithin is how long Stop waits before it sends SIGKILL; 0: 3 s.
	StopWithin time.Duration
	// Orderly: SIGTERM must end the process in time and with status 0. Stop returns ErrKilled for a
	// process that had to be killed, and ErrExit for any other status.
	Orderly bool
}

// Errors for a process that ended unexpectedly.
var (
	// ErrKilled: it did not end when asked to.
	ErrKilled = errors.New("it had to be killed")
	// ErrExit: it ended by itself, or with a status other than 0.
	ErrExit = errors.New("out of order")
)

// A Process is a child process that can be stopped, killed, paused and
// started again with the same arguments in the same directory. Its methods
// may be called from any goroutine.
type Process struct {
	opts  ProcessOptions
	owned bool // Stop removes the directory

	restart sync.Mutex // serialises Restart and Stop
	stopped bool
	mu      sync.Mutex // guards cur
	cur     *run
}

// A run is one execution of a Process.
type run struct {
	cmd   *exec.Cmd
	log   int64       // where in the log file its output begins
	asked atomic.Bool // this process asked it to end
	done  chan struct{}
	err   error // what Wait said; read it after done
}

// StartProcess starts the process. It returns as soon as the binary runs, which is before it is
// ready.
func StartProcess(opts ProcessOptions) (*Process, error) {
	p := &Process{opts: opts}
	if err := p.prepareDir(); err != nil {
		return nil, err
	}
	if err := p.start(); err != nil {
		return nil, errors.Join(err, p.removeDir())
	}
	return p, nil
}

func (p *Process) prepareDir() error {
	if p.opts.Dir == "" {
		dir, err := os.MkdirTemp("", "dlock-server-*")
		if err != nil {
			return fmt.Errorf("directory for %s: %w", p.name(), err)
		}
		p.opts.Dir, p.owned = dir, true
	}
	for name, text := range p.opts.Files {
		path := filepath.Join(p.opts.Dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return errors.Join(fmt.Errorf("prepare %s: %w", p.name(), err), p.removeDir())
		}
	}
	return nil
}

func (p *Process) removeDir() error {
	if !p.owned {
		return nil
	}
	return os.RemoveAll(p.opts.Dir)
}

// start begins a new run. The output goes directly to a file, so that there is no copying goroutine
// between the child and its Wait.
func (p *Process) start() error {
	path := filepath.Join(p.opts.Dir, logName)
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("log of %s: %w", p.name(), err)
	}
	defer out.Close() // the child holds its own descriptor
	cmd := exec.Command(p.opts.Path, p.opts.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.opts.Dir, out, out
	cmd.SysProcAttr = childAttr()
	if p.opts.UID != 0 {
		runAs(cmd.SysProcAttr, p.opts.UID)
	}
	from, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("log of %s: %w", p.name(), err)
	}
	r, err := launch(cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name(), err)
	}
	r.log = from
	p.mu.Lock()
	p.cur = r
	p.mu.Unlock()
	return nil
}

// launch starts cmd in a goroutine that stays locked to its thread until the child is gone. The
// kernel sends the parent-death signal when the thread that forked ends, not when the process does,
// and the Go runtime may end idle threads at any time. A thread that is blocked waiting for the
// child is not idle.
func launch(cmd *exec.Cmd) (*run, error) {
	r := &run{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(r.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		r.err = cmd.Wait()
		killGroup(cmd.Process.Pid)
	}()
	if err := <-started; err != nil {
		<-r.done
		return nil, err
	}
	return r, nil
}

func (p *Process) name() string { return filepath.Base(p.opts.Path) }

func (p *Process) current() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cur
}

// Dir returns the working directory.
func (p *Process) Dir() string { return p.opts.Dir }

// Pid returns the process ID of the current run or, after its end, of the last one.
func (p *Process) Pid() int { return p.current().cmd.Process.Pid }

// Done is closed when the current run has ended and has been waited for.
func (p *Process) Done() <-chan struct{} { return p.current().done }

// ExitCode returns that of the current run after its end, or -1 if a signal ended it. Call it after
// Done.
func (p *Process) ExitCode() int { return p.current().cmd.ProcessState.ExitCode() }

// Running reports whether the process exists, which includes a paused one.
func (p *Process) Running() bool { return !p.current().ended() }

func (r *run) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Log returns the end of the output of the current or last run.
func (p *Process) Log() string {
	f, err := os.Open(filepath.Join(p.opts.Dir, logName))
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from := max(p.current().log, info.Size()-logTail)
	text, _ := io.ReadAll(io.NewSectionReader(f, from, logTail))
	return string(text)
}

// Pause stops the process with SIGSTOP. When it returns, the process no longer runs; the kernel
// still accepts connections and bytes for it.
func (p *Process) Pause() error {
	r := p.current()
	if err := r.signal(sigStop); err != nil {
		return fmt.Errorf("pause %s: %w", p.name(), err)
	}
	return awaitStopped(r.cmd.Process.Pid, killTimeout)
}

// Resume continues a paused process.
func (p *Process) Resume() error {
	if err := p.current().signal(sigCont); err != nil {
		return fmt.Errorf("resume %s: %w", p.name(), err)
	}
	return nil
}

// Kill ends the process with SIGKILL, paused or not, and waits for its end. A process that has
// already ended is not an error.
func (p *Process) Kill() error { return p.kill(p.current()) }

func (p *Process) kill(r *run) error {
	r.asked.Store(true)
	if err := r.signal(os.Kill); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name(), err)
	}
	if !r.endsWithin(killTimeout) {
		return fmt.Errorf("%s (pid %d) survived SIGKILL for %v", p.name(), r.cmd.Process.Pid, killTimeout)
	}
	return nil
}

// Stop ends the process permanently: with SIGTERM unless it is Abrupt, and with SIGKILL if that
// takes too long. It removes the directory if it created it. A second Stop does nothing. Stop
// reports a process that had ended without being asked to, because a test that used it did not test
// what it seemed to.
func (p *Process) Stop() error {
	p.restart.Lock()
	defer p.restart.Unlock()
	p.stopped = true
	r := p.current()
	err := p.terminate(r)
	r.asked.Store(true)
	return errors.Join(err, p.removeDir())
}

func (p *Process) terminate(r *run) error {
	if r.ended() {
		return p.unasked(r)
	}
	r.asked.Store(true)
	if p.opts.Abrupt {
		return p.kill(r)
	}
	// A stopped process handles SIGTERM only after it is continued.
	signalled := r.signal(syscall.SIGTERM) == nil && r.signal(sigCont) == nil
	overdue := signalled && !r.endsWithin(cmp.Or(p.opts.StopWithin, stopTimeout))
	if overdue || !signalled { // it had just ended, or this system has no such signal
		if err := p.kill(r); err != nil {
			return err
		}
	}
	switch {
	case !p.opts.Orderly || (r.err == nil && !overdue):
		return nil
	case overdue:
		return fmt.Errorf("%s: %w:\n%s", p.name(), ErrKilled, p.Log())
	}
	return fmt.Errorf("%w: %s ended with %w:\n%s", ErrExit, p.name(), r.err, p.Log())
}

func (p *Process) unasked(r *run) error {
	if r.asked.Load() {
		return nil
	}
	return fmt.Errorf("%w: %s ended by itself (%w):\n%s", ErrExit, p.name(), r.err, p.Log())
}

// Restart starts the process again with the same arguments in the same
// directory, after killing it if it still runs.
func (p *Process) Restart() error {
	p.restart.Lock()
	defer p.restart.Unlock()
	if p.stopped {
		return fmt.Errorf("restart %s: it was stopped for good", p.name())
	}
	if err := p.Kill(); err != nil {
		return err
	}
	return p.start()
}

// expectEnd records that the current run may end by itself from here on.
func (p *Process) expectEnd() { p.current().asked.Store(true) }

// awaitEnd waits until the current run has ended.
func (p *Process) awaitEnd(ctx context.Context) error {
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s still runs: %w", p.name(), context.Cause(ctx))
	}
}

func (r *run) signal(sig os.Signal) error { return r.cmd.Process.Signal(sig) }

func (r *run) endsWithin(timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-r.done:
		return true
	case <-timer.C:
		return false
	}
}
