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
	queueTTL      time.Duration

	// Under redDriver.mu.
	phase    driver.Phase // Queued, then Held, then Gone
	ttl      time.Duration
	token    int64
	round    int64     // that has won
	until    time.Time // the end of its validity, or of its heartbeat while it is queued
	open     []int     // by node: calls that may store it there and were not answered
	shown    bool      // a node may show that it waits
	tried    bool      // it has made a round
	began    int64     // when it began to wait, by the fastest clock of the nodes, in microseconds; 0 if unknown
	told     told
	shorter  []*shortening // calls that shorten its lease and may still arrive, or arrived during a renewal
	renewals int           // that not all nodes have answered
	tries    int           // rounds in a row that others have disturbed
	notSoon  time.Time     // no other round before this, for any caller
	unheard  int           // rounds since the lock was last heard of
	apart    bool          // a node has refused to renew it because of its key; see split.go

	proposed int64 // the last token that it has proposed
}

// heartbeat returns how long a claim with a TTL lives in the queue without renewal.
func (c *claim) heartbeat(ttl time.Duration) time.Duration {
	r := driver.Ref{TTL: ttl, QueueTTL: c.queueTTL}
	return r.Heartbeat()
}

// third is a third of the usual heartbeat, also for a claim whose place lasts longer: that is no reason to try seldom.
func (c *claim) third() time.Duration {
	return min(c.heartbeat(c.ttl), driver.Heartbeat(c.ttl)) / 3
}

type claimID struct{ key, id string }

// A waitQueue is the claims of this driver on one key. Only the first waiter contends with other
// processes, so that a process does not compete with itself.
type waitQueue struct {
	key  string
	turn chan struct{} // has room for one: the contending claim

	// Under redDriver.mu.
	users   int // calls in progress
	waiting []*claim
	holder  *claim
	timer   *time.Timer // set when the lock was said to be free
	freed   int64       // the token of which it was last said so, and by how many nodes
	frees   int
	taken   int64 // the greatest token of which the opposite was said
}

// enter returns the queue of a key, which stays until leave.
func (d *redDriver) enter(key string) *waitQueue {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queues[key]
	if q == nil {
		q = &waitQueue{key: key, turn: make(chan struct{}, 1)}
		d.queues[key] = q
	}
	q.users++
	return q
}

func (d *redDriver) leave(q *waitQueue) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q.users--
	d.closeQueue(q)
}

// closeQueue forgets an unused queue. The caller holds mu.
func (d *redDriver) closeQueue(q *waitQueue) {
	if q.users == 0 && len(q.waiting) == 0 && q.holder == nil && d.queues[q.key] == q {
		q.stopTimer()
		delete(d.queues, q.key)
	}
}

func (q *waitQueue) stopTimer() {
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
}

// first drops the claims that have missed a heartbeat, and returns the first of the others. The
// caller holds mu.
func (d *redDriver) first(q *waitQueue, now time.Time) *claim {
	for len(q.waiting) > 0 && !now.Before(q.waiting[0].until) {
		dead := q.waiting[0]
		q.waiting = q.waiting[1:]
		dead.phase = driver.Gone
		delete(d.claims, claimID{dead.key, dead.id})
		d.removeEverywhere(dead)
	}
	if len(q.waiting) == 0 {
		return nil
	}
	return q.waiting[0]
}

// isReleasing reports whether a claim of this driver is just releasing the lock. A holder does not
// count: it may have been evicted without notice. The nodes know. The caller holds mu.
func (q *waitQueue) isReleasing(now time.Time) bool {
	return q.holder != nil && q.holder.phase == driver.Gone && now.Before(q.holder.until)
}

