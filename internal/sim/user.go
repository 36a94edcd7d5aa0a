package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// An Observer learns what a User does and what it was told.
type Observer interface {
	Now() time.Duration
	Asks(*Request)
	Refused(*Request, error)
	Enters(*Hold) // a lock is held from now on
	Leaves(*Hold) // its user is about to unlock, or was told that it is lost
	Unlocked(*Hold, error)
}

// A User calls the Client of its process at random, one thing after another.
type User struct {
	Name     string
	Rand     *rand.Rand
	Config   dlock.Config         // of its Client
	Modes    []driver.Mode        // that the backend knows
	Client   func() *dlock.Client // of its process now
	Restart  func() error         // closes the Client and opens another
	Evict    func(key string)     // takes a lock from whoever holds it
	Key      func(mixed bool) string
	Observer Observer

	// Extra decides what was added to the calls since; nil: nothing. What a seed has drawn
	// before stays as it was.
	Extra *rand.Rand
	// Eager users may extend a lock as soon as they have it; Steady ones extend it only by the
	// TTL that it has.
	Eager, Steady bool
	// Handoffs makes users do nothing but hold a lock briefly, or extend it and hold it long.
	Handoffs bool
	// Async makes users not wait for some of their unlocks.
	Async bool
	// Brief users ask for least holds and often unlock before these are over, or evict a lock
	// just before they unlock it, or restart their Client while it acquires, as Least decides.
	Brief bool
	Least *rand.Rand
	// Several decides when a user locks all keys together, nil: never, and Withdraws is called for the other keys if
	// it does not get one of them.
	Several   *rand.Rand
	Withdraws func(*Request)
	// Rest decides when a user asks for a margin, asks for the holder of a key, leaves a lock to its lease, or extends several
	// locks together; nil: never. Holder and Left are called with the answers. One that has it also extends a lock again after
	// a shorter Extend without an answer, and calls ExtendedAgain with what is left then.
	Rest   *rand.Rand
	Holder func(limit context.Context, c *dlock.Client, key string, begun time.Duration, holder dlock.Claim, held bool, err error)
	Left   func(h *Hold, err error)

	ExtendedAgain func(h *Hold, shorter, took, left time.Duration)
	// Wrong is called for a promise that was not kept.
	Wrong func(kind, format string, args ...any)
	// Extended is called for an Extend: whether the lock was lost before, the context of the call,
	// and how long that was to last. Ended is called for another call that says that a lock is over.
	// UnlocksForOther is called when a user is about to unlock what another one has locked and lost.
	Extended        func(limit context.Context, h *Hold, lost bool, long time.Duration, err error)
	Ended           func(h *Hold, call string, err error)
	UnlocksForOther func(c *dlock.Client, key string)

	step     int
	restarts sync.WaitGroup
}

// A Hold is what a user was told it has.
type Hold struct {
	*Request
	Client     string
	Token      int64
	Context    context.Context
	Inside     *Hold // the lock that it is part of
	guard      interface{ Remaining() time.Duration }
	own        context.Context // of the Guard: ends with the lock, and not with the call
	entered    time.Duration
	leftAt     time.Duration
	validUntil time.Duration // as of leftAt
	endedAt    atomic.Int64  // when own did; 0: it has not
	asked      bool          // its user has called Extend
	over       bool          // its user has said so
	done       bool          // its unlock has returned
	dawdled    bool          // its user has taken its time to unlock
	wasLeft    bool          // its user has called Leave
}

func (u *User) chance(percent int) bool { return u.Rand.IntN(100) < percent }

func (u *User) upTo(d time.Duration) time.Duration { return time.Duration(u.Rand.Int64N(int64(d))) }

// shared is the purpose of calls that share a claim.
const shared = "of no user"

// Run makes some calls, or fewer if ctx ends.
func (u *User) Run(ctx context.Context, calls int) {
	defer u.restarts.Wait()
	for u.step = 0; u.step < calls && ctx.Err() == nil; u.step++ {
		if u.Handoffs {
			u.handOver(u.Client())
			continue
		}
		u.pause(u.upTo(2 * time.Second))
		c := u.Client()
		if u.Rest != nil && u.Rest.IntN(4) == 0 {
			u.askHolder(c)
		}
		if u.Several != nil && u.Several.IntN(3) == 0 {
			u.several(c)
			continue
		}
		switch n := u.Rand.IntN(20); {
		case n < 7:
			u.guard(c, n == 0)
		case n < 12:
			u.keyed(c, n == 7)
		case n < 18:
			u.do(c)
		case n == 18 && u.chance(30):
			_ = u.Restart() // Close reports what it could not clean up
		case n == 19:
			u.Evict(u.Key(u.chance(30)))
		}
	}
}

// pause waits, whatever ends meanwhile.
func (u *User) pause(d time.Duration) { pause(d + time.Duration(1+u.Rand.IntN(1000))) }

func (u *User) hold(held context.Context, g *dlock.Guard, q *Request, inside *Hold) *Hold {
	h := &Hold{
		Request: q, Client: fmt.Sprintf("%p", q.client), Token: g.Token(), Context: held, Inside: inside, guard: g, own: g.Context(), entered: u.Observer.Now(),
	}
	context.AfterFunc(h.own, func() { h.endedAt.Store(int64(u.Observer.Now())) })
	u.Observer.Enters(h)
	return h
}

