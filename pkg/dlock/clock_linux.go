package dlock

import (
	"syscall"
	"unsafe"
)

// suspendedTime tells how long this machine has been suspended.
func suspendedTime(monotonic func() int64) func() int64 {
	return newSuspendClock(monotonic, func() int64 { return readSuspended(monotonic) }).slept
}

// readSuspended is the boot-time clock, which runs on in suspend, less the
// monotonic clock, which does not. It counts from an arbitrary point; only its
// growth means anything. The monotonic clock is read on both sides, and a reading
// that was torn apart by the scheduler is repeated.
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
		return 0 // then the difference only shrinks: no suspension is seen
	}
	return ts.Nano()
}
