package etcdlock

import "runtime"

// stacks are those of all goroutines.
func stacks() string {
	text := make([]byte, 1<<20)
	return string(text[:runtime.Stack(text, true)])
}
