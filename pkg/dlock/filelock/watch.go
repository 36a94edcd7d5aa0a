package filelock

import (
	"context"
	"errors"
	"time"
)

// signals tell that somebody has closed a file. They may be lost: lines are tried again
// now and then all the same.
type signals interface {
	// add watches a file.
	add(path string) (watch int, err error)
	remove(watch int)
	// wait returns the files that were closed, or all if it does not know, at the
	// latest at a time, and at once after wake.
	wait(until time.Time) (watches []int, all bool)
	wake()
	close()
}

// How soon a line is tried again. After a close that comes from a crash the lock is
// free a moment later, so the first pauses are short. Without a watch they stay so.
const (
	firstPause = 200 * time.Microsecond
	lastPause  = 250 * time.Millisecond
	firstPoll  = time.Millisecond
	lastPoll   = 25 * time.Millisecond
)

// nextPause runs under the mutexes of the line and of the driver.
func (l *line) nextPause() time.Duration {
	if l.watch < 0 {
		return max(firstPoll, min(2*l.pause, lastPoll))
	}
	return max(firstPause, min(2*l.pause, lastPause))
}

// rest arms a line that was refused: it is tried again when its file is closed, and
// after a while. It runs under the line's mutex.
func (d *fileDriver) rest(l *line) {
	fresh := l.watch < 0 && d.watch(l) // the file may have been closed just before
	l.resting = true
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	l.pause = l.nextPause()
	if _, armed := d.armed[l]; fresh || !armed {
		l.pause = 0
	}
	d.armed[l] = struct{}{}
	l.due = time.Now().Add(l.pause)
	switch {
	case !d.running:
		d.running = true
		d.work.Go(d.run)
	case l.due.Before(d.asleep):
		d.signals.wake()
	}
}

// disarm ends what rest began. It runs under the line's mutex.
func (d *fileDriver) disarm(l *line) {
	if !l.resting {
		return
	}
	l.resting = false
	d.unwatch(l)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.armed, l)
	if len(d.armed) == 0 {
		d.signals.wake() // nothing is left to wait for
	}
}

// watch begins to watch the file of a line, and reports whether that is possible.
func (d *fileDriver) watch(l *line) bool {
	d.listen.Do(func() { d.signals = d.store.signals(d.log) })
	w, err := d.signals.add(pathIn(d.path, l.base+lockSuffix))
	if err != nil {
		return false
	}
	l.watch = w
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watched[w] = l
	return true
}

func (d *fileDriver) unwatch(l *line) {
	if l.watch < 0 {
		return
	}
	d.signals.remove(l.watch)
	d.mu.Lock()
	delete(d.watched, l.watch)
	d.mu.Unlock()
	l.watch = -1
}

// run tries armed lines when they are due, until there are none.
func (d *fileDriver) run() {
	for {
		due, next, done := d.collect()
		switch {
		case done:
			return
		case len(due) == 0:
			d.sleep(next)
		}
		for _, l := range due {
			if l.mu.TryLock() { // whoever has it may wait for a guard
				_ = d.serve(context.Background(), l) // what fails is tried again
				l.mu.Unlock()
			}
			d.unpin(l, 1)
		}
	}
}

// collect pins the lines that are due, and says when the next will be.
func (d *fileDriver) collect() (due []*line, next time.Time, done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.armed) == 0 {
		d.running = false
		return nil, next, true
	}
	now := time.Now()
	next = now.Add(time.Hour)
	for l := range d.armed {
		if !l.due.After(now) {
			l.pins++
			l.due = now.Add(firstPause) // if it is not tried now; else rest sets it
			due = append(due, l)
		}
		if l.due.Before(next) {
			next = l.due
		}
	}
	d.asleep = next
	return due, next, false
}

// sleep waits for signals, and makes due whom they are for.
func (d *fileDriver) sleep(until time.Time) {
	watches, all := d.signals.wait(until)
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if all {
		for l := range d.armed {
			l.due, l.pause = now, 0
		}
	}
	for _, w := range watches {
		if l := d.watched[w]; l != nil {
			l.due, l.pause = now, 0
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

// A poller is signals that never tell anything.
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
