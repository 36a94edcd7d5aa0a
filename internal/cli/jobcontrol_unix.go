//go:build unix

package cli

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// suspend follows a command that was stopped, so that the shell takes the terminal. SIGCONT continues both of us.
func (c *child) suspend(by syscall.Signal) {
	switch {
	case by != syscall.SIGTSTP && hasTerminal(c.terminal): // a shell does not say that a running job is in the foreground now
		c.signal(syscall.SIGCONT)
	case c.terminal < 0 && !c.passed: // it was not our terminal
	case !hasJobControl():
		c.takeTerminal() // Ctrl-C ends the command, if we cannot continue it
		if by == syscall.SIGTSTP {
			c.signal(syscall.SIGCONT)
		}
	default:
		c.takeTerminal()
		stop()
	}
}

// heedStops has SIGTSTP sent to signals. It stops us no longer, whatever is done: what receives it does.
func heedStops(signals chan<- os.Signal) {
	if !signal.Ignored(syscall.SIGTSTP) {
		signal.Notify(signals, syscall.SIGTSTP)
	}
}

// stopFor stops us if a signal asks for it.
func stopFor(s os.Signal) {
	if s == syscall.SIGTSTP && hasJobControl() {
		stop()
	}
}

// stop stops us and all who are in our group, as a script that has called us. We may run on for a moment.
func stop() { _ = syscall.Kill(0, syscall.SIGSTOP) }

// hasJobControl reports whether a shell can continue us: it is the leader of our session, and in another group.
func hasJobControl() bool {
	session, err := unix.Getsid(0)
	return err == nil && session != unix.Getpgrp()
}

// giveTerminal gives the terminal to the command if it is ours to give.
func (c *child) giveTerminal() {
	if hasTerminal(c.terminal) {
		signal.Ignore(syscall.SIGTTOU) // or we would be stopped for taking it back
		_ = unix.IoctlSetPointerInt(c.terminal, unix.TIOCSPGRP, c.pid)
	}
}

// takeTerminal makes the terminal ours again if the command has it, or a group that has ended. It is left to a shell
// that has put us into the background.
func (c *child) takeTerminal() {
	front, err := unix.IoctlGetInt(c.terminal, unix.TIOCGPGRP)
	if err == nil && (front == c.pid || errors.Is(c.send(-front, 0), syscall.ESRCH)) {
		_ = unix.IoctlSetPointerInt(c.terminal, unix.TIOCSPGRP, unix.Getpgrp())
	}
}

// terminalOf returns the descriptor of a file if it is our terminal, or -1.
func terminalOf(f *os.File) int {
	fd := int(f.Fd())
	if _, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil {
		return -1
	}
	return fd
}

// hasTerminal reports whether fd is our terminal and we are in its foreground, so
// that we can hand that on.
func hasTerminal(fd int) bool {
	front, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && front == unix.Getpgrp()
}
