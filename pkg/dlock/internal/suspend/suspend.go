// Package suspend lets a simulation decide how long the machine was suspended.
package suspend

import (
	"sync/atomic"
	"time"
)

var simulated atomic.Pointer[func() time.Duration]

// Simulate makes Clients that are opened from now on read the suspended time from clock. nil
// restores the machine's own clock.
func Simulate(clock func() time.Duration) {
	if clock == nil {
		simulated.Store(nil)
		return
	}
	simulated.Store(&clock)
}

// Simulated returns the clock of a simulation, or nil.
func Simulated() func() int64 {
	clock := simulated.Load()
	if clock == nil {
		return nil
	}
	return func() int64 { return int64((*clock)()) }
}
