// Package sharedtimeout limits how long calls to a backend take, at less cost than one timer per
// call: calls that begin at about the same time share one context.
package sharedtimeout

import (
	"context"
	"sync"
	"time"
)

// Contexts holds contexts for calls that begin at about the same time. It keeps two: most programs
// need only one for acquiring and one for releasing.
type Contexts struct {
	mu   sync.Mutex
	kept [2]struct {
		ctx     context.Context
		end     context.CancelFunc // not called: others may use ctx when it is replaced
		timeout time.Duration
		fresh   time.Time // until when it may be given out
	}
	last int
}

// Within returns a child of parent that ends after timeout, or up to a quarter of that sooner. Only
// its own timer ends it, or parent, which must be the same each time.
func (s *Contexts) Within(parent context.Context, timeout time.Duration) context.Context {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.kept {
		if k := &s.kept[i]; k.timeout == timeout && now.Before(k.fresh) {
			s.last = i
			return k.ctx
		}
	}
	s.last = 1 - s.last // the one that was not used last
	k := &s.kept[s.last]
	k.ctx, k.end = context.WithDeadline(parent, now.Add(timeout))
	k.timeout, k.fresh = timeout, now.Add(timeout/4)
	return k.ctx
}
