package servers

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A conn is one client's connection and the one to the server behind it.
// Each direction has a goroutine that reads into its line and one that writes
// out of it; run waits for all four.
//
// A connection whose client begins with an array is taken for RESP: it is cut
// into commands and replies, and the ledger tells which belong together.
// Any other is passed on in chunks as they come.
type conn struct {
	faults   *faults
	traffic  *traffic
	ctx      context.Context
	cancel   context.CancelFunc
	up, down *line

	mu     sync.Mutex // also keeps the order of what is pushed into down
	client *net.TCPConn
	server *net.TCPConn // nil until it is dialed
	resp   bool
	ledger ledger
	doomed bool // not RESP: hang up when the server says something
}

// traffic counts what all connections of a proxy have carried.
type traffic struct {
	requests atomic.Int64
	bytes    [2]atomic.Int64 // by way
}

func newConn(ctx context.Context, client *net.TCPConn, f *faults, t *traffic) *conn {
	c := &conn{faults: f, traffic: t, client: client, up: newLine(), down: newLine()}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// kill closes both sides at once; what is on the way is lost.
func (c *conn) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel()
	c.client.Close()
	if c.server != nil {
		c.server.Close()
	}
}

// run carries the connection until its end.
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
			// Only half: the server shall still work on what it was sent.
			// It closes its half when it is done.
			_ = server.CloseWrite()
		}
	})
	wg.Go(func() {
		c.carry(c.down, toClient, c.client)
		c.kill()
	})
	wg.Wait()
}

// dial connects to the server, but not through a black hole.
func (c *conn) dial(target string) (*net.TCPConn, error) {
	for {
		state, changed := c.faults.look()
		if !state.lines[toServer].hole && !state.lines[toClient].hole {
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

// carry writes out of a line whatever the faults let through. It returns
// true at the end of the line, false when the connection was killed.
func (c *conn) carry(l *line, w way, out *net.TCPConn) bool {
	broken := false // nobody listens any more: keep the line moving
	for c.ctx.Err() == nil {
		state, changed := c.faults.look()
		batch, end, wait := l.take(state.lines[w])
		switch {
		case end:
			return true
		case len(batch) == 0:
			c.idle(l, changed, wait)
		case !broken:
			n, err := batch.WriteTo(out)
			c.traffic.bytes[w].Add(n)
			broken = err != nil
		}
	}
	return false
}

// idle waits until take may have another answer.
func (c *conn) idle(l *line, changed <-chan struct{}, wait time.Duration) {
	var due <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-l.ready:
	case <-changed:
	case <-due:
	case <-c.ctx.Done():
	}
}

func (c *conn) readClient() {
	in := bufio.NewReader(c.client)
	c.detect(in)
	for c.up.awaitRoom(c.ctx.Done()) {
		data, args, err := c.nextRequest(in)
		if len(data) > 0 {
			c.request(data, args)
		}
		if err != nil {
			break
		}
	}
	state, _ := c.faults.look()
	c.up.finish(state.lines[toServer], state.late)
}

// detect decides by the client's first byte whether it speaks RESP. It does
// so before anything is passed on, hence before any reply is read.
func (c *conn) detect(in *bufio.Reader) {
	first, err := in.Peek(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resp = err == nil && first[0] == '*'
}

func (c *conn) speaksRESP() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resp
}

// giveUpRESP goes on with bytes: replies cannot be matched from here on.
func (c *conn) giveUpRESP() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resp = false
}

// nextRequest reads a command, or a chunk with nil args.
func (c *conn) nextRequest(in *bufio.Reader) (data []byte, args []string, err error) {
	if !c.speaksRESP() {
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

// readChunk reads what there is, at least one byte.
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
		data, whole, err := c.nextReply(in)
		if len(data) > 0 && !c.reply(data, whole) || err != nil {
			break
		}
	}
	c.down.push(unit{end: true})
}

// nextReply reads a whole reply, or a chunk that may be anything.
func (c *conn) nextReply(in *bufio.Reader) (data []byte, whole bool, err error) {
	if _, err := in.Peek(1); err != nil {
		return nil, false, err
	}
	if !c.speaksRESP() {
		data, err = readChunk(in)
		return data, false, err
	}
	data, err = readFrame(in)
	if errors.Is(err, errMalformed) {
		c.giveUpRESP()
		return data, false, nil
	}
	return data, err == nil, err
}
