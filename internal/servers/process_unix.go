//go:build unix

package servers

import "syscall"

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// killGroup ends what a process that is gone left behind in its group, such
// as a fork that writes a snapshot; forks do not inherit the parent-death
// signal. The number cannot have been given to a new process while the group
// has a member; without members the call fails, and that is fine.
func killGroup(leader int) { _ = syscall.Kill(-leader, syscall.SIGKILL) }
