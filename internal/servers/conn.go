package servers

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

// A conn is one client's connection and the one to the server behind it.
// Each direction has a goroutine that reads into its line and one that writes
// out of it; run waits for all four.
//
// A connection whose client begins with an array is taken for RESP: it is cut
// into commands and replies, and the ledger tells which belong together. One
// that begins with the preface of HTTP/2 is cut into frames. Any other is
// passed on in chunks as they come.
type conn struct {
	faults   *faults
	traffic  *traffic
	ctx      context.Context
	cancel   context.CancelFunc
	up, down *line

	mu     sync.Mutex // also keeps the order of what is pushed into down
	client *net.TCPConn
	server *net.TCPConn // nil until it is dialed
	speech speech
	ledger ledger
	calls  calls
	spoken bool // the server has said something
	doomed bool // only bytes: hang up when the server says something
}

// A speech is the protocol of a connection.
type speech uint8

const (
	speechBytes speech = iota // one that we do not understand
	speechRESP
	speechHTTP2
)

func newConn(ctx context.Context, client *net.TCPConn, f *faults, t *traffic) *conn {
	c := &conn{faults: f, traffic: t, client: client, up: newLine(), down: newLine()}
	c.calls.open = make(map[uint32]*call)
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
	if c.detect(in) == speechHTTP2 {
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
	c.up.finish(state.lines[toServer], state.late)
}

// detect decides by what the client says first, before anything is passed on.
// It gives up understanding HTTP/2 if the server has spoken even before that,
// as frames can be told only from the beginning.
func (c *conn) detect(in *bufio.Reader) speech {
	found := speechBytes
	if first, err := in.Peek(1); err == nil && first[0] == '*' {
		found = speechRESP
	} else if speaksHTTP2(in) {
		found = speechHTTP2
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found == speechHTTP2 {
		if c.spoken {
			return speechBytes
		}
		c.up.push(unit{data: []byte(http2.ClientPreface)})
		_, _ = in.Discard(len(http2.ClientPreface)) // it is in the buffer
	}
	c.speech = found
	return found
}

func (c *conn) speaks() speech {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.speech
}

// giveUpRESP goes on with bytes: replies cannot be matched from here on.
func (c *conn) giveUpRESP() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.speech = speechBytes
}

// nextRequest reads a command, or a chunk with nil args.
func (c *conn) nextRequest(in *bufio.Reader) (data []byte, args []string, err error) {
	if c.speaks() != speechRESP {
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
		if _, err := in.Peek(1); err != nil || !c.readReply(in) {
			break
		}
	}
	c.down.push(unit{end: true})
}

// readReply reads and handles a whole reply or frame, or a chunk that may be
// anything; false means hang up.
func (c *conn) readReply(in *bufio.Reader) bool {
	switch c.hear() {
	case speechHTTP2:
		frame, err := readServerFrame(in)
		return c.serverFrame(frame) && err == nil
	case speechRESP:
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

// hear says in which protocol to take what the server is saying.
func (c *conn) hear() speech {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spoken = true
	return c.speech
}
