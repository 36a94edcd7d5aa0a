package loopback

import (
	"net"
	"testing"
)

func TestReservedPortsAreDistinct(t *testing.T) {
	t.Parallel()
	ports, err := ReservePorts(100)
	if err != nil {
		t.Fatal(err)
	}
	defer ReleasePorts(ports)
	seen := make(map[int]bool)
	for _, p := range ports {
		if seen[p.Number()] || p.Number() < portLow || p.Number() >= portHigh {
			t.Errorf("port %d", p.Number())
		}
		seen[p.Number()] = true
		listener, err := net.Listen("tcp4", p.Addr()) // TCP is free to take
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		if token, err := net.ListenPacket("udp4", p.Addr()); err == nil {
			token.Close()
			t.Errorf("port %d can be reserved twice", p.Number())
		}
	}
}
