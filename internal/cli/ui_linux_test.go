//go:build !filesonly

package cli

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// A connection of dlock ui ends if its client is gone.
func TestConnectionsInheritLongestSilence(t *testing.T) {
	l, err := listenForPage(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got, failed := 0, error(nil)
	err = raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) })
	if err != nil || failed != nil || got != int(longestSilence.Milliseconds()) {
		t.Errorf("%d ms, %v, %v", got, err, failed)
	}
}
