package faultproxy

import "time"

// Delay holds back everything for this long in each direction, counted from when the proxy read it;
// many requests can be in transit at once. A change also applies to data in transit.
func (p *Proxy) Delay(up, down time.Duration) {
	p.faults.set(func(f *faultSet) {
		f.directions[toServer].delay, f.directions[toClient].delay = up, down
	})
}

// DeliverAfterClose decides what happens to bytes that a delay or a black hole holds back when the
// client closes its connection. On: they still reach the server when their time comes, and the end
// after them. Off: they are lost, and a delay does not hold back the end. A gRPC server may drop a
// call when the end comes right behind it; for calls see HoldGRPC.
func (p *Proxy) DeliverAfterClose(on bool) {
	p.faults.set(func(f *faultSet) { f.late = on })
}

// BlackHole forwards nothing in either direction, not even the end of a
// connection. Connections stay open and new ones are accepted.
func (p *Proxy) BlackHole(on bool) {
	p.faults.set(func(f *faultSet) {
		f.directions[toServer].hole, f.directions[toClient].hole = on, on
	})
}

// BlackHoleUp is a BlackHole only for data from clients.
func (p *Proxy) BlackHoleUp(on bool) {
	p.faults.set(func(f *faultSet) { f.directions[toServer].hole = on })
}

// BlackHoleDown is a BlackHole only for data from servers: requests are carried out, but no client
// learns of it.
func (p *Proxy) BlackHoleDown(on bool) {
	p.faults.set(func(f *faultSet) { f.directions[toClient].hole = on })
}

// Refuse closes new connections at once.
func (p *Proxy) Refuse(on bool) {
	p.faults.set(func(f *faultSet) { f.refuse = on })
}

// DropReplies applies DropReply to the next n requests: they are carried out, and the client's
// connection is closed when the reply comes.
func (p *Proxy) DropReplies(n int) {
	p.faults.set(func(f *faultSet) { f.dropReply = n })
}

// Duplicate sends the next n requests twice, except gRPC calls. A Redis client sees only the first
// reply; without framing, the client sees whatever the server sends for both.
func (p *Proxy) Duplicate(n int) {
	p.faults.set(func(f *faultSet) { f.duplicate = n })
}

// DropMessages drops all published messages, of plain, pattern and sharded subscriptions, while the
// connections stay open.
func (p *Proxy) DropMessages(on bool) {
	p.faults.set(func(f *faultSet) { f.mute = on })
}

// Intercept sets a rule that decides on every command from now on; nil removes it. The rule comes
// before DropReplies and Duplicate, which apply to what it forwards. It applies only to connections
// that use the Redis protocol, and no longer after MONITOR, SYNC, PSYNC or CLIENT REPLY.
func (p *Proxy) Intercept(rule Rule) {
	p.faults.set(func(f *faultSet) { f.rule = rule })
}
