package dlock

// effects is work that code under mu leaves to unlock. It must not run under mu, because it
// calls user code or wakes goroutines that lock mu.
type effects struct {
	cancellations []cancellation // contexts of guards that have ended
	losses        int            // how many of these guards were lost
	deliveries    []delivery     // locks for waiters of the same Client
	cleanups      []cleanupTask  // claims to release in the background
	reports       []report       // log records, measurements, spans
}

// unlock frees mu and runs the effects. The reporter delivers the reports; nothing here
// waits for it.
func (c *Client) unlock() {
	reports, _ := c.runEffects()
	c.reporter.add(reports)
}

// unlockCall is unlock for a call of the user, which delivers its own reports before it
// returns. It waits until the contexts of guards that were lost before have ended, because the
// call may have acquired the key of one of them.
func (c *Client) unlockCall() {
	reports, ended := c.runEffects()
	if c.unobserved() { // the call delivers nothing
		c.reporter.add(reports)
	} else {
		c.reporter.put(reports)
	}
	if ended != nil {
		<-ended
	}
}

// endingLosses counts the goroutines that end contexts of lost guards outside mu.
type endingLosses struct {
	goroutines int
	done       chan struct{} // closed when there are none left; nil if there are none
}

// begin and end run under mu.
func (l *endingLosses) begin() {
	l.goroutines++
	if l.done == nil {
		l.done = make(chan struct{})
	}
}

func (l *endingLosses) end() {
	l.goroutines--
	if l.goroutines == 0 {
		close(l.done)
		l.done = nil
	}
}

// runEffects frees mu. Contexts of guards end first; only then does the next local holder
// get the lock, or cleanup release a claim. ended is closed when the contexts of all lost guards
// have ended; it is nil if they have.
func (c *Client) runEffects() (reports []report, ended <-chan struct{}) {
	e := c.effects
	c.effects = effects{}
	if e.losses > 0 {
		c.endingLosses.begin()
	}
	ended = c.endingLosses.done
	c.cleanupQueue.incoming += len(e.cleanups)
	cleaners := c.startCleaners()
	c.mu.Unlock()
	for _, cc := range e.cancellations {
		cc.cancel(cc.cause)
	}
	if e.losses > 0 {
		c.mu.Lock()
		c.endingLosses.end()
		c.mu.Unlock()
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
	return e.reports, ended
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
