package peer

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// echo is two round trips over TCP, without any protocol: what the kernel takes.
type echo struct{}

func (echo) Info() Info {
	return Info{
		Name: "tcp-echo", Title: "floor: two TCP echoes", Backend: "tcp", Version: "the standard library",
		Setup: "64 bytes to an echo server and back, for each half of a pair; no mutual exclusion", Floor: true,
	}
}

func (echo) Open(_ context.Context, env *Env) (Client, error) {
	return &echoClient{addr: env.Echo}, nil
}

type echoClient struct {
	addr string

	mu   sync.Mutex
	idle []net.Conn
}

func (c *echoClient) Lock(context.Context, string) (Lock, error) {
	conn, err := c.take()
	if err != nil {
		return nil, err
	}
	return echoLock{c, conn}, bounce(conn)
}

func (c *echoClient) take() (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.idle); n > 0 {
		conn := c.idle[n-1]
		c.idle = c.idle[:n-1]
		return conn, nil
	}
	return net.Dial("tcp", c.addr)
}

func (c *echoClient) Close() error {
	var errs []error
	for _, conn := range c.idle {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

type echoLock struct {
	client *echoClient
	conn   net.Conn
}

func (l echoLock) Unlock(context.Context) error {
	err := bounce(l.conn)
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	l.client.idle = append(l.client.idle, l.conn)
	return err
}

func bounce(conn net.Conn) error {
	var message [64]byte
	if _, err := conn.Write(message[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, message[:])
	return err
}

// ServeEcho answers everything with itself until the listener is closed.
func ServeEcho(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = conn.Close() }()
			_, _ = io.Copy(conn, conn) // the client has gone
		}()
	}
}
