//go:build !filesonly

package cli

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// longestSilence is how long a client may acknowledge nothing of what was sent to it.
const longestSilence = 20 * time.Second

// limitSilence makes the kernel end connections to clients that are gone without a word. A small answer
// fits into its buffers, so no write of the server would fail for many minutes. Connections inherit it
// from the socket that listens.
func limitSilence(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(longestSilence.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}
