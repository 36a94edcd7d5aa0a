package faultproxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// A conn is one client's connection and the connection to the server behind it. Each direction has
// a goroutine that reads into its queue and one that writes from it; run waits for all four.
//
// A connection whose client begins with an array is treated as RESP: it is split into commands and
// replies, and the ledger records which belong together. A connection that begins with the HTTP/2
// preface is split into frames. Any other connection is forwarded in chunks as they arrive.
type conn struct {
	faults   *faults
	traffic  *traffic
	ctx      context.Context
	cancel   context.CancelFunc
	up, down *queue

	mu           sync.Mutex // also keeps the order of what is pushed into down
	client       *net.TCPConn
	server       *net.TCPConn // nil until it is dialed
	protocol     protocol
	ledger       ledger
	calls        calls
	answered     bool // the server has sent something
	closeOnReply bool // only bytes: close when the server sends something
}

// A protocol is what a connection carries.
type protocol uint8

const (
	protocolBytes protocol = iota // an unknown one
	protocolRESP
	protocolHTTP2
)

func newConn(ctx context.Context, client *net.TCPConn, f *faults, t *traffic) *conn {
	c := &conn{faults: f, traffic: t, client: client, up: newQueue(), down: newQueue()}
	c.calls.open = make(map[uint32]*call)
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// kill closes both sides at once; data in transit is lost.
func (c *conn) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel()
	c.client.Close()
	if c.server != nil {
		c.server.Close()
	}
}

// run forwards the connection until its end.
func (c *conn) run(target string) {
	defer c.kill()
	server, err := c.dial(target)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(c.readClient)
	wg.Go(c.readServer)
	wg.Go(func() {
		if c.carry(c.up, toServer, server) {
			// Only half: the server still processes what it was sent, and closes its half when it
			// is done.
			_ = server.CloseWrite()
		}
	})
	wg.Go(func() {
		c.carry(c.down, toClient, c.client)
		c.kill()
	})
	wg.Wait()
}

// dial connects to the server, but not while there is a black hole.
func (c *conn) dial(target string) (*net.TCPConn, error) {
	for {
		state, changed := c.faults.look()
		if !state.directions[toServer].hole && !state.directions[toClient].hole {
			break
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
			return nil, c.ctx.Err()
		}
	}
	out, err := new(net.Dialer).DialContext(c.ctx, "tcp", target)
	if err != nil {
		return nil, err
	}
	server := out.(*net.TCPConn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ctx.Err(); err != nil {
		server.Close()
		return nil, err
	}
	c.server = server
	return server, nil
}

// carry writes from a queue whatever the faults let through. It returns true at the end of the queue,
// and false when the connection was killed.
func (c *conn) carry(q *queue, w direction, out *net.TCPConn) bool {
	broken := false // the other side is closed: keep emptying the queue
	for c.ctx.Err() == nil {
		state, changed := c.faults.look()
		batch, end, wait := q.take(state.directions[w])
		switch {
		case end:
			return true
		case len(batch) == 0:
			c.idle(q, changed, wait)
		case !broken:
			n, err := batch.WriteTo(out)
			c.traffic.bytes[w].Add(n)
			broken = err != nil
		}
	}
	return false
}

// idle waits until take may return something else.
func (c *conn) idle(q *queue, changed <-chan struct{}, wait time.Duration) {
	var due <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-q.ready:
	case <-changed:
	case <-due:
	case <-c.ctx.Done():
	}
}

func (c *conn) readClient() {
	in := bufio.NewReader(c.client)
	if c.detect(in) == protocolHTTP2 {
		c.readCalls(in)
	}
	for c.up.awaitRoom(c.ctx.Done()) {
		data, args, err := c.nextRequest(in)
		if len(data) > 0 {
			c.request(data, args)
		}
		if err != nil {
			break
		}
	}
	c.calls.holds.Wait()
	state, _ := c.faults.look()
	c.up.finish(state.directions[toServer], state.late)
}

// detect determines the protocol from the client's first bytes, before anything is forwarded. It
// treats HTTP/2 as bytes if the server has sent something before that, because frames can be
// separated only from the beginning.
func (c *conn) detect(in *bufio.Reader) protocol {
	found := protocolBytes
	if first, err := in.Peek(1); err == nil && first[0] == '*' {
		found = protocolRESP
	} else if isHTTP2(in) {
		found = protocolHTTP2
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found == protocolHTTP2 {
		if c.answered {
			return protocolBytes
		}
		c.up.push(unit{data: []byte(http2.ClientPreface)})
		_, _ = in.Discard(len(http2.ClientPreface)) // it is in the buffer
	}
	c.protocol = found
	return found
}

func (c *conn) currentProtocol() protocol {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.protocol
}

// giveUpRESP continues with bytes: replies can no longer be matched from here on.
func (c *conn) giveUpRESP() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.protocol = protocolBytes
}

// nextRequest reads a command, or a chunk with nil args.
func (c *conn) nextRequest(in *bufio.Reader) (data []byte, args []string, err error) {
	if c.currentProtocol() != protocolRESP {
		data, err = readChunk(in)
		return data, nil, err
	}
	data, args, err = readCommand(in)
	if errors.Is(err, errMalformed) || err == nil && len(args) > 0 && isUnmatched(args) {
		c.giveUpRESP()
		return data, nil, nil
	}
	return data, args, err
}

// readChunk reads the available bytes, at least one.
func readChunk(in *bufio.Reader) ([]byte, error) {
	if _, err := in.Peek(1); err != nil {
		return nil, err
	}
	chunk := make([]byte, in.Buffered())
	_, err := io.ReadFull(in, chunk)
	return chunk, err
}

func (c *conn) readServer() {
	in := bufio.NewReader(c.server)
	for c.down.awaitRoom(c.ctx.Done()) {
		if _, err := in.Peek(1); err != nil || !c.readReply(in) {
			break
		}
	}
	c.down.push(unit{end: true})
}

// readReply reads and handles a whole reply or frame, or a chunk of any bytes; false means that the
// connection must be closed.
func (c *conn) readReply(in *bufio.Reader) bool {
	switch c.serverProtocol() {
	case protocolHTTP2:
		frame, err := readServerFrame(in)
		return c.serverFrame(frame) && err == nil
	case protocolRESP:
		data, err := readFrame(in)
		malformed := errors.Is(err, errMalformed)
		if malformed {
			c.giveUpRESP()
		}
		return (len(data) == 0 || c.reply(data, err == nil)) && (err == nil || malformed)
	default:
		data, err := readChunk(in)
		return c.reply(data, false) && err == nil
	}
}

// serverProtocol returns the protocol in which to read what the server sends.
func (c *conn) serverProtocol() protocol {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = true
	return c.protocol
}
