package servers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

const loopback = "127.0.0.1"

// Ports are taken from below the range that Linux, macOS and the BSDs use for outgoing connections.
// Inside that range, a client that dials the port of a killed server can be given the same port as
// its own and connect to itself, and the server could not bind the port again.
const (
	portLow   = 20000
	portHigh  = 32768
	portTries = 200
)

var errNoPort = errors.New("no free loopback port")

// A port is a TCP port number that no other user of reservePort takes, in this or another process,
// until it is released. The reservation is the UDP port of the same number: the kernel gives it to
// one socket and takes it back when the process dies, and the servers here use only TCP. It keeps
// the number through a Kill and a Restart.
type port struct {
	number int
	token  net.PacketConn
}

// reservePort reserves a port. A program that does not reserve may have the TCP port; only the
// server's own bind can tell, and the caller that starts the server must handle that. Listening on
// the port here for a moment would make it busy for longer, because a child that is being forked
// meanwhile inherits the listener until it execs.
func reservePort() (*port, error) {
	for range portTries {
		number := portLow + rand.IntN(portHigh-portLow)
		if token, err := net.ListenPacket("udp4", loopbackAddr(number)); err == nil {
			return &port{number, token}, nil
		}
	}
	return nil, fmt.Errorf("%w in %d..%d", errNoPort, portLow, portHigh-1)
}

func reservePorts(n int) ([]*port, error) {
	var ports []*port
	for range n {
		p, err := reservePort()
		if err != nil {
			releasePorts(ports)
			return nil, err
		}
		ports = append(ports, p)
	}
	return ports, nil
}

func releasePorts(ports []*port) {
	for _, p := range ports {
		p.release()
	}
}

func (p *port) release() { p.token.Close() }

func (p *port) addr() string { return loopbackAddr(p.number) }

func (p *port) String() string { return strconv.Itoa(p.number) }

func loopbackAddr(number int) string {
	return net.JoinHostPort(loopback, strconv.Itoa(number))
}
