//go:build unix

package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// guardianCommand is how this program calls itself as a guardian.
const guardianCommand = "__guardian"

// A guardian is a process that kills the command and all its children when we are
// killed, and when we are stopped for longer than the lock is ours. It is told at
// every renewal how long that is.
type guardian struct {
	process *os.Process
	pipe    *os.File
	ended   chan struct{} // closed when the process has ended
}

// guardianTimeout is how long a guardian may take to read what it is sent, and to end. One that takes
// longer is stopped.
const guardianTimeout = time.Second

// callGuardian starts a guardian of a process group, which kills it then unless it hears from us.
func callGuardian(group int, end time.Time) (*guardian, error) {
	g, in, err := newGuardian(end)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	g.process, err = startSelf([]string{"dlock", guardianCommand, strconv.Itoa(group)}, &os.ProcAttr{
		Dir:   "/",
		Files: []*os.File{in, nil, nil},
		Sys:   &syscall.SysProcAttr{Setsid: true}, // no signal of our terminal reaches it
	})
	if err != nil {
		_ = g.pipe.Close()
		return nil, err
	}
	go func() {
		defer close(g.ended)
		_, _ = g.process.Wait()
	}()
	return g, nil
}

// newGuardian returns a guardian without a process, and its input, in which it finds the time: we may be stopped before it has
// begun.
func newGuardian(end time.Time) (*guardian, *os.File, error) {
	in, pipe, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	g := &guardian{pipe: pipe, ended: make(chan struct{})}
	err = g.tell(end)
	if err != nil {
		_, _ = in.Close(), pipe.Close()
		return nil, nil, err
	}
	return g, in, nil
}

// startSelf starts this program, on Linux also if its file was removed since.
func startSelf(args []string, attr *os.ProcAttr) (*os.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := os.StartProcess(self, args, attr)
	if err == nil || runtime.GOOS != "linux" {
		return p, err
	}
	p, errProc := os.StartProcess("/proc/self/exe", args, attr)
	if errProc != nil {
		return nil, err
	}
	return p, nil
}

// alive reports whether the guardian has not ended.
func (g *guardian) alive() bool {
	if g == nil {
		return false
	}
	select {
	case <-g.ended:
		return false
	default:
		return true
	}
}

// whenEnded is closed when the guardian has ended.
func (g *guardian) whenEnded() <-chan struct{} { return g.ended }

// expect tells the guardian when to kill the command unless it hears from us again. It sends the
// time as well as the duration, because either process may be stopped in between. A guardian that does
// not read is killed, so that another one takes its place.
func (g *guardian) expect(end time.Time) {
	if g == nil {
		return
	}
	err := g.tell(end)
	if err != nil {
		_ = g.process.Kill()
	}
}

// tell sends a time as it is, and as a duration.
func (g *guardian) tell(end time.Time) error { return g.send(int64(time.Until(end)), end.UnixNano()) }

// send writes a line. The pipe holds thousands of them.
func (g *guardian) send(line ...any) error {
	_ = g.pipe.SetWriteDeadline(time.Now().Add(guardianTimeout))
	_, err := fmt.Fprintln(g.pipe, line...)
	return err
}

// remaining reads what expect has written. The shorter of the two counts: a clock that was set in
// between cannot lengthen it.
func remaining(line string) (time.Duration, error) {
	var left time.Duration
	var end int64
	if _, err := fmt.Sscan(line, &left, &end); err != nil {
		return 0, err
	}
	return min(left, time.Until(time.Unix(0, end))), nil
}

// dismiss tells the guardian that the command has ended. gone waits for its end, and kills it if it is stopped.
func (g *guardian) dismiss() (gone func()) {
	if g == nil {
		return func() {}
	}
	_ = g.send("done")
	_ = g.pipe.Close()
	return func() {
		select {
		case <-g.ended:
		case <-time.After(guardianTimeout):
			_ = g.process.Kill()
		}
	}
}

// guard is what a guardian runs: it reads from in until it is dismissed.
func guard(in io.Reader, args []string) int {
	group, err := strconv.Atoi(strings.Join(args, " "))
	if err != nil || group < 2 {
		return ExitUsage
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			lines <- s.Text()
		}
	}()
	end := time.NewTimer(time.Hour)
	for {
		select {
		case line, ok := <-lines:
			if line == "done" {
				return 0
			}
			left, err := remaining(line)
			if !ok || err != nil {
				return killGroup(group)
			}
			end.Reset(left)
		case <-end.C:
			return killGroup(group)
		}
	}
}

func killGroup(group int) int {
	_ = syscall.Kill(-group, syscall.SIGKILL)
	return ExitLost
}
