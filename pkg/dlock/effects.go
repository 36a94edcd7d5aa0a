package dlock

// effects is work that code under mu leaves to unlock. It must not run under mu, because it
// calls user code or wakes goroutines that lock mu.
type effects struct {
	cancellations []cancellation // contexts of guards that have ended
	deliveries    []delivery     // locks for waiters of the same Client
	cleanups      []cleanupTask  // claims to release in the background
	reports       []report       // log records, measurements, spans
}

// unlock frees mu and runs the effects. The reporter delivers the reports; nothing here
// waits for it.
func (c *Client) unlock() {
	c.reporter.add(c.runEffects())
}

// unlockCall is unlock for a call of the user, which delivers its own reports before it
// returns.
func (c *Client) unlockCall() {
	c.reporter.put(c.runEffects())
}

// runEffects frees mu. Contexts of guards end first; only then does the next local holder
// get the lock, or cleanup release a claim.
func (c *Client) runEffects() []report {
	e := c.effects
	c.effects = effects{}
	c.cleanupQueue.incoming += len(e.cleanups)
	cleaners := c.startCleaners()
	c.mu.Unlock()
	for _, cc := range e.cancellations {
		cc.cancel(cc.cause)
	}
	for _, h := range e.deliveries {
		h.to.result <- h.localResult
	}
	if len(e.cleanups) > 0 {
		cleaners += c.enqueueCleanups(e.cleanups)
	}
	for range cleaners {
		c.workers.Go(c.runCleaner)
	}
	return e.reports
}

// enqueueCleanups adds tasks to the cleanup queue, and returns how many workers to start.
func (c *Client) enqueueCleanups(tasks []cleanupTask) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cleanupQueue.add(tasks)
	n := c.startCleaners()
	c.cleanupQueue.signalIdle()
	return n
}
