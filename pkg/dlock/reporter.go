package dlock

import (
	"sync"
	"time"
)

// A reporter calls the user's logger, meter and tracer. They may take any time: a logger may
// block on a full pipe for minutes. So code that renews a lock or ends a context neither calls
// nor waits for them. The engine adds reports, and a goroutine that exists only while there
// are reports delivers them in order. A call of the user delivers its own queued reports before
// it returns, so that its effects are reported by then.
type reporter struct {
	meters func(measurement)
	turn   chan struct{} // a semaphore, held by the goroutine that delivers

	mu      sync.Mutex
	queue   []report
	dropped int
	running bool
	stuck   bool // a call has timed out waiting, and no report was delivered since
	warn    func(dropped int)
}

// A report is a log line or the end of a span, or else a measurement.
type report struct {
	run      func()
	measured measurement
}

// maxReports limits the queue in case the user's code does not return. maxReportWait is how
// long a call of the user waits for another goroutine that delivers. After one call has timed
// out, no call waits until a report is delivered.
const (
	maxReports    = 1 << 14
	maxReportWait = 100 * time.Millisecond
)

func newReporter(record func(measurement), warn func(dropped int)) *reporter {
	return &reporter{meters: record, warn: warn, turn: make(chan struct{}, 1)}
}

// put queues reports for a call that will deliver them itself.
func (r *reporter) put(reports []report) {
	if len(reports) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(reports)
}

func (r *reporter) append(reports []report) {
	n := min(len(reports), maxReports-len(r.queue))
	r.queue = append(r.queue, reports[:n]...)
	r.dropped += len(reports) - n
}

// add queues reports, and starts a goroutine that delivers them if there is none.
func (r *reporter) add(reports []report) {
	if len(reports) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(reports)
	if !r.running {
		r.running = true
		go r.run()
	}
}

// run delivers until the queue is empty. It is not one of the Client's workers, because Close
// must not wait for user code forever.
func (r *reporter) run() {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	for r.deliverOne(true) {
	}
}

// deliver delivers what is queued, or waits for a short time if another goroutine delivers.
func (r *reporter) deliver() {
	idle, stuck := r.state()
	if idle {
		return
	}
	select {
	case r.turn <- struct{}{}:
	default:
		if stuck || !r.waitTurn() {
			return
		}
	}
	for r.deliverOne(false) {
	}
	<-r.turn
}

// flush is deliver for Close, with its own timeout. It reports whether everything was delivered.
func (r *reporter) flush(within time.Duration) bool {
	done := make(chan struct{})
	go func() {
		r.turn <- struct{}{}
		for r.deliverOne(false) {
		}
		<-r.turn
		close(done)
	}()
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

func (r *reporter) waitTurn() bool {
	t := time.NewTimer(maxReportWait)
	defer t.Stop()
	select {
	case r.turn <- struct{}{}:
		return true
	case <-t.C:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stuck = true
	return false
}

// state reports whether there is nothing to deliver, and whether the user's code seems to be
// blocked.
func (r *reporter) state() (idle, stuck bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue) == 0 && !r.running, r.stuck
}

// deliverOne delivers one report, and returns whether there was one. last is true for run, which
// ends if there was none.
func (r *reporter) deliverOne(last bool) bool {
	r.mu.Lock()
	r.stuck = false
	if len(r.queue) == 0 {
		dropped := r.dropped
		r.dropped = 0
		if last && dropped == 0 {
			r.running = false
		}
		r.mu.Unlock()
		if dropped > 0 {
			safely(func() { r.warn(dropped) })
		}
		return dropped > 0
	}
	next := r.queue[0]
	r.queue[0] = report{}
	r.queue = r.queue[1:]
	r.mu.Unlock()
	safely(func() {
		if next.run != nil {
			next.run()
			return
		}
		r.meters(next.measured)
	})
	return true
}

// safely recovers a panic of injected code, so that it does not affect the locks.
func safely(report func()) {
	defer func() { _ = recover() }()
	report()
}
