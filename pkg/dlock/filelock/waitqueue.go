package filelock

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A waitQueue is the claims of this driver on one key. They are served one after another, so that a
// process does not compete with itself.
type waitQueue struct {
	key    string
	name   string // with the prefix
	quoted []byte // the same as JSON
	base   string // its files begin with this

	// Under fileDriver.mu.
	pins  int       // claims, and calls in progress
	due   time.Time // when an armed queue is tried again
	pause time.Duration

	mu      sync.Mutex // held while its files are worked on
	holders []*claim
	waiting []*claim
	waiters map[string]*claim // the same by their IDs
	spare   file              // left open by the last holder
	resting bool              // it is armed, or was when the driver was closed
	watch   int               // of its file, -1 without
	buf     []byte
}

// A file is open if its descriptor is not negative.
type file struct {
	fd   int
	seen time.Time // when it was last known to be at its path
}

var noFile = file{fd: -1}

// A claim is one that this driver has submitted. The mutex of its queue guards it.
type claim struct {
	queue   *waitQueue
	id      string
	mode    driver.Mode
	limit   int
	tokens  int
	wait    bool
	info    driver.Info
	arrived int64 // µs

	phase      driver.Phase
	token      int64
	since      int64 // µs
	main       file  // the lock file
	slot       int   // that of one of several holders, -1 if there is none
	slotNumber int
	yieldUntil time.Time // until when it lets others go first, its courtesy
	inherited  bool      // other processes may have its descriptors
}

func newClaim(q *waitQueue, r *driver.Request) *claim {
	return &claim{
		queue: q, id: r.ID, mode: r.Mode, limit: r.Limit, tokens: r.Tokens, wait: r.Wait, info: r.Info,
		arrived: time.Now().UnixMicro(), main: noFile, slot: -1,
	}
}

// state returns the State of a claim.
func (c *claim) state() driver.State {
	switch c.phase {
	case driver.Held:
		return driver.State{Phase: driver.Held, Token: c.token}
	case driver.Queued:
		return driver.State{Phase: driver.Queued, Ahead: 1 + slices.Index(c.queue.waiting, c)}
	default:
		return driver.State{Phase: driver.Gone}
	}
}

// unlock releases the lock and keeps the lock file open.
func (c *claim) unlock() {
	if c.slot >= 0 {
		unlock(c.slot)
		closeFile(c.slot)
		c.slot = -1
	}
	if c.main.fd >= 0 {
		unlock(c.main.fd)
	}
}

// close closes the files, which wakes the waiters. A lock ends with its last descriptor.
func (c *claim) close() {
	if c.slot >= 0 {
		closeFile(c.slot)
	}
	if c.main.fd >= 0 {
		closeFile(c.main.fd)
	}
	c.slot, c.main = -1, noFile
}

// putBack leaves the lock file open for the next claim of this driver, and wakes no waiter.
func (c *claim) putBack() {
	if c.queue.spare.fd < 0 {
		c.queue.spare, c.main = c.main, noFile
	}
	c.close()
}

// taken reports whether a claim of this driver holds the lock exclusively.
func (q *waitQueue) taken() bool { return len(q.holders) > 0 && q.holders[0].mode == driver.Exclusive }

// idleQueues is how many queues without claims keep their files open.
const idleQueues = 16

// pin returns the queue of a key, which stays until unpin.
func (d *fileDriver) pin(key string) *waitQueue {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queues[key]
	if q == nil {
		q = d.newQueue(key)
		d.queues[key] = q
	}
	q.pins++
	if q.pins == 1 {
		if i := slices.Index(d.idle, q); i >= 0 {
			d.idle = slices.Delete(d.idle, i, i+1)
		}
	}
	return q
}

func (d *fileDriver) newQueue(key string) *waitQueue {
	name := d.prefix + key
	quoted, _ := json.Marshal(name) // a string can always be
	return &waitQueue{key: key, name: name, quoted: quoted, base: d.store.baseOf(name), spare: noFile, watch: -1}
}

