package filelock

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A line is the claims of this driver on one key. They come one after the other, so
// that a process does not compete with itself.
type line struct {
	key    string
	name   string // with the prefix
	quoted []byte // the same as JSON
	base   string // its files begin with this

	// Under fileDriver.mu.
	pins  int       // claims, and calls that are under way
	due   time.Time // when an armed line is tried again
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

// A claim is one that this driver has filed. It belongs to the mutex of its line.
type claim struct {
	line    *line
	id      string
	mode    driver.Mode
	limit   int
	fences  int
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

func newClaim(l *line, r *driver.Request) *claim {
	return &claim{
		line: l, id: r.ID, mode: r.Mode, limit: r.Limit, fences: r.Fences, wait: r.Wait, info: r.Info,
		arrived: time.Now().UnixMicro(), main: noFile, slot: -1,
	}
}

// state is what is known of a claim.
func (c *claim) state() driver.State {
	switch c.phase {
	case driver.Held:
		return driver.State{Phase: driver.Held, Token: c.token}
	case driver.Queued:
		return driver.State{Phase: driver.Queued, Ahead: 1 + slices.Index(c.line.waiting, c)}
	default:
		return driver.State{Phase: driver.Gone}
	}
}

// unlock gives the lock up and keeps the lock file open.
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

// close closes the files, which tells waiters to look. A lock goes with the last
// descriptor of it.
func (c *claim) close() {
	if c.slot >= 0 {
		closeFile(c.slot)
	}
	if c.main.fd >= 0 {
		closeFile(c.main.fd)
	}
	c.slot, c.main = -1, noFile
}

// putBack leaves the lock file open for the next claim of this driver, and tells
// nobody.
func (c *claim) putBack() {
	if c.line.spare.fd < 0 {
		c.line.spare, c.main = c.main, noFile
	}
	c.close()
}

// taken reports whether a claim of this driver has the lock for itself.
func (l *line) taken() bool { return len(l.holders) > 0 && l.holders[0].mode == driver.Exclusive }

// idleLines is how many lines without claims keep their files open.
const idleLines = 16

// pin returns the line of a key, which stays until unpin.
func (d *fileDriver) pin(key string) *line {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lines[key]
	if l == nil {
		l = d.newLine(key)
		d.lines[key] = l
	}
	if l.pins++; l.pins == 1 {
		if i := slices.Index(d.idle, l); i >= 0 {
			d.idle = slices.Delete(d.idle, i, i+1)
		}
	}
	return l
}

func (d *fileDriver) newLine(key string) *line {
	name := d.prefix + key
	quoted, _ := json.Marshal(name) // a string can always be
	return &line{key: key, name: name, quoted: quoted, base: baseOf(name), spare: noFile, watch: -1}
}

// unpin takes back n pins.
func (d *fileDriver) unpin(l *line, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.pins -= n; l.pins > 0 {
		return
	}
	if l.spare.fd < 0 {
		delete(d.lines, l.key)
		return
	}
	if d.idle = append(d.idle, l); len(d.idle) > idleLines {
		oldest := d.idle[0]
		d.idle = slices.Delete(d.idle, 0, 1)
		delete(d.lines, oldest.key)
		closeFile(oldest.spare.fd)
	}
}

// enter returns the line of a key, pinned and locked.
func (d *fileDriver) enter(key string) *line {
	l := d.pin(key)
	l.mu.Lock()
	return l
}

// leave ends what enter began. Every claim that the line has gained meanwhile pins it,
// and every one that it has lost does not any more.
func (d *fileDriver) leave(l *line, gained int) {
	l.mu.Unlock()
	if gained != 1 {
		d.unpin(l, 1-gained)
	}
}

// close closes all files.
func (l *line) close() {
	for _, c := range slices.Concat(l.holders, l.waiting) {
		c.close()
	}
	if l.spare.fd >= 0 {
		closeFile(l.spare.fd)
	}
}

// find returns the claim of an ID, or nil.
func (l *line) find(id string) *claim {
	for _, c := range l.holders {
		if c.id == id {
			return c
		}
	}
	return l.waiters[id]
}

func (l *line) enqueue(c *claim) {
	c.phase = driver.Queued
	l.waiting = append(l.waiting, c)
	if l.waiters == nil {
		l.waiters = map[string]*claim{}
	}
	l.waiters[c.id] = c
}

func (l *line) dequeue(c *claim) {
	l.waiting = slices.DeleteFunc(l.waiting, func(w *claim) bool { return w == c })
	delete(l.waiters, c.id)
}

func (l *line) hold(c *claim) {
	c.phase = driver.Held
	l.holders = append(l.holders, c)
}

// forget removes a claim and frees what it has. It runs under the line's mutex.
func (d *fileDriver) forget(c *claim) {
	l := c.line
	if c.phase == driver.Held {
		l.holders = slices.DeleteFunc(l.holders, func(h *claim) bool { return h == c })
		d.giveBack(c)
	} else {
		l.dequeue(c)
		c.unmark()
		c.close() // wakes those who relied on this mark, to set their own
	}
	c.phase = driver.Gone
}

// giveBack frees a lock, and wakes those who wait for it. A waiter tries once more after
// it has set the first mark, so one whose mark is not seen here needs no waking.
func (d *fileDriver) giveBack(c *claim) {
	c.unlock()
	if c.mode == driver.Exclusive && !c.inherited && !c.isAwaited() {
		c.putBack()
		return
	}
	c.close()
	if !c.inherited {
		return
	}
	// The kernel tells of a close when the last descriptor is closed, and other processes
	// have some. A file that we open and close ourselves wakes the waiters.
	if dir := d.dir.Load(); dir != nil {
		if fd, err := openFile(dir, c.line.base+lockSuffix); err == nil {
			closeFile(fd)
		}
	}
}

// serve grants to those who wait, in their order, until one has to wait on. It runs
// under the line's mutex.
func (d *fileDriver) serve(ctx context.Context, l *line) error {
	for len(l.waiting) > 0 && !l.taken() {
		c := l.waiting[0]
		out, err := d.attempt(ctx, c, waiterTries)
		if out != granted || err != nil {
			d.rest(l)
			return err
		}
		l.dequeue(c)
		l.hold(c)
		d.Send(driver.Event{Key: l.key, ID: c.id, State: driver.State{Phase: driver.Held, Token: c.token}})
	}
	d.disarm(l)
	return nil
}
