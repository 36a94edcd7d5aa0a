package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/internal/loopback"
)

const (
	startTries = 10 // ports to try, because a program that does not reserve may have the first ones
	// acceptRetry is the pause after a failed accept, for example when no file descriptor is free.
	acceptRetry = 10 * time.Millisecond
)

// A Proxy is a TCP proxy on a loopback port whose faults can be changed while it runs. They affect
// open and new connections. Its methods may be called from any goroutine.
//
// Delays and black holes neither reorder nor lose bytes: as with TCP over a bad network, held-back
// data arrives when the fault is gone, unless the connection is closed before.
//
// The first bytes of a client show its protocol. A request is a command in the Redis protocol, a
// call in gRPC, and otherwise a chunk of bytes as read. Note that a new connection to Redis begins
// with commands of the client itself, such as HELLO.
type Proxy struct {
	listener *net.TCPListener
	port     *loopback.Port
	faults   *faults
	traffic  traffic
	accepted atomic.Int64

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	target string
	conns  map[*conn]struct{}
}

// Start starts a proxy without faults in front of target, which need not listen yet.
func Start(target string) (*Proxy, error) {
	var err error
	for range startTries {
		var reserved *loopback.Port
		if reserved, err = loopback.ReservePort(); err != nil {
			break
		}
		var listener net.Listener
		if listener, err = net.Listen("tcp4", reserved.Addr()); err == nil {
			return serve(listener.(*net.TCPListener), reserved, target), nil
		}
		reserved.Release()
	}
	return nil, fmt.Errorf("start proxy: %w", err)
}

func serve(listener *net.TCPListener, reserved *loopback.Port, target string) *Proxy {
	p := &Proxy{
		listener: listener,
		port:     reserved,
		faults:   newFaults(),
		target:   target,
		conns:    make(map[*conn]struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	return p
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			select {
			case <-time.After(acceptRetry):
			case <-p.ctx.Done():
			}
		default:
			p.admit(client)
		}
	}
}

func (p *Proxy) admit(client *net.TCPConn) {
	if state, _ := p.faults.look(); state.refuse {
		client.Close()
		return
	}
	p.accepted.Add(1)
	c := newConn(p.ctx, client, p.faults, &p.traffic)
	p.mu.Lock()
	p.conns[c] = struct{}{}
	target := p.target
	p.mu.Unlock()
	p.wg.Go(func() {
		c.run(target)
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	})
}

// Shut cuts all connections, ends the proxy and waits for its goroutines. Until Close, nothing listens on its port: another
// proxy or server would otherwise get it, and a client that is to be refused would reach that.
func (p *Proxy) Shut() error {
	p.cancel()
	err := p.listener.Close()
	p.Cut()
	p.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Close is Shut, and gives the port back. A second Close does nothing.
func (p *Proxy) Close() error {
	err := p.Shut()
	p.port.Release()
	return err
}

// Addr returns the address for clients.
func (p *Proxy) Addr() string { return p.port.Addr() }

// Retarget sends new connections to another server. Open ones stay where they are; Cut closes them.
func (p *Proxy) Retarget(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = addr
}

// Cut closes all connections now, on both sides. Data in transit is lost. New connections are
// accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.kill()
	}
}

// Connections returns how many connections were accepted so far.
func (p *Proxy) Connections() int { return int(p.accepted.Load()) }

// Open returns how many connections are open now.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Heal clears all faults, rules and counts. Held-back data flows again. An action already taken for
// a request is not undone.
func (p *Proxy) Heal() { p.faults.heal() }
