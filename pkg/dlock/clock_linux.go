package dlock

import (
	"syscall"
	"unsafe"
)

// suspendedTime returns a clock of how long this machine has been suspended.
func suspendedTime(monotonic func() int64) func() int64 {
	return newSuspendClock(monotonic, func() int64 { return readSuspended(monotonic) }).suspended
}

// readSuspended is the boot-time clock, which continues during suspend, minus the monotonic
// clock, which does not. Only differences of its results have a meaning. The monotonic clock
// is read before and after the boot-time clock, and the reading is repeated if the process was
// preempted in between.
func readSuspended(monotonic func() int64) int64 {
	var best, narrowest int64
	for try := range 4 {
		before := monotonic()
		boot := bootTime()
		width := monotonic() - before
		if try == 0 || width < narrowest {
			best, narrowest = boot-before, width
		}
		if narrowest < suspendNoise/50 {
			break
		}
	}
	return best
}

const clockBoottime = 7

func bootTime() int64 {
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return 0 // the difference then only shrinks, and no suspend is detected
	}
	return ts.Nano()
}
