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

// expect tells how long the lock is ours if nothing more is heard.
func (g *guardian) expect(left time.Duration) {
	if g != nil {
		_, _ = fmt.Fprintln(g.pipe, int64(left)) // the pipe holds thousands of these
	}
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

// guard is a guardian's life: to read from in until somebody says that all is well.
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
			left, err := strconv.ParseInt(line, 10, 64)
			if !ok || err != nil {
				return killGroup(group)
			}
			end.Reset(time.Duration(left))
		case <-end.C:
			return killGroup(group)
		}
	}
}

func killGroup(group int) int {
	_ = syscall.Kill(-group, syscall.SIGKILL)
	return ExitLost
}