// handOver holds briefly, so that the next user of the process has the lock while a renewal is
// under way, or extends and holds for long.
func (u *User) handOver(c *dlock.Client) {
	u.pause(u.upTo(20 * time.Millisecond)) // so that no two users call at one instant
	q := &Request{client: c, verb: verbAcquire, User: u.Name, Key: u.Key(false), Purpose: shared, TTL: u.Config.DefaultTTL, Keeps: true, Patience: context.Background()}
	q.Asked = u.Observer.Now()
	u.Observer.Asks(q)
	g, err := c.Acquire(q.Patience, q.Key, dlock.WithTTL(q.TTL))
	if err != nil {
		u.Observer.Refused(q, err)
		return
	}
	h := u.hold(g.Context(), g, q, nil)
	if u.chance(20) {
		u.extend(h, g, time.Minute)
		u.stay(h.Context, u.upTo(20*time.Second))
	} else {
		u.stay(h.Context, u.upTo(300*time.Millisecond))
	}
	u.leave(h, func() error { return g.Unlock(q.Patience) })
}

// guard acquires, works and unlocks.
func (u *User) guard(c *dlock.Client, try bool) {
	q, seek := u.request(c, verbAcquire), c.Acquire
	if try {
		q.verb, seek, q.Wait = verbTryAcquire, c.TryAcquire, 0
	}
	defer u.patience(q)()
	g, err := seek(q.Patience, q.Key, q.opts...)
	if err != nil {
		u.Observer.Refused(q, err)
		return
	}
	h := u.hold(g.Context(), g, q, nil)
	u.work(h, g)
	if u.Rest != nil && q.Fixed && u.Rest.IntN(2) == 0 {
		u.leaveToLease(h, g)
		return
	}
	u.leave(h, func() error { return g.Unlock(q.Patience) })
}

// keyed locks and unlocks by key, and inside once more.
func (u *User) keyed(c *dlock.Client, try bool) {
	q := u.request(c, verbLock)
	if try {
		q.verb, q.Wait = verbTryLock, 0
	}
	defer u.patience(q)()
	owner := dlock.OwnerContext(q.Patience)
	if err := lockKey(owner, c, q, try); err != nil {
		u.Observer.Refused(q, err)
		if errors.Is(err, dlock.ErrOwnershipLost) {
			u.unlockForOther(c, q.Key)
		}
		return
	}
	g, ok := c.Held(q.Key)
	if !ok {
		u.Observer.Refused(q, nil)
		_ = c.Unlock(context.Background(), q.Key)
		return
	}
	h := u.hold(g.Context(), g, q, nil)
	if u.Config.EnableReentrant && u.chance(50) {
		u.tryAgain(owner, c, h)
	}
	if u.extra(30) {
		u.doAsOwner(owner, c, h)
	}
	u.work(h, g)
	u.leave(h, func() error { return c.Unlock(q.Patience, q.Key) })
}

func lockKey(ctx context.Context, c *dlock.Client, q *Request, try bool) error {
	if !try {
		return c.Lock(ctx, q.Key, q.opts...)
	}
	held, err := c.TryLock(ctx, q.Key, q.opts...)
	if err == nil && !held {
		return dlock.ErrLockHeldByOther
	}
	return err
}

// do runs a function under a lock, and inside another, which may ask for more.
func (u *User) do(c *dlock.Client) {
	q := u.request(c, verbDo)
	defer u.patience(q)()
	var h *Hold
	err := c.Do(q.Patience, q.Key, func(inner context.Context) error {
		g, ok := dlock.FromContext(inner)
		if !ok {
			return errors.New("no Guard in the context")
		}
		h = u.hold(inner, g, q, nil)
		if u.Config.EnableReentrant && u.chance(50) {
			u.doInside(inner, g, h)
			u.askForMore(inner, c, h)
		}
		u.work(h, g)
		u.Observer.Leaves(h)
		return nil
	}, q.opts...)
	if h == nil {
		u.Observer.Refused(q, err)
		return
	}
	u.Observer.Unlocked(h, err)
}

// stay waits until a time has passed or the lock is lost.
func (u *User) stay(held context.Context, d time.Duration) {
	timer := time.NewTimer(d + time.Duration(1+u.Rand.IntN(1000)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-held.Done():
	}
}

// work is what a holder does: time passes, and it may extend.
func (u *User) work(h *Hold, g *dlock.Guard) {
	if u.leavesEarly(h) {
		return
	}
	if u.Eager && u.extra(30) { // what was sent for its predecessor may still be under way
		u.extend(h, g, time.Minute)
	}
	for range 1 + u.Rand.IntN(2) {
		u.stay(h.Context, u.upTo(h.TTL))
		if u.chance(25) {
			u.extend(h, g, time.Duration(1+u.Rand.IntN(60))*time.Second)
		}
	}
	if h.Keeps && h.Context.Err() == nil {
		u.stay(h.Context, u.upTo(time.Second))
	}
	u.renewLast(h, g)
}

func (u *User) leave(h *Hold, unlock func() error) {
	if u.Brief && u.Least.IntN(100) < 10 {
		u.Evict(h.Key) // just before its holder, most likely this user, unlocks it
	}
	u.Observer.Leaves(h)
	if h.MaxHold > 0 && h.Context.Err() != nil && u.extra(50) {
		h.dawdled = true
		u.pause(dawdle) // the key must not wait for that
	}
	u.Observer.Unlocked(h, unlock())
}