// blocked reports whether a claim need not ask the servers now, and when it should. The caller
// holds mu.
func (d *redDriver) blocked(q *waitQueue, c *claim, now time.Time) (bool, time.Duration) {
	head := d.first(q, now)
	switch {
	case c.phase == driver.Gone, q.isReleasing(now):
		return true, 0
	case !c.waits:
		return head != nil, 0
	case head != c:
		return true, 0
	}
	if now.Before(c.notSoon) {
		return true, c.notSoon.Sub(now)
	}
	if at, ok := d.yields[q.key]; ok {
		if now.Before(at) {
			return true, at.Sub(now)
		}
		delete(d.yields, q.key)
	}
	return false, 0
}

func (q *waitQueue) dequeue(c *claim) {
	q.waiting = slices.DeleteFunc(q.waiting, func(w *claim) bool { return w == c })
}

// ahead returns how many claims of this driver are before a claim. The caller holds mu.
func (q *waitQueue) ahead(c *claim) int { return max(slices.Index(q.waiting, c), 0) + 1 }

// drop forgets a claim and makes the next claim of its queue try. The caller holds mu.
func (d *redDriver) drop(c *claim) {
	if c.phase == driver.Gone {
		return
	}
	c.phase = driver.Gone
	delete(d.claims, claimID{c.key, c.id})
	q := d.queues[c.key]
	if q == nil {
		return
	}
	wasFirst := len(q.waiting) > 0 && q.waiting[0] == c
	q.dequeue(c)
	if q.holder == c {
		q.holder, wasFirst = nil, true
	}
	if wasFirst {
		d.nudge(q)
	}
	d.closeQueue(q)
}

// won makes a claim the holder of its queue. If the queue still had another holder, that one is no
// longer the holder, because no two claims have a majority: it was evicted, and the engine is asked
// to renew it. The caller holds mu.
func (d *redDriver) won(q *waitQueue, c *claim, out outcome) {
	if was := q.holder; was != nil && was != c && was.phase == driver.Held {
		was.phase = driver.Gone
		delete(d.claims, claimID{was.key, was.id})
		d.removeEverywhere(was)
		d.Send(driver.Event{Key: was.key, ID: was.id, State: driver.State{Phase: driver.Gone}})
	}
	q.dequeue(c)
	q.holder, c.phase, c.token, c.round, c.until, c.tries = c, driver.Held, out.token, out.round, out.until, 0
	d.claims[claimID{c.key, c.id}] = c
}

// nudge asks the engine to renew the first waiter: its turn has come. The caller holds mu.
func (d *redDriver) nudge(q *waitQueue) {
	q.stopTimer()
	if head := d.first(q, time.Now()); head != nil && !d.closed {
		head.notSoon, head.unheard = time.Time{}, 0
		d.Send(driver.Event{Key: head.key, ID: head.id})
	}
}

// nudgeLater is nudge after a random time within window: other processes may have been notified as
// well, and the first one should be done before the second begins. The caller holds mu.
func (d *redDriver) nudgeLater(q *waitQueue, window time.Duration) {
	if q.timer != nil || len(q.waiting) == 0 || d.closed {
		return
	}
	d.nudgeIn(q, scatter(window))
}

// nudgeIn is nudge after some time, and not at another. The caller holds mu.
func (d *redDriver) nudgeIn(q *waitQueue, after time.Duration) {
	q.stopTimer()
	var t *time.Timer
	t = time.AfterFunc(after, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if q.timer == t {
			d.nudge(q)
		}
	})
	q.timer = t
}

// scatter returns a random time up to window.
func scatter(window time.Duration) time.Duration {
	if window <= 0 {
		return 0
	}
	return rand.N(window)
}

// A pace is how long it recently took to win a lock.
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
	return min(max(p.mean, 200*time.Microsecond), maxPace)
}

// maxPace is the slowest pace that is expected.
const maxPace = 50 * time.Millisecond

// maxWindow limits how far contenders are spread.
const maxWindow = 32

// window returns the time over which this many contenders should spread.
func (d *redDriver) window(contenders int) time.Duration {
	return time.Duration(min(contenders, maxWindow)) * d.pace.get()
}
