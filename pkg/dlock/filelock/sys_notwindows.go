//go:build !windows

package filelock

// An errno says everything.
var (
	systemKinds []kind
	systemFatal []error
)