// unpin removes n pins.
func (d *fileDriver) unpin(q *waitQueue, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q.pins -= n
	if q.pins > 0 {
		return
	}
	if q.spare.fd < 0 {
		delete(d.queues, q.key)
		return
	}
	d.idle = append(d.idle, q)
	if len(d.idle) > idleQueues {
		oldest := d.idle[0]
		d.idle = slices.Delete(d.idle, 0, 1)
		delete(d.queues, oldest.key)
		closeFile(oldest.spare.fd)
	}
}

// enter returns the queue of a key, pinned and locked.
func (d *fileDriver) enter(key string) *waitQueue {
	q := d.pin(key)
	q.mu.Lock()
	return q
}

// leave ends what enter began. Each claim that the queue has gained meanwhile adds a pin, and each
// claim that it has lost removes one.
func (d *fileDriver) leave(q *waitQueue, gained int) {
	q.mu.Unlock()
	if gained != 1 {
		d.unpin(q, 1-gained)
	}
}

// close closes all files.
func (q *waitQueue) close() {
	for _, c := range slices.Concat(q.holders, q.waiting) {
		c.close()
	}
	if q.spare.fd >= 0 {
		closeFile(q.spare.fd)
	}
}

// find returns the claim with this ID, or nil.
func (q *waitQueue) find(id string) *claim {
	for _, c := range q.holders {
		if c.id == id {
			return c
		}
	}
	return q.waiters[id]
}

func (q *waitQueue) enqueue(c *claim) {
	c.phase = driver.Queued
	q.waiting = append(q.waiting, c)
	if q.waiters == nil {
		q.waiters = map[string]*claim{}
	}
	q.waiters[c.id] = c
}

func (q *waitQueue) dequeue(c *claim) {
	q.waiting = slices.DeleteFunc(q.waiting, func(w *claim) bool { return w == c })
	delete(q.waiters, c.id)
}

func (q *waitQueue) hold(c *claim) {
	c.phase = driver.Held
	q.holders = append(q.holders, c)
}

// forget removes a claim and frees its files. The caller holds the queue's mutex.
func (d *fileDriver) forget(c *claim) {
	q := c.queue
	if c.phase == driver.Held {
		q.holders = slices.DeleteFunc(q.holders, func(h *claim) bool { return h == c })
		d.free(c)
	} else {
		q.dequeue(c)
		c.unmark()
		c.close() // wakes the waiters that relied on this mark, to set their own
	}
	c.phase = driver.Gone
}

// free frees a lock and wakes its waiters. A waiter tries once more after it has set the first
// mark, so a waiter whose mark is not visible here need not be woken.
func (d *fileDriver) free(c *claim) {
	c.unlock()
	if c.mode == driver.Exclusive && !c.inherited && !c.isAwaited() {
		c.putBack()
		return
	}
	c.close()
	if !c.inherited {
		return
	}
	// The kernel reports a close only when the last descriptor is closed, and other processes have
	// descriptors. Opening and closing the file here wakes the waiters.
	if dir := d.dir.Load(); dir != nil {
		if fd, err := openFile(dir, c.queue.base+lockSuffix); err == nil {
			closeFile(fd)
		}
	}
}

// serve grants the lock to waiters in order, until one must wait. The caller holds the queue's
// mutex.
func (d *fileDriver) serve(ctx context.Context, q *waitQueue) error {
	for len(q.waiting) > 0 && !q.taken() {
		c := q.waiting[0]
		out, err := d.attempt(ctx, c, waiterTries)
		if out != granted || err != nil {
			d.rest(q)
			return err
		}
		q.dequeue(c)
		q.hold(c)
		d.Send(driver.Event{Key: q.key, ID: c.id, State: driver.State{Phase: driver.Held, Token: c.token}})
	}
	d.disarm(q)
	return nil
}
