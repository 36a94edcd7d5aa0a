package bench

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/internal/measure"
	"github.com/ceyewan/genesis/pkg/dlock"
)

const (
	// drainFor is how long those that wait when a round ends may still get their
	// turn, which no longer counts; then they give up.
	drainFor = 250 * time.Millisecond
	// releaseFor is how long a release may take.
	releaseFor = 5 * time.Second
)

// A round is one fight.
type round struct {
	*benchmark
	section time.Duration
	begin   time.Time
	workers []worker
	taken   atomic.Int64
	failed  chan error    // the first is why it ends early
	over    chan struct{} // closed when the round has ended
	end     time.Duration // since begin; fixed when over is closed
}

// A worker is what one client has seen.
type worker struct {
	waits []time.Duration // of its acquisitions, and one that was open in the end
	turns int
	open  int
}

func newRound(c *benchmark, clients int, section time.Duration) *round {
	return &round{
		benchmark: c, section: section, workers: make([]worker, clients),
		failed: make(chan error, clients), over: make(chan struct{}),
	}
}

// run fights for the planned time, or until ctx ends or a client fails. What is
// counted is counted at that moment; tidying up afterwards is not measured.
func (r *round) run(ctx context.Context) (Round, error) {
	working, cancel := context.WithCancel(context.WithoutCancel(ctx)) // an interrupted round still ends in order
	defer cancel()
	cpu, sent := measure.CPU(), r.sent()
	r.begin = time.Now()
	var wg sync.WaitGroup
	for w := range r.workers {
		wg.Go(func() { r.work(working, w) })
	}
	err := r.await(ctx)
	r.end = time.Since(r.begin)
	close(r.over)
	cpu, sent = measure.CPU()-cpu, r.sent()-sent
	r.drain(&wg, cancel)
	if err == nil {
		err = r.failure() // of a release
	}
	return r.measured(cpu, sent), err
}

func (r *round) sent() int64 {
	if r.Sent == nil {
		return 0
	}
	return r.Sent()
}

func (r *round) await(ctx context.Context) error {
	t := time.NewTimer(r.Duration)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case err := <-r.failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *round) drain(wg *sync.WaitGroup, cancel context.CancelFunc) {
	t := time.AfterFunc(drainFor, cancel)
	defer t.Stop()
	wg.Wait()
}

func (r *round) failure() error {
	select {
	case err := <-r.failed:
		return err
	default:
		return nil
	}
}

func (r *round) ended() bool {
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// work asks for the key, holds it, gives it back and asks again.
func (r *round) work(ctx context.Context, w int) {
	for !r.ended() {
		if err := r.turn(ctx, w); err != nil {
			r.failed <- err
			return
		}
	}
}

// turn is one wait, and the hold that follows. A wait that ends with the round counts
// with its length so far: whoever starves must not disappear.
func (r *round) turn(ctx context.Context, w int) error {
	me := &r.workers[w]
	asked := time.Since(r.begin)
	g, err := r.Lockers[w].Acquire(ctx, r.Key)
	got := time.Since(r.begin)
	switch {
	case err != nil && ctx.Err() == nil:
		return err
	case !r.ended():
		me.waits, me.turns = append(me.waits, got-asked), me.turns+1
		r.taken.Add(1)
	case asked < r.end:
		me.waits, me.open = append(me.waits, r.end-asked), me.open+1
	}
	if err != nil {
		return nil //nolint:nilerr // we have cancelled the wait ourselves
	}
	return r.hold(ctx, w, g)
}

func (r *round) hold(ctx context.Context, w int, g *dlock.Guard) error {
	r.witness.enter(w, g.Token())
	if r.section > 0 {
		r.stay(g)
	}
	r.witness.leave(w)
	return r.release(ctx, g)
}

// stay is the section. Whoever hears that the lock is lost leaves it.
func (r *round) stay(g *dlock.Guard) {
	t := time.NewTimer(r.section)
	defer t.Stop()
	select {
	case <-t.C:
	case <-g.Done():
	case <-r.over:
	}
}

// release gives the key back, however the wait for it was ended. A lock that was lost
// meanwhile is counted, and the fight goes on.
func (c *benchmark) release(ctx context.Context, g *dlock.Guard) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseFor)
	defer cancel()
	err := g.Unlock(ctx)
	if errors.Is(err, dlock.ErrOwnershipLost) {
		c.witness.losses.Add(1)
		return nil
	}
	return err
}
