package servers

import "time"

// Delay holds back everything for this long in each direction, counted from
// when the proxy read it; many requests can be on the way at once. A change
// applies to what is on the way too.
func (p *Proxy) Delay(up, down time.Duration) {
	p.faults.set(func(f *faultSet) {
		f.lines[toServer].delay, f.lines[toClient].delay = up, down
	})
}

// DeliverAfterClose decides what becomes of bytes that a delay or a black hole
// holds back when the client closes its connection: on, they still reach the
// server when their time comes, and the end after them; off, they are lost,
// and a delay does not hold back the end. A server of gRPC may drop a call when
// the end comes right behind it; for calls see HoldGRPC.
func (p *Proxy) DeliverAfterClose(on bool) {
	p.faults.set(func(f *faultSet) { f.late = on })
}

// BlackHole forwards nothing in either direction, not even the end of a
// connection. Connections stay open and new ones are accepted.
func (p *Proxy) BlackHole(on bool) {
	p.faults.set(func(f *faultSet) {
		f.lines[toServer].hole, f.lines[toClient].hole = on, on
	})
}

// BlackHoleUp is a BlackHole only for what clients send.
func (p *Proxy) BlackHoleUp(on bool) {
	p.faults.set(func(f *faultSet) { f.lines[toServer].hole = on })
}

// BlackHoleDown is a BlackHole only for what servers send: requests are
// carried out, and nobody learns of it.
func (p *Proxy) BlackHoleDown(on bool) {
	p.faults.set(func(f *faultSet) { f.lines[toClient].hole = on })
}

// Refuse closes new connections at once.
func (p *Proxy) Refuse(on bool) {
	p.faults.set(func(f *faultSet) { f.refuse = on })
}

// DropReplies takes DropReply for the next n requests: they are carried out,
// and the client's connection is closed when the reply comes.
func (p *Proxy) DropReplies(n int) {
	p.faults.set(func(f *faultSet) { f.dropReply = n })
}

// Duplicate sends the next n requests twice, except calls of gRPC. A Redis
// client sees the first reply only; without framing, it sees whatever the
// server says to both.
func (p *Proxy) Duplicate(n int) {
	p.faults.set(func(f *faultSet) { f.duplicate = n })
}

// DropMessages drops everything published, of plain, pattern and sharded
// subscriptions, while the connections live on.
func (p *Proxy) DropMessages(on bool) {
	p.faults.set(func(f *faultSet) { f.mute = on })
}

// Intercept decides on every command to come by a rule; nil removes it. The
// rule comes before DropReplies and Duplicate, which apply to what it
// forwards. Only connections that speak the protocol of Redis are subject to
// it, and no longer after MONITOR, SYNC, PSYNC or CLIENT REPLY.
func (p *Proxy) Intercept(rule Rule) {
	p.faults.set(func(f *faultSet) { f.rule = rule })
}
