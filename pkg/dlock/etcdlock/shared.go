package etcdlock

import (
	"context"
	"sync"
	"time"
)

// A shared call is made once for all who ask for it while it is under way. It
// belongs to none of them: it has a bound of its own, and whoever's context ends
// leaves without it.
type shared[T any] struct {
	mu    sync.Mutex
	under *trip[T]
}

type trip[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func (s *shared[T]) do(ctx context.Context, d *etcdDriver, bound time.Duration, call func(context.Context) (T, error)) (T, error) {
	s.mu.Lock()
	t := s.under
	if t == nil {
		t = &trip[T]{done: make(chan struct{})}
		s.under = t
		d.work.Go(func() {
			cctx, cancel := context.WithTimeout(d.ctx, bound)
			defer cancel()
			t.value, t.err = call(cctx)
			s.mu.Lock()
			s.under = nil
			s.mu.Unlock()
			close(t.done)
		})
	}
	s.mu.Unlock()
	select {
	case <-t.done:
		return t.value, t.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
