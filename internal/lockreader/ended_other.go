//go:build !unix

package lockreader

// hasEnded is false: no process inherits a lock here.
func hasEnded(int) bool { return false }
