package dlock

import "time"

// WithSleptClock injects the clock of suspended time, as for a remote backend.
func WithSleptClock(slept func() time.Duration) Option {
	return func(o *options) { o.clock = func() int64 { return int64(slept()) } }
}

// SuspendClock returns a reader of suspended time on two clocks that a test moves.
func SuspendClock(now, read func() int64) func() int64 {
	return newSuspendClock(now, read).slept
}

// Entries is how much the Client keeps in memory: claims, keyed locks and
// timeline entries.
func (c *Client) Entries() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claims.len() + len(c.keyed) + len(c.timeline)
}

// Unsettled is how many claims wait for clean-up.
func (c *Client) Unsettled() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settling.count()
}

// Alarm is when the scheduler wakes by itself, and whether it does.
func (c *Client) Alarm() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.alarm), c.alarm != never
}

// SpanOf and TraceParent read and write what one process tells another of its span.
var SpanOf, TraceParent = spanOf, traceParent

// LocalWaiters is how many calls wait in the queues of local handoffs.
func (c *Client) LocalWaiters() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.handoffs {
		n += len(h.waiters)
	}
	return n
}

// Queued is how many claims wait.
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
