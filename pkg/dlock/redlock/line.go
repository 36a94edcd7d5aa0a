package redlock

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A claim is one that this driver holds or waits for.
type claim struct {
	names
	key, id, info string
	waits         bool

	// Under redDriver.mu.
	phase   driver.Phase // Queued, then Held, then Gone
	ttl     time.Duration
	token   int64
	until   time.Time // the end of its validity, or of its heartbeat while it is queued
	open    []int     // by node: calls that may store it there and were not answered
	shown   bool      // a node may show that it waits
	least   time.Duration
	leastBy time.Time // until then a call that shortens the lease to least may arrive
	tries   int       // rounds in a row that others have disturbed
	notSoon time.Time // no other round before this, whoever asks
	unheard int       // rounds since the lock was last heard of
}

type claimID struct{ key, id string }

// A line is the claims of this driver on one key. Only the first of those who wait
// contends with other processes, so that a process does not compete with itself.
type line struct {
	key  string
	turn chan struct{} // has room for one: who contends

	// Under redDriver.mu.
	users   int // calls that are under way
	waiting []*claim
	holder  *claim
	timer   *time.Timer // set when the lock was said to be free
	freed   int64       // the token of which it was last said so, and by how many nodes
	frees   int
	taken   int64 // the greatest token of which the opposite was said
}

// enter returns the line of a key, which stays until leave.
func (d *redDriver) enter(key string) *line {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lines[key]
	if l == nil {
		l = &line{key: key, turn: make(chan struct{}, 1)}
		d.lines[key] = l
	}
	l.users++
	return l
}

func (d *redDriver) leave(l *line) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.users--
	d.closeLine(l)
}

// closeLine forgets a line that nobody uses. It runs under mu.
func (d *redDriver) closeLine(l *line) {
	if l.users == 0 && len(l.waiting) == 0 && l.holder == nil && d.lines[l.key] == l {
		l.stopTimer()
		delete(d.lines, l.key)
	}
}

func (l *line) stopTimer() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// first drops those who have missed a heartbeat, and returns the first of the others.
// It runs under mu.
func (d *redDriver) first(l *line, now time.Time) *claim {
	for len(l.waiting) > 0 && !now.Before(l.waiting[0].until) {
		dead := l.waiting[0]
		l.waiting = l.waiting[1:]
		dead.phase = driver.Gone
		delete(d.claims, claimID{dead.key, dead.id})
		d.removeEverywhere(dead)
	}
	if len(l.waiting) == 0 {
		return nil
	}
	return l.waiting[0]
}

// isReleasing reports whether a claim of this driver is just giving the lock back. One that
// holds it does not count: it may have been evicted, and nobody tells. The nodes know.
// It runs under mu.
func (l *line) isReleasing(now time.Time) bool {
	return l.holder != nil && l.holder.phase == driver.Gone && now.Before(l.holder.until)
}

// blocked says why a claim need not ask the servers now, and when it should. It runs
// under mu.
func (d *redDriver) blocked(l *line, c *claim, now time.Time) (bool, time.Duration) {
	head := d.first(l, now)
	switch {
	case c.phase == driver.Gone, l.isReleasing(now):
		return true, 0
	case !c.waits:
		return head != nil, 0
	case head != c:
		return true, 0
	}
	if now.Before(c.notSoon) {
		return true, c.notSoon.Sub(now)
	}
	if at, ok := d.yields[l.key]; ok {
		if now.Before(at) {
			return true, at.Sub(now)
		}
		delete(d.yields, l.key)
	}
	return false, 0
}

func (l *line) dequeue(c *claim) {
	l.waiting = slices.DeleteFunc(l.waiting, func(w *claim) bool { return w == c })
}

// ahead is how many of this driver stand before a claim. It runs under mu.
func (l *line) ahead(c *claim) int { return max(slices.Index(l.waiting, c), 0) + 1 }

// drop forgets a claim, and tells the next of its line to try. It runs under mu.
func (d *redDriver) drop(c *claim) {
	if c.phase == driver.Gone {
		return
	}
	c.phase = driver.Gone
	delete(d.claims, claimID{c.key, c.id})
	l := d.lines[c.key]
	if l == nil {
		return
	}
	wasFirst := len(l.waiting) > 0 && l.waiting[0] == c
	l.dequeue(c)
	if l.holder == c {
		l.holder, wasFirst = nil, true
	}
	if wasFirst {
		d.nudge(l)
	}
	d.closeLine(l)
}

// won makes a claim the holder of its line. A holder that the line still had is none any
// more: no two claims have a majority. It was evicted, and the engine is told to look. It
// runs under mu.
func (d *redDriver) won(l *line, c *claim, out outcome) {
	if was := l.holder; was != nil && was != c && was.phase == driver.Held {
		was.phase = driver.Gone
		delete(d.claims, claimID{was.key, was.id})
		d.Send(driver.Event{Key: was.key, ID: was.id, State: driver.State{Phase: driver.Gone}})
	}
	l.dequeue(c)
	l.holder, c.phase, c.token, c.until, c.tries = c, driver.Held, out.token, out.until, 0
	d.claims[claimID{c.key, c.id}] = c
}

// nudge asks the engine to renew the first who waits: its turn has come. It runs
// under mu.
func (d *redDriver) nudge(l *line) {
	l.stopTimer()
	if head := d.first(l, time.Now()); head != nil && !d.closed {
		head.notSoon, head.unheard = time.Time{}, 0
		d.Send(driver.Event{Key: head.key, ID: head.id})
	}
}

// nudgeLater is nudge after a random time within window: others may have been told as
// well, and the first of all should be done before the second begins. It runs under
// mu.
func (d *redDriver) nudgeLater(l *line, window time.Duration) {
	if l.timer != nil || len(l.waiting) == 0 || d.closed {
		return
	}
	var t *time.Timer
	t = time.AfterFunc(scatter(window), func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if l.timer == t {
			d.nudge(l)
		}
	})
	l.timer = t
}

// scatter is a random time up to window.
func scatter(window time.Duration) time.Duration {
	if window <= 0 {
		return 0
	}
	return rand.N(window)
}

// A pace is how long it lately took to win a lock.
type pace struct {
	mu   sync.Mutex
	mean time.Duration
}

func (p *pace) add(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mean == 0 {
		p.mean = took
	}
	p.mean += (took - p.mean) / 8
}

func (p *pace) get() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(max(p.mean, 200*time.Microsecond), 50*time.Millisecond)
}

// windowMost bounds how far contenders are spread.
const windowMost = 32

// window is the time in which so many contenders should spread.
func (d *redDriver) window(contenders int) time.Duration {
	return time.Duration(min(contenders, windowMost)) * d.pace.get()
}
