//go:build unix

package hazardtest

import "syscall"

// The signals that stop a process and let it go on.
const (
	stopSignal   = syscall.SIGSTOP
	resumeSignal = syscall.SIGCONT
)
