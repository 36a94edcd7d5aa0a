package etcdlock

import (
	"context"
	"sync"
	"time"
)

// A shared call runs once for all callers that ask for it while it is in flight. It has a
// timeout of its own, and a caller whose context ends leaves without the result. It is not
// built on singleflight, because Close could not wait for the goroutines that DoChan starts.
type shared[T any] struct {
	mu    sync.Mutex
	under *trip[T]
}

type trip[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func (s *shared[T]) do(ctx context.Context, d *etcdDriver, timeout time.Duration, call func(context.Context) (T, error)) (T, error) {
	s.mu.Lock()
	t := s.under
	if t == nil {
		t = &trip[T]{done: make(chan struct{})}
		s.under = t
		d.work.Go(func() {
			cctx, cancel := context.WithTimeout(d.ctx, timeout)
			defer cancel()
			t.value, t.err = callSafely(cctx, call)
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

func callSafely[T any](ctx context.Context, call func(context.Context) (T, error)) (value T, err error) {
	defer recoverPanic(&err)
	return call(ctx)
}
