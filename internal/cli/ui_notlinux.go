//go:build !filesonly && !linux

package cli

import "syscall"

// limitSilence does nothing: only Linux can do it for a socket.
func limitSilence(_, _ string, _ syscall.RawConn) error { return nil }
