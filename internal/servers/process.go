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
	logName   = "output.log"
	logTail   = 4 << 10
	stopBound = 3 * time.Second
	killBound = 10 * time.Second
)

// ProcessOptions say what to run.
type ProcessOptions struct {
	// Path of the binary, and its arguments without the name.
	Path string
	Args []string
	// Dir is the working directory. Empty: a fresh temporary directory, which
	// Stop removes. A directory that the caller names is never removed.
	Dir string
	// Files are written into the directory before the first start only, so
	// that what the process rewrites itself survives a Restart.
	Files map[string]string
	// Abrupt has Stop send SIGKILL at once.
	Abrupt bool
	// StopWithin is how long Stop waits before it sends SIGKILL; 0: 3 s.
	StopWithin time.Duration
}

// A Process is a child process that can be stopped, killed, paused and
// started again with the same arguments in the same directory. Its methods
// may be called from any goroutine.
type Process struct {
	opts  ProcessOptions
	owned bool // the directory is ours to remove

	life    sync.Mutex // serialises Restart and Stop
	stopped bool
	mu      sync.Mutex // guards cur
	cur     *run
}

// A run is one life of a Process.
type run struct {
	cmd   *exec.Cmd
	log   int64       // where in the log file its output begins
	asked atomic.Bool // somebody here wanted it to end
	done  chan struct{}
	err   error // what Wait said; read it after done
}

// StartProcess starts the process. It returns as soon as the binary runs,
// which is before it is of any use.
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

// start begins a new life. The output goes straight to a file, so that no
// copying goroutine stands between the child and its Wait.
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

// launch starts cmd on a goroutine that stays locked to its thread until the
// child is gone. The kernel sends the parent-death signal when the thread
// that forked ends, not when the process does, and the Go runtime ends idle
// threads as it likes: a thread that is blocked waiting for the child cannot
// be one of them.
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

// Dir is the working directory.
func (p *Process) Dir() string { return p.opts.Dir }

// Pid is the process id of the present or, after its end, the last life.
func (p *Process) Pid() int { return p.current().cmd.Process.Pid }

// Done is closed when the present life has ended and has been waited for.
func (p *Process) Done() <-chan struct{} { return p.current().done }

// Running says whether the process exists; a paused one does.
func (p *Process) Running() bool { return !p.current().ended() }

func (r *run) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Log returns the end of what the process printed in its present or last
// life.
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

// Pause stops the process with SIGSTOP. When it returns, the process no
// longer computes; the kernel still accepts connections and bytes for it.
func (p *Process) Pause() error {
	r := p.current()
	if err := r.signal(sigStop); err != nil {
		return fmt.Errorf("pause %s: %w", p.name(), err)
	}
	return awaitStopped(r.cmd.Process.Pid, killBound)
}

// Resume lets a paused process go on.
func (p *Process) Resume() error {
	if err := p.current().signal(sigCont); err != nil {
		return fmt.Errorf("resume %s: %w", p.name(), err)
	}
	return nil
}

// Kill ends the process with SIGKILL, paused or not, and waits for its end.
// It is no error if the process has ended already.
func (p *Process) Kill() error { return p.kill(p.current()) }

func (p *Process) kill(r *run) error {
	r.asked.Store(true)
	if err := r.signal(os.Kill); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name(), err)
	}
	if !r.endsWithin(killBound) {
		return fmt.Errorf("%s (pid %d) survived SIGKILL for %v", p.name(), r.cmd.Process.Pid, killBound)
	}
	return nil
}

// Stop ends the process for good: SIGTERM unless it is Abrupt, and SIGKILL if
// that takes too long. It removes the directory if it is ours. Stopping twice
// is harmless. Stop reports a process that had ended without being asked to,
// because whatever ran against it meant something else than it seemed to.
func (p *Process) Stop() error {
	p.life.Lock()
	defer p.life.Unlock()
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
	// A stopped process takes SIGTERM only once it is continued.
	if r.signal(syscall.SIGTERM) == nil && r.signal(sigCont) == nil && r.endsWithin(cmp.Or(p.opts.StopWithin, stopBound)) {
		return nil
	}
	return p.kill(r)
}

func (p *Process) unasked(r *run) error {
	if r.asked.Load() {
		return nil
	}
	return fmt.Errorf("%s ended by itself (%w):\n%s", p.name(), r.err, p.Log())
}

// Restart starts the process again with the same arguments in the same
// directory, after killing it if it still runs.
func (p *Process) Restart() error {
	p.life.Lock()
	defer p.life.Unlock()
	if p.stopped {
		return fmt.Errorf("restart %s: it was stopped for good", p.name())
	}
	if err := p.Kill(); err != nil {
		return err
	}
	return p.start()
}

// expectEnd says that the present life may end by itself from here on.
func (p *Process) expectEnd() { p.current().asked.Store(true) }

// awaitEnd waits until the present life has ended.
func (p *Process) awaitEnd(ctx context.Context) error {
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s still runs: %w", p.name(), context.Cause(ctx))
	}
}

func (r *run) signal(sig os.Signal) error { return r.cmd.Process.Signal(sig) }

func (r *run) endsWithin(bound time.Duration) bool {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-r.done:
		return true
	case <-timer.C:
		return false
	}
}
