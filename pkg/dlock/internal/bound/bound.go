// Package bound bounds calls in time, at less cost than a timer for each.
package bound

import (
	"context"
	"sync"
	"time"
)

// Shared keeps contexts that calls which begin within a while share. It keeps two: one
// for acquiring and one for releasing are all that most programs need.
type Shared struct {
	mu   sync.Mutex
	kept [2]struct {
		ctx   context.Context
		end   context.CancelFunc // not called: others may use ctx when it is replaced
		bound time.Duration
		fresh time.Time // until when it may be given out
	}
	last int
}

// Within returns a child of parent that ends after bound, or up to a quarter of that
// sooner. Nobody ends it but its own timer, or parent, which must be the same each time.
func (s *Shared) Within(parent context.Context, bound time.Duration) context.Context {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.kept {
		if k := &s.kept[i]; k.bound == bound && now.Before(k.fresh) {
			s.last = i
			return k.ctx
		}
	}
	s.last = 1 - s.last // the one that was not used last
	k := &s.kept[s.last]
	k.ctx, k.end = context.WithDeadline(parent, now.Add(bound))
	k.bound, k.fresh = bound, now.Add(bound/4)
	return k.ctx
}
