package redlock

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A crew runs functions in goroutines that stay for a while: in a new one, each call to a node would grow
// the stack first, which takes a fifth of the time of a call. The one that became idle last works next, so
// that the others can leave.
type crew struct {
	work *sync.WaitGroup
	mu   sync.Mutex
	idle []chan func()
}

// idleTime is how long a goroutine that has nothing to do stays.
const idleTime = time.Second

// run runs f at once. After ctx has ended, no goroutine stays.
func (c *crew) run(ctx context.Context, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(c.idle) - 1; last >= 0 {
		c.idle[last] <- f // which has room for one
		c.idle = c.idle[:last]
		return
	}
	jobs := make(chan func(), 1)
	jobs <- f
	c.work.Go(func() { c.serve(ctx, jobs) })
}

// serve runs one function after the other.
func (c *crew) serve(ctx context.Context, jobs chan func()) {
	timer := time.NewTimer(idleTime)
	defer timer.Stop()
	for f := <-jobs; f != nil; f = c.next(ctx, jobs, timer) {
		f()
		timer.Reset(idleTime)
		c.rest(jobs)
	}
}

// next returns what a goroutine is to do, or nil if it has had nothing to do for a while.
func (c *crew) next(ctx context.Context, jobs chan func(), timer *time.Timer) func() {
	select {
	case f := <-jobs:
		return f
	case <-timer.C:
	case <-ctx.Done():
	}
	return c.leave(jobs)
}

func (c *crew) rest(jobs chan func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, jobs)
}

// leave returns what was given to a goroutine that is about to leave, or nil.
func (c *crew) leave(jobs chan func()) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.idle, jobs); i >= 0 {
		c.idle = slices.Delete(c.idle, i, i+1)
		return nil
	}
	return <-jobs
}
