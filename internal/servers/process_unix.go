//go:build unix

package servers

import "syscall"

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// killGroup ends the remaining processes in the group of a process that is gone, such as a fork
// that writes a snapshot; forks do not inherit the parent-death signal. The kernel cannot have
// reused the number while the group has a member; without members the call fails, which does no
// harm.
func killGroup(leader int) { _ = syscall.Kill(-leader, syscall.SIGKILL) }
