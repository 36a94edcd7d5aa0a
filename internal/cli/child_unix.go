//go:build unix

package cli

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A child is the command and everything that it starts: a process group of its own.
type child struct {
	pid     int
	ended   chan int            // its exit code, as a shell says it
	stopped chan syscall.Signal // what has stopped it

	terminal int  // the descriptor of our terminal if that is standard input, or -1
	passed   bool // the command was passed SIGTSTP, and not continued since

	send func(pid int, s syscall.Signal) error // syscall.Kill
}

// startChild starts the command, which inherits these files. A mortal one is killed by the kernel,
// where that can be had, when we die.
func startChild(r *run, files []*os.File, mortal bool) (*child, error) {
	c := &child{
		ended: make(chan int, 1), stopped: make(chan syscall.Signal, 1), terminal: terminalOf(r.stdin), send: syscall.Kill,
	}
	attr := &syscall.ProcAttr{Env: r.environment(), Sys: &syscall.SysProcAttr{Setpgid: true}}
	for _, f := range []*os.File{r.stdin, r.stdout, r.stderr} {
		attr.Files = append(attr.Files, f.Fd())
	}
	for _, f := range files {
		fd, err := inheritable(f)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
	}
	if mortal {
		dieWithParent(attr.Sys)
	}
	if hasTerminal(c.terminal) {
		attr.Sys.Foreground, attr.Sys.Ctty = true, c.terminal
	}
	started := make(chan error)
	go c.live(r, attr, started)
	return c, <-started
}

// inheritable is another descriptor of a file that the command inherits. It must not replace one that
// we were given for the command, and scripts use the small numbers as they like.
func inheritable(f *os.File) (int, error) {
	const above = 100
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD, above)
	if err != nil { // there may be no such number
		fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD, 3)
	}
	return fd, os.NewSyscallError("fcntl", err)
}

// live is what the child does, on one thread: the kernel takes the end of the thread
// that started it for the end of its parent.
func (c *child) live(r *run, attr *syscall.ProcAttr, started chan<- error) {
	runtime.LockOSThread()
	pid, err := syscall.ForkExec(r.path, r.args, attr) // os.StartProcess would first try out what we do not need
	if err != nil {
		started <- err
		return
	}
	c.pid = pid
	if attr.Sys.Foreground {
		signal.Ignore(syscall.SIGTTOU) // or we would be stopped for taking the terminal back
	}
	started <- nil
	var st syscall.WaitStatus
	for {
		_, err := syscall.Wait4(c.pid, &st, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err == nil && st.Stopped():
			select {
			case c.stopped <- st.StopSignal():
			default: // the last stop is not handled yet
			}
		default:
			c.ended <- exitCodeOf(st)
			return
		}
	}
}

// exitCodeOf is the exit code of a command as shells say it: one that a signal has ended gets 128 and
// the signal's number.
func exitCodeOf(st syscall.WaitStatus) int {
	if st.Signaled() {
		return exitSignal + int(st.Signal())
	}
	return st.ExitStatus()
}

// signal sends a signal to the command and all its children.
func (c *child) signal(s os.Signal) {
	n, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	if n == syscall.SIGTSTP || n == syscall.SIGCONT { // we may be in the foreground since
		c.giveTerminal()
		c.passed = n == syscall.SIGTSTP
	}
	_ = c.send(-c.pid, n) // it may be gone
	if ends(s) {
		_ = c.send(-c.pid, syscall.SIGCONT) // a stopped process handles no signal
	}
}

// askToEnd asks the command and all its children to end.
func (c *child) askToEnd() { c.signal(syscall.SIGTERM) }

// kill returns why the command goes on: that of another user, as by sudo, cannot be killed.
func (c *child) kill() error {
	err := c.send(-c.pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) { // it is gone
		return nil
	}
	return err
}

// awaitOthers waits until the children of the command are gone as well, and reports whether they are. Those that no
// process reaps are never gone, so it reaps those that are ours since the command has ended: the first process of a
// container gets all orphans.
func (c *child) awaitOthers(until time.Time) bool {
	for {
		c.reapOthers()
		switch {
		case errors.Is(c.send(-c.pid, 0), syscall.ESRCH):
			return true
		case !time.Now().Before(until):
			return false
		}
		time.Sleep(time.Millisecond)
	}
}

// reapOthers reaps what has ended of the group. The command itself is reaped.
func (c *child) reapOthers() {
	for {
		pid, err := syscall.Wait4(-c.pid, nil, syscall.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// leaveOthers lets what the command has left running go on, which it does anyway.
func (*child) leaveOthers() {}
