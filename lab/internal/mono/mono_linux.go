// Package mono reads the clock that all processes of one machine share.
package mono

import (
	"syscall"
	"unsafe"
)

const clockMonotonic = 1

// Now is CLOCK_MONOTONIC in nanoseconds: no process can set it, and marks of
// different processes can be compared.
func Now() int64 {
	var ts syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}
