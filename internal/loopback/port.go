// Package loopback reserves TCP ports on the loopback interface, for servers and proxies that must
// keep their address while they are down.
package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Host is the address of the interface.
const Host = "127.0.0.1"

// Ports are taken from below the range that Linux, macOS and the BSDs use for outgoing connections.
// Inside that range, a client that dials the port of a killed server can be given the same port as
// its own and connect to itself, and the server could not bind the port again.
const (
	portLow   = 20000
	portHigh  = 32768
	portTries = 200
)

var errNoPort = errors.New("no free loopback port")

// A Port is a TCP port number that no other user of ReservePort takes, in this or another process,
// until it is released. The reservation is the UDP port of the same number: the kernel gives it to
// one socket and takes it back when the process dies, and the servers here use only TCP. It keeps
// the number while nothing listens on the TCP port.
type Port struct {
	number int
	token  net.PacketConn
}

// ReservePort reserves a port. A program that does not reserve may have the TCP port; only the
// server's own bind can tell, and the caller that starts the server must handle that. Listening on
// the port here for a moment would make it busy for longer, because a child that is being forked
// meanwhile inherits the listener until it execs.
func ReservePort() (*Port, error) {
	for range portTries {
		number := portLow + rand.IntN(portHigh-portLow)
		if token, err := net.ListenPacket("udp4", addr(number)); err == nil {
			return &Port{number, token}, nil
		}
	}
	return nil, fmt.Errorf("%w in %d..%d", errNoPort, portLow, portHigh-1)
}

// ReservePorts reserves n ports, or none.
func ReservePorts(n int) ([]*Port, error) {
	var ports []*Port
	for range n {
		p, err := ReservePort()
		if err != nil {
			ReleasePorts(ports)
			return nil, err
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// ReleasePorts releases the ports.
func ReleasePorts(ports []*Port) {
	for _, p := range ports {
		p.Release()
	}
}

// Release ends the reservation. A second Release does nothing.
func (p *Port) Release() { p.token.Close() }

// Number returns the port number.
func (p *Port) Number() int { return p.number }

// Addr returns the host and the port number.
func (p *Port) Addr() string { return addr(p.number) }

// String returns the port number.
func (p *Port) String() string { return strconv.Itoa(p.number) }

func addr(number int) string { return net.JoinHostPort(Host, strconv.Itoa(number)) }
