//go:build !linux

package dlock

// suspendedTime returns nil on systems for which we know no cheap pair of clocks; see
// docs/support.md.
func suspendedTime(func() int64) func() int64 { return nil }
