package dlock

import (
	"syscall"
	"unsafe"
)

// suspendedTime is the boot-time clock, which runs on in suspend, less the
// monotonic clock, which does not. The monotonic clock is read on both sides,
// and a reading that was torn apart by the scheduler is repeated.
func suspendedTime() int64 {
	var best, narrowest int64
	for try := range 4 {
		before := readClock(clockMonotonic)
		boot := readClock(clockBoottime)
		width := readClock(clockMonotonic) - before
		if try == 0 || width < narrowest {
			best, narrowest = boot-before, width
		}
		if narrowest < suspendNoise/50 {
			break
		}
	}
	return best
}

const (
	clockMonotonic = 1
	clockBoottime  = 7
)

func readClock(id uintptr) int64 {
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return 0 // both clocks then read 0: no suspension is seen
	}
	return ts.Nano()
}
