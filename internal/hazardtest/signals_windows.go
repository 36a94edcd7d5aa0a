package hazardtest

import "syscall"

// Windows does not stop processes by signals: sending one of these is an error.
const (
	stopSignal   = syscall.Signal(0x13)
	resumeSignal = syscall.Signal(0x12)
)
