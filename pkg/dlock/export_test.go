package dlock

import (
	"testing"
	"time"
)

// WithSleptClock injects the clock of suspended time, as for a remote backend.
func WithSleptClock(slept func() time.Duration) Option {
	return func(o *options) { o.clock = func() int64 { return int64(slept()) } }
}

// SuspendClock returns a reader of suspended time with two clocks that a test controls.
func SuspendClock(now, read func() int64) func() int64 {
	return newSuspendClock(now, read).suspended
}

// Entries returns how many entries the Client has in memory: claims, keyed locks and the timeline.
func (c *Client) Entries() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claims.len() + len(c.keyed) + len(c.timeline)
}

// Lost returns how many lost guards the Client keeps.
func (c *Client) Lost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.lost)
}

// Unanswered returns how many claims wait for cleanup.
func (c *Client) Unanswered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cleanupQueue.count()
}

// Alarm returns when the scheduler's timer fires, and whether it is set.
func (c *Client) Alarm() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.timerAt), c.timerAt != never
}

// SpanOf and TraceParent read and write the span that is stored with a claim.
var SpanOf, TraceParent = spanOf, traceParent

// LocalWaiters returns how many calls wait in the queues of local handoffs.
func (c *Client) LocalWaiters() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.handoffs {
		n += len(h.waiters)
	}
	return n
}

// Queued returns how many claims wait.
func (c *Client) Queued() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cl := range c.claims.all() {
		if cl.phase == queued {
			n++
		}
	}
	return n
}

// SetWithdrawTimeout changes withdrawTimeout for a test.
func SetWithdrawTimeout(tb testing.TB, d time.Duration) {
	before := withdrawTimeout
	withdrawTimeout = d
	tb.Cleanup(func() { withdrawTimeout = before })
}
