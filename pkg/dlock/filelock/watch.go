package filelock

import (
	"context"
	"errors"
	"time"
)

// signals reports that a process has closed a file. Signals may be lost: queues are also tried
// again from time to time.
type signals interface {
	// add watches a file.
	add(path string) (watch int, err error)
	remove(watch int)
	// wait returns the files that were closed, or all if it does not know which. It returns at
	// until at the latest, and at once after wake.
	wait(until time.Time) (watches []int, all bool)
	wake()
	close()
}

// How soon a queue is tried again. After a close that comes from a crash, the lock is free a moment
// later, so the first pauses are short. Without a watch, all pauses are short.
const (
	firstPause = 200 * time.Microsecond
	lastPause  = 250 * time.Millisecond
	firstPoll  = time.Millisecond
	lastPoll   = 25 * time.Millisecond
)

// nextPause is called with the mutexes of the queue and of the driver held.
func (q *waitQueue) nextPause() time.Duration {
	if q.watch < 0 {
		return max(firstPoll, min(2*q.pause, lastPoll))
	}
	return max(firstPause, min(2*q.pause, lastPause))
}

// rest arms a queue that was refused: it is tried again when its file is closed, and after a pause.
// The caller holds the queue's mutex.
func (d *fileDriver) rest(q *waitQueue) {
	fresh := q.watch < 0 && d.watch(q) // the file may have been closed just before
	q.resting = true
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	q.pause = q.nextPause()
	if _, armed := d.armed[q]; fresh || !armed {
		q.pause = 0
	}
	d.armed[q] = struct{}{}
	q.due = time.Now().Add(q.pause)
	switch {
	case !d.running:
		d.running = true
		d.work.Go(d.run)
	case q.due.Before(d.asleep):
		d.signals.wake()
	}
}

// disarm ends what rest began. The caller holds the queue's mutex.
func (d *fileDriver) disarm(q *waitQueue) {
	if !q.resting {
		return
	}
	q.resting = false
	d.unwatch(q)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.armed, q)
	if len(d.armed) == 0 {
		d.signals.wake() // nothing is left to wait for
	}
}

// watch starts to watch the file of a queue, and reports whether that is possible.
func (d *fileDriver) watch(q *waitQueue) bool {
	d.listen.Do(func() { d.signals = d.store.signals(d.log) })
	w, err := d.signals.add(pathIn(d.path, q.base+lockSuffix))
	if err != nil {
		return false
	}
	q.watch = w
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watched[w] = q
	return true
}

func (d *fileDriver) unwatch(q *waitQueue) {
	if q.watch < 0 {
		return
	}
	d.signals.remove(q.watch)
	d.mu.Lock()
	delete(d.watched, q.watch)
	d.mu.Unlock()
	q.watch = -1
}

// run tries armed queues when they are due, until there are none.
func (d *fileDriver) run() {
	for {
		due, next, done := d.collect()
		switch {
		case done:
			return
		case len(due) == 0:
			d.sleep(next)
		}
		for _, q := range due {
			if q.mu.TryLock() { // its owner may be waiting for a guard
				_ = d.serve(context.Background(), q) // what fails is tried again
				q.mu.Unlock()
			}
			d.unpin(q, 1)
		}
	}
}

// collect pins the queues that are due, and returns when the next one is due.
func (d *fileDriver) collect() (due []*waitQueue, next time.Time, done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.armed) == 0 {
		d.running = false
		return nil, next, true
	}
	now := time.Now()
	next = now.Add(time.Hour)
	for q := range d.armed {
		if !q.due.After(now) {
			q.pins++
			q.due = now.Add(firstPause) // if it is not tried now; else rest sets it
			due = append(due, q)
		}
		if q.due.Before(next) {
			next = q.due
		}
	}
	d.asleep = next
	return due, next, false
}

// sleep waits for signals, and makes the signalled queues due.
func (d *fileDriver) sleep(until time.Time) {
	watches, all := d.signals.wait(until)
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if all {
		for q := range d.armed {
			q.due, q.pause = now, 0
		}
	}
	for _, w := range watches {
		if q := d.watched[w]; q != nil {
			q.due, q.pause = now, 0
		}
	}
}

func (d *fileDriver) stopWatching() {
	d.mu.Lock()
	d.closed = true
	if d.signals != nil {
		d.signals.wake()
	}
	d.mu.Unlock()
	d.work.Wait()
	if d.signals != nil {
		d.signals.close()
	}
}

var errNoWatch = errors.New("files cannot be watched")

// A poller implements signals without ever reporting a file.
type poller chan struct{}

func newPoller() poller { return make(poller, 1) }

func (p poller) add(string) (int, error) { return -1, errNoWatch }
func (p poller) remove(int)              {}
func (p poller) close()                  {}

func (p poller) wait(until time.Time) ([]int, bool) {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-p:
	case <-t.C:
	}
	return nil, false
}

func (p poller) wake() {
	select {
	case p <- struct{}{}:
	default:
	}
}
