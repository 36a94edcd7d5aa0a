package faultproxy

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Faults for gRPC calls are set by path, such as "/etcdserverpb.KV/Txn". Faults for the same path
// take effect one after another, as each is used up.

// DropGRPC lets the server carry out the next n calls of this path. When the server answers one, it
// closes the client's connection instead of forwarding any of the answer. Other calls on that
// connection are lost with it. For a stream, the first answer counts.
func (p *Proxy) DropGRPC(path string, n int) {
	p.addCallFault(callFault{path: path, left: n, drop: true})
}

// HoldGRPC keeps the next n calls of this path from the server until release is called or the proxy
// is healed, while others pass. They reach the server then, even if their client has cancelled them
// or closed its connection, and the server's connection stays open until it has answered them.
func (p *Proxy) HoldGRPC(path string, n int) (release func()) {
	until := make(chan struct{})
	p.addCallFault(callFault{path: path, left: n, until: until})
	return sync.OnceFunc(func() { close(until) })
}

// DelayGRPC holds all later calls of this path, each for this long, as HoldGRPC does; 0 ends that.
// Calls in transit are not affected.
func (p *Proxy) DelayGRPC(path string, d time.Duration) {
	p.faults.set(func(f *faultSet) {
		f.calls = slices.DeleteFunc(slices.Clone(f.calls), func(old *callFault) bool {
			return old.path == path && old.delay > 0
		})
	})
	if d > 0 {
		p.addCallFault(callFault{path: path, left: math.MaxInt, delay: d})
	}
}

// MarkHeader is the header by which a client can mark a call for a CallRule: many calls of different
// meaning have the same path.
const MarkHeader = "faultproxy-mark"

// A CallRule decides on a gRPC call by its path and its mark, which is empty if the client did not
// mark it: drop is what DropGRPC does, and until what HoldGRPC does, until the channel is closed.
// A rule must not block.
type CallRule func(path, mark string) (drop bool, until <-chan struct{})

// InterceptGRPC sets a rule that decides on every call from now on; nil removes it. The other faults
// apply to what it lets pass.
func (p *Proxy) InterceptGRPC(rule CallRule) {
	p.faults.set(func(f *faultSet) { f.callRule = rule })
}

func (p *Proxy) addCallFault(fault callFault) {
	p.faults.set(func(f *faultSet) { f.calls = append(slices.Clip(f.calls), &fault) })
}
