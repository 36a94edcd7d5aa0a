package faultproxy

import (
	"bufio"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// calls are the calls of one connection that the server has not answered yet, by stream. The
// connection's lock guards them.
type calls struct {
	open map[uint32]*call
	anew bool // write headers anew, see headers
	// holds are the goroutines that deliver calls later. The reader of the client starts them and
	// waits for them before it forwards the end.
	holds sync.WaitGroup
}

// A call is one gRPC request.
type call struct {
	fault    callFault
	held     [][]byte // frames to be delivered later
	holding  bool
	answered chan struct{}
}

// A callFault is what happens to the next calls of one path.
type callFault struct {
	path  string
	left  int
	drop  bool
	delay time.Duration
	until <-chan struct{}
}

func (f *callFault) holds() bool { return f.delay > 0 || f.until != nil }

// readCalls forwards what an HTTP/2 client sends, until its end or until it can no longer be
// parsed.
func (c *conn) readCalls(in *bufio.Reader) {
	reader := newFrameReader(in)
	for c.up.awaitRoom(c.ctx.Done()) {
		wire, frame, err := reader.next()
		if err != nil {
			c.up.push(unit{data: wire})
			return
		}
		c.clientFrame(wire, frame)
	}
}

func (c *conn) clientFrame(wire []byte, frame http2.Frame) {
	stream := frame.Header().StreamID
	if head, ok := frame.(*http2.MetaHeadersFrame); ok {
		held := c.begin(stream, head.PseudoValue("path"), markOf(head))
		wire = c.calls.headers(wire, head, held)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	open := c.calls.open[stream]
	switch frame.(type) {
	case *http2.DataFrame:
		if open != nil && open.holding {
			open.held = append(open.held, wire)
			return
		}
	case *http2.RSTStreamFrame:
		// The client cancels the call. The cancellation must not overtake a delayed call, or the
		// server would not carry it out.
		if open != nil && open.fault.holds() {
			return
		}
		delete(c.calls.open, stream)
	}
	c.up.push(unit{data: wire})
}

// begin records a call and reports whether it is held.
func (c *conn) begin(stream uint32, path, mark string) (held bool) {
	c.traffic.call(path)
	fault, healed := c.faults.decideCall(path, mark)
	open := &call{fault: fault, holding: fault.holds(), answered: make(chan struct{})}
	c.mu.Lock()
	c.calls.open[stream] = open
	c.mu.Unlock()
	if fault.holds() {
		c.calls.holds.Go(func() { c.hold(open, healed) })
	}
	return fault.holds()
}

func markOf(head *http2.MetaHeadersFrame) string {
	i := slices.IndexFunc(head.Fields, func(f hpack.HeaderField) bool { return f.Name == MarkHeader })
	if i < 0 {
		return ""
	}
	return head.Fields[i].Value
}

// headers returns what to send for the headers of a call. They always go to the server at once,
// because streams must begin in order. But the server must not learn the deadline of a held call,
// because it would count from now. Removing the deadline changes what later headers may refer to:
// from the first held call on, headers are encoded again in a form that refers to nothing.
func (c *calls) headers(wire []byte, head *http2.MetaHeadersFrame, held bool) []byte {
	c.anew = c.anew || held
	if !c.anew {
		return wire
	}
	fields := slices.Clone(head.Fields)
	if held {
		fields = slices.DeleteFunc(fields, func(f hpack.HeaderField) bool { return f.Name == "grpc-timeout" })
	}
	return headersFrame(head.StreamID, head.StreamEnded(), fields)
}

// hold delivers a call when its time has come, and returns when the server has answered: a server
// drops its current work when the connection ends.
func (c *conn) hold(open *call, healed <-chan struct{}) {
	var due <-chan time.Time
	if open.fault.delay > 0 {
		timer := time.NewTimer(open.fault.delay)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-due:
	case <-open.fault.until:
	case <-healed:
	case <-c.ctx.Done():
		return
	}
	c.mu.Lock()
	for _, wire := range open.held {
		c.up.push(unit{data: wire})
	}
	open.held, open.holding = nil, false
	c.mu.Unlock()
	select {
	case <-open.answered:
	case <-c.ctx.Done():
	}
}

// serverFrame forwards a frame, if it may; false means that the connection must be closed.
func (c *conn) serverFrame(wire []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	stream := replied(wire)
	if open := c.calls.open[stream]; open != nil {
		delete(c.calls.open, stream)
		close(open.answered)
		if open.fault.drop {
			return false
		}
	}
	c.down.push(unit{data: wire})
	return true
}
