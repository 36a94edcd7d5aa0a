package redlock

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Workers run functions in goroutines that stay for a while: in a new one, each call to a node would grow
// the stack first, which takes a fifth of the time of a call. The one that became idle last works next, so
// that the others can leave.
type workers struct {
	work *sync.WaitGroup
	mu   sync.Mutex
	idle []chan func()
}

// idleTime is how long a goroutine that has nothing to do stays.
const idleTime = time.Second

// run runs f at once. After ctx has ended, no goroutine stays.
func (w *workers) run(ctx context.Context, f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := len(w.idle) - 1; last >= 0 {
		w.idle[last] <- f // which has room for one
		w.idle = w.idle[:last]
		return
	}
	jobs := make(chan func(), 1)
	jobs <- f
	w.work.Go(func() { w.serve(ctx, jobs) })
}

// serve runs one function after the other.
func (w *workers) serve(ctx context.Context, jobs chan func()) {
	timer := time.NewTimer(idleTime)
	defer timer.Stop()
	for f := <-jobs; f != nil; f = w.next(ctx, jobs, timer) {
		f()
		timer.Reset(idleTime)
		w.rest(jobs)
	}
}

// next returns what a goroutine is to do, or nil if it has had nothing to do for a while.
func (w *workers) next(ctx context.Context, jobs chan func(), timer *time.Timer) func() {
	select {
	case f := <-jobs:
		return f
	case <-timer.C:
	case <-ctx.Done():
	}
	return w.leave(jobs)
}

func (w *workers) rest(jobs chan func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle = append(w.idle, jobs)
}

// leave returns what was given to a goroutine that is about to leave, or nil.
func (w *workers) leave(jobs chan func()) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.idle, jobs); i >= 0 {
		w.idle = slices.Delete(w.idle, i, i+1)
		return nil
	}
	return <-jobs
}
