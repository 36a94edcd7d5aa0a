package worker

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A hand is a goroutine of a worker, with keys of its own kind.
type hand int

const (
	slow    hand = iota // holds long enough for faults to strike a holder
	brisk               // for a while
	quick               // as briefly as it can
	quicker             // the same keys
	planned             // its locks end by plan
	steady              // on one master of a cluster
	mixed               // readers, permits and writers, where the backend has them
	several             // several keys with one call
)

// hands are those that this trial needs. What measures the time after a holder's death
// leaves out those that only cost time.
func (w *worker) hands() []hand {
	o := w.orders
	switch o.Mode {
	case schedule.Kills:
		return []hand{slow, brisk, quick}
	case schedule.Calm:
		return []hand{slow, brisk, quick, quicker}
	default:
	}
	all := []hand{slow, brisk, quick, quicker, planned, several}
	if o.Backend.Kind == "cluster" {
		all = append(all, steady)
	}
	if w.shared || w.permits {
		all = append(all, mixed)
	}
	return all
}

// A verb is a way to ask for a lock.
type verb string

const (
	acquire    verb = "acquire"
	tryAcquire verb = "try-acquire"
	lock       verb = "lock"
	tryLock    verb = "try-lock"
	do         verb = "do"
	acquireAll verb = "acquire-all"
	doAll      verb = "do-all"
)

// A task is one attempt to lock and work.
type task struct {
	attempt, key     string
	keys             []string // several, in place of one
	together         string   // the call, if this is the task of one of its keys
	verb             verb
	ttl, wait, hold  time.Duration
	minHold, maxHold time.Duration
	cancel           time.Duration // the caller leaves after this long
	extend           time.Duration // a lease that the holder asks for half-way
	margin           time.Duration // WithMargin
	hasWait, fixed   bool          // WithWait, WithoutRenewal
	async, ownLease  bool          // WithAsyncUnlock, WithOwnLease
	leave            bool          // left to its lease, and not released
	again            bool          // asks for the key once more, inside
	careless         bool          // does not look at its context before it writes, as a program that is stopped in between
	mode             driver.Mode
	limit            int
	anonymous        bool // without WithInfo
}

// epoch is how long a quick key is used. Its history stays short enough to be
// checked whole.
const epoch = 4 * time.Second

func (w *worker) draw(r *rand.Rand, h hand, n int) task {
	o := w.orders
	t := task{
		attempt: fmt.Sprintf("%s/%d/%d", o.Name, h, n), verb: acquire, ttl: o.TTL, wait: 3 * o.TTL,
		careless: o.Mode == schedule.Beyond && r.IntN(2) == 0, anonymous: o.Setup.Batch > 0 || r.IntN(2) == 0,
	}
	now := (mono.Now() - o.Started) / int64(epoch)
	switch h {
	case slow:
		t.key, t.wait = fmt.Sprintf("slow-%d", o.Position%2), 8*o.TTL
		t.hold = o.TTL + upTo(r, 3*o.TTL)
	case brisk:
		t.key = fmt.Sprintf("brisk-%d", r.IntN(2))
		t.hold = 20*time.Millisecond + upTo(r, 180*time.Millisecond)
	case planned:
		t.key = fmt.Sprintf("planned-%d", r.IntN(2))
		t.hold = upTo(r, o.TTL/2)
	case steady:
		t.key, t.wait = schedule.SteadyKey(Prefix, o.Position%schedule.Shards, now), o.TTL
		t.hold = upTo(r, 5*time.Millisecond)
		return t
	case mixed:
		t.key, t.anonymous = fmt.Sprintf("mixed-%d", now/2), true
		t.hold = upTo(r, 100*time.Millisecond)
		w.choose(r, &t)
	case several:
		w.chooseKeys(r, &t, now)
		t.shorten(r, h)
		return t
	default:
		t.key = fmt.Sprintf("quick-%d-%d", r.IntN(3), now)
		t.hold = upTo(r, 5*time.Millisecond)
		if r.IntN(2) == 0 {
			t.ttl = 5 * o.TTL // what is left of it by mistake is seen at the end
		}
	}
	if o.Mode != schedule.Calm && o.Mode != schedule.Kills {
		t.vary(r, h, o.TTL)
		t.ownLease = w.leases && !t.fixed && r.IntN(4) == 0
	}
	t.shorten(r, h)
	return t
}

func upTo(r *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(most)))
}

