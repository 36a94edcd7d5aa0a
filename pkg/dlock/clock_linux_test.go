package dlock_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A reading during which the process was preempted is repeated, and the one with the shortest
// interruption counts.
func TestTornReadingIsRepeated(t *testing.T) {
	const wide = time.Millisecond
	for _, tc := range []struct {
		name   string
		widths []time.Duration
		counts int // the reading that counts
	}{
		{"one that is not torn is enough", []time.Duration{50 * time.Microsecond}, 0},
		{"the second is not torn", []time.Duration{wide, 50 * time.Microsecond}, 1},
		{"all are torn, the third least", []time.Duration{3 * wide, 2 * wide, wide, 2 * wide}, 2},
	} {
		reads := 0
		monotonic := func() int64 { // readings are days apart, so that the result identifies the reading
			at := time.Duration(1+reads/2) * 1000 * time.Hour
			if reads%2 == 1 {
				at += tc.widths[min(reads/2, len(tc.widths)-1)]
			}
			reads++
			return int64(at)
		}
		started := dlock.BootTime()
		got := dlock.ReadSuspended(monotonic)
		boot := got + int64(time.Duration(1+tc.counts)*1000*time.Hour)
		if boot < started || boot > dlock.BootTime() {
			t.Errorf("%s: the clock of boot time is %v off", tc.name, time.Duration(boot-started))
		}
		if reads != 2*len(tc.widths) {
			t.Errorf("%s: %d readings of the monotonic clock", tc.name, reads)
		}
	}
}

// The clock is the one of the system that continues during suspend.
func TestBootTime(t *testing.T) {
	read := func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			t.Fatal(err) // Linux has it since 2.6.39
		}
		return ts.Nano()
	}
	for range 100 {
		before, got, after := read(), dlock.BootTime(), read()
		if got < before || got > after {
			t.Fatalf("%d is not between %d and %d", got, before, after)
		}
	}
}
