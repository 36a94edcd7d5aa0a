package dlock

import (
	"sync"
	"time"
)

// A reporter runs what belongs to the user's logger, meter and tracer. Nobody knows
// how long that takes: a logger may block on a full pipe for minutes. So nothing that
// renews a lock or ends a context runs it, or waits for it. The engine adds reports,
// and a goroutine that lives as long as there are any delivers them in order. A call
// of the user's that has its own reports in the queue delivers them before it returns,
// so that what was done is also reported.
type reporter struct {
	meters func(measurement)
	turn   chan struct{} // held by whoever delivers

	mu      sync.Mutex
	queue   []report
	dropped int
	running bool
	stuck   bool // a call has waited in vain, and no report was delivered since
	warn    func(dropped int)
}

// A report is a log line or the end of a span, or else a measurement.
type report struct {
	run      func()
	measured measurement
}

// maxReports bounds the queue, should the user's code not return. maxReportWait is how
// long a call of the user's waits for another goroutine that delivers. Once one has waited
// in vain, none waits until a report is delivered.
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

// add queues reports and sees to their delivery by another goroutine.
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

// run delivers until the queue is empty. It is not one of the Client's workers: Close
// does not wait for user code for ever.
func (r *reporter) run() {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	for r.deliverOne(true) {
	}
}

// deliver delivers what is queued, or waits a little for whoever is about it.
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

// flush is deliver for Close, with its own bound. It reports whether all was delivered.
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

// state reports whether there is nothing to deliver, and whether the user's code seems to
// block.
func (r *reporter) state() (idle, stuck bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue) == 0 && !r.running, r.stuck
}

// deliverOne reports whether there was one. last says that the goroutine which asks
// ends if there was not.
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

// safely keeps a panic of injected code away from the locks.
func safely(report func()) {
	defer func() { _ = recover() }()
	report()
}
