package faultproxy

import (
	"maps"
	"sync"
	"sync/atomic"
)

// traffic counts what all connections of a proxy have carried.
type traffic struct {
	requests atomic.Int64
	bytes    [2]atomic.Int64 // by direction
	mu       sync.Mutex
	calls    map[string]int // by path
}

func (t *traffic) call(path string) {
	t.requests.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calls == nil {
		t.calls = make(map[string]int)
	}
	t.calls[path]++
}

// BytesUp returns how many bytes were written to servers.
func (p *Proxy) BytesUp() int64 { return p.traffic.bytes[toServer].Load() }

// BytesDown returns how many bytes were written to clients.
func (p *Proxy) BytesDown() int64 { return p.traffic.bytes[toClient].Load() }

// Requests returns how many requests were read from clients.
func (p *Proxy) Requests() int64 { return p.traffic.requests.Load() }

// GRPCCalls returns how many gRPC calls were read from clients, by path. A stream is one call.
func (p *Proxy) GRPCCalls() map[string]int {
	p.traffic.mu.Lock()
	defer p.traffic.mu.Unlock()
	return maps.Clone(p.traffic.calls)
}