// vary chooses how the lock is asked for and what else happens to it. Locks on slow and
// brisk keys all have the same lease and are renewed, so that it can be judged how long
// they are free.
func (t *task) vary(r *rand.Rand, h hand, ttl time.Duration) {
	t.verb = []verb{acquire, acquire, lock, lock, do, do}[r.IntN(6)]
	t.async = r.IntN(4) == 0
	alone := h == slow || h == brisk || h == planned // no other hand of the process has this key
	t.again = alone && r.IntN(3) == 0
	if alone && r.IntN(4) == 0 {
		t.extend = ttl
	}
	if h == slow && r.IntN(8) == 0 {
		t.cancel = upTo(r, 2*ttl)
	}
	if h == mixed && t.verb == lock {
		t.verb = acquire // keyed locks of one Client exclude each other, whatever their mode
	}
	if h != planned {
		if h != slow && h != brisk && r.IntN(20) == 0 {
			t.minHold = 10*time.Millisecond + upTo(r, 50*time.Millisecond)
		}
		if h == mixed && r.IntN(10) == 0 { // long enough to be judged
			t.minHold = ttl/8 + upTo(r, ttl/4)
		}
		return
	}
	switch r.IntN(6) {
	case 0: // ends with its lease, now and then before its holder is done
		t.fixed, t.hold = true, ttl/4+upTo(r, ttl)
		if r.IntN(2) == 0 {
			t.margin = ttl/8 + upTo(r, ttl/4)
		}
	case 5: // outlives its holder, by what the extension has given it
		t.fixed, t.leave, t.extend, t.hold = true, true, ttl, upTo(r, ttl/8)
		if t.verb == do {
			t.verb = acquire
		}
	case 1: // the same, unless the one extension is answered
		t.fixed, t.hold, t.extend = true, ttl/2+upTo(r, ttl*3/2), 2*ttl
	case 2:
		t.maxHold, t.hold = ttl/4+upTo(r, ttl/4), upTo(r, ttl)
	case 3:
		t.minHold, t.hold = ttl/8+upTo(r, ttl/4), upTo(r, ttl/4)
	default:
		t.minHold, t.maxHold = ttl/8, ttl/4+upTo(r, ttl)
	}
}

// shorten makes some callers impatient: they have little time, or do not wait, or leave.
func (t *task) shorten(r *rand.Rand, h hand) {
	if h != quick && h != quicker && h != mixed && h != several {
		return
	}
	switch r.IntN(10) {
	case 0:
		t.wait, t.hasWait = 10*time.Millisecond+upTo(r, 50*time.Millisecond), true
	case 1:
		t.wait = 10*time.Millisecond + upTo(r, 50*time.Millisecond)
	case 2:
		t.cancel = upTo(r, 60*time.Millisecond)
	case 3:
		switch t.verb {
		case lock:
			t.verb = tryLock
		case acquire:
			t.verb = tryAcquire
		default:
			t.wait, t.hasWait = 0, true
		}
	}
}

// choose picks a mode of those that the backend has.
func (w *worker) choose(r *rand.Rand, t *task) {
	switch n := r.IntN(4); {
	case n < 2 && w.shared:
		t.mode = driver.Shared
	case n == 2 && w.permits:
		t.mode, t.limit = driver.Permit, 2
	}
}

// options are those of the call.
func (t task) options() []dlock.LockOption {
	opts := []dlock.LockOption{dlock.WithTTL(t.ttl)}
	if !t.anonymous {
		opts = append(opts, dlock.WithInfo(dlock.Info{Purpose: t.attempt}))
	}
	if t.hasWait {
		opts = append(opts, dlock.WithWait(t.wait))
	}
	if t.fixed {
		opts = append(opts, dlock.WithoutRenewal())
	}
	if t.margin > 0 {
		opts = append(opts, dlock.WithMargin(t.margin))
	}
	if t.async {
		opts = append(opts, dlock.WithAsyncUnlock())
	}
	if t.ownLease {
		opts = append(opts, dlock.WithOwnLease())
	}
	if t.minHold > 0 {
		opts = append(opts, dlock.WithMinHold(t.minHold))
	}
	if t.maxHold > 0 {
		opts = append(opts, dlock.WithMaxHold(t.maxHold))
	}
	switch t.mode {
	case driver.Shared:
		opts = append(opts, dlock.WithShared())
	case driver.Permit:
		opts = append(opts, dlock.WithPermits(t.limit))
	default:
	}
	return opts
}

func (t task) plan() *event.Plan {
	p := &event.Plan{Lease: int64(t.ttl), MinHold: int64(t.minHold), MaxHold: int64(t.maxHold), Fixed: t.fixed, Limit: t.limit, HasWait: t.hasWait, Wait: int64(t.wait), Together: t.together, Leave: t.leave, Async: t.async, Margin: int64(t.margin)}
	if t.mode != driver.Exclusive {
		p.Mode = t.mode.String()
	}
	return p
}

// patience is how long the call may take. One that does not wait still needs an answer.
func (t task) patience() time.Duration {
	switch {
	case t.cancel > 0:
		return t.cancel
	case t.wait == 0 || t.verb == tryLock || t.verb == tryAcquire:
		return t.ttl
	}
	return t.wait
}
