//go:build !linux

package dlock

// suspendedTime is nil where we know of no cheap pair of clocks; docs/support.md
// says so.
func suspendedTime(func() int64) func() int64 { return nil }
