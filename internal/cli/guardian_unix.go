//go:build unix

package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
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
}

// callGuardian starts a guardian of a process group. Without one we go on: it is
// there for the worst case only.
func callGuardian(group int) *guardian {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil
	}
	defer func() { _ = read.Close() }()
	p, err := os.StartProcess(self, []string{"dlock", guardianCommand, strconv.Itoa(group)}, &os.ProcAttr{
		Dir:   "/",
		Files: []*os.File{read, nil, nil},
		Sys:   &syscall.SysProcAttr{Setsid: true}, // no signal of our terminal reaches it
	})
	if err != nil {
		_ = write.Close()
		return nil
	}
	return &guardian{p, write}
}

// expect tells the guardian when to kill the command unless it hears from us again. It sends the
// time as well as the duration, because either process may be stopped in between.
func (g *guardian) expect(end time.Time) {
	if g != nil {
		_, _ = fmt.Fprintln(g.pipe, int64(time.Until(end)), end.UnixNano()) // the pipe holds thousands of these
	}
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

// dismiss tells the guardian that the command has ended. gone waits for its end.
func (g *guardian) dismiss() (gone func()) {
	if g == nil {
		return func() {}
	}
	_, _ = fmt.Fprintln(g.pipe, "done")
	_ = g.pipe.Close()
	return func() { _, _ = g.process.Wait() }
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
