//go:build unix

package servers

import "syscall"

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// runAs makes a command run as another user, and as the group of the same number.
func runAs(attr *syscall.SysProcAttr, uid uint32) {
	attr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
}

// killGroup ends the remaining processes in the group of a process that is gone, such as a fork
// that writes a snapshot; forks do not inherit the parent-death signal. The kernel cannot have
// reused the number while the group has a member; without members the call fails, which does no
// harm.
func killGroup(leader int) { _ = syscall.Kill(-leader, syscall.SIGKILL) }
