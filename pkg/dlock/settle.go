package dlock

import (
	"context"
	"errors"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// settling is the clean-up of claims that are over here and may not be at the
// backend: waiters that went away, attempts that were never answered, releases
// that failed. It never uses a caller's context, and it never gives up before
// the lease would have ended the claim anyway.
type settling struct {
	ready   []settlement // from first on
	first   int
	later   []settlement // failed, and to be tried again when their time has come
	workers int
	idle    chan struct{} // closed when nothing is under way, if Close waits for it
	refused int           // given up since the Client was closed
	cause   error         // why, of the last

	// handedOver is how many are known to unlock alone: contexts end first.
	handedOver int
}

type settlement struct {
	ref     driver.Ref
	tries   int
	notSoon int64 // no attempt before this
	giveUp  int64
	departs bool // later calls on the key wait for the first attempt
}

// settlers is how many settlements are tried at a time, settleBound how long an
// attempt may take, settlePause the longest pause between two attempts at one: an
// attempt that hangs when a fault is healed, a pause and the next attempt are less than
// a second together, so that what a healed network still holds of us is gone by then.
const (
	settlers    = 32
	settleBound = 600 * time.Millisecond
	settlePause = 200 * time.Millisecond
)

// settle hands a claim that is finished to clean-up. It runs under mu; unlock starts
// the work when it has ended the contexts of the claim's guards.
func (c *Client) settle(cl *claim) {
	c.endContexts(cl)
	c.settleRef(cl.ref())
}

// withdrawBound is how long a call may take to withdraw its claim from a local backend, which
// answers in microseconds.
const withdrawBound = 50 * time.Millisecond

// settleUnwanted is settle for a finished claim that no caller has got. On a local backend it
// is not handed to clean-up, but returned: withdraw it after unlock.
func (c *Client) settleUnwanted(cl *claim) *claim {
	if !c.caps.Remote {
		return cl
	}
	c.endContexts(cl)
	c.depart(cl.ref())
	return nil
}

// withdraw takes a claim from a local backend before the call returns that wanted it: the next
// holder to unlock would else grant the key to a waiter that has gone. What cannot be done at
// once is left to clean-up.
//
//nolint:contextcheck,nolintlint // the context of the caller is over; this is for the checks of all callers
func (c *Client) withdraw(cl *claim) {
	if cl == nil {
		return
	}
	ctx, cancel := context.WithTimeout(c.cleanup, withdrawBound)
	defer cancel()
	_, err := c.store.Release(ctx, cl.ref())
	if err == nil {
		return
	}
	c.mu.Lock()
	c.settle(cl)
	c.unlock()
}

// endContexts has the contexts of a claim's guards end in this unlock, before clean-up
// learns of the claim: another goroutine may have been about to end them for long.
func (c *Client) endContexts(cl *claim) {
	guards := []*Guard{cl.guard}
	if cl.handoff != nil {
		guards = append(guards, cl.handoff.former)
	}
	for _, g := range guards {
		if g != nil && !g.holds() && g.own != nil && g.own.cancel != nil {
			c.endings = append(c.endings, ending{g.own.cancel, g.own.cause})
		}
	}
}

func (c *Client) settleRef(r driver.Ref) {
	c.cleanups = append(c.cleanups, settlement{ref: r, giveUp: after(c.now(), driver.BarFor(r.TTL))})
}

// add takes what unlock hands over.
func (q *settling) add(s []settlement) {
	q.handedOver -= len(s)
	q.ready = append(q.ready, s...)
}

// hireSettlers returns how many more workers there should be, and counts them.
func (c *Client) hireSettlers() int {
	q := &c.settling
	n := min(q.count(), settlers) - q.workers
	if n <= 0 || c.cleanup.Err() != nil {
		return 0
	}
	if q.workers > 0 {
		n = min(n, len(q.ready)-q.first) // one worker is enough to wait for what is later
	}
	q.workers += n
	return n
}

func (q *settling) count() int { return len(q.ready) - q.first + len(q.later) }

func (q *settling) busy() bool { return q.workers > 0 || q.handedOver > 0 }

// settleSome settles until nothing is pending. The last worker also waits for
// what is to be tried again.
func (c *Client) settleSome() {
	for {
		c.mu.Lock()
		s, wait, ok := c.settling.next(c.now())
		if !ok || c.cleanup.Err() != nil {
			if ok && wait == 0 {
				c.settling.ready = append(c.settling.ready, s)
			}
			c.leaveSettling()
			c.unlock()
			return
		}
		c.unlock()
		if wait == 0 {
			c.settleOne(s)
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-c.cleanup.Done():
		}
		t.Stop()
	}
}

func (c *Client) leaveSettling() {
	q := &c.settling
	q.workers--
	q.signalIdle()
}

// signalIdle lets Close go on if nothing is under way.
func (q *settling) signalIdle() {
	if !q.busy() && q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
}

// next takes the first settlement whose time has come, or says how long there
// is none. A worker that would have to wait leaves if it is not the last.
func (q *settling) next(now int64) (s settlement, wait time.Duration, ok bool) {
	if q.first == len(q.ready) {
		wait = q.refill(now)
	}
	if q.first < len(q.ready) {
		s, q.ready[q.first] = q.ready[q.first], settlement{}
		q.first++
		return s, 0, true
	}
	return settlement{}, wait, len(q.later) > 0 && q.workers == 1
}

// refill makes ready what was for later and is due, and returns when the next
// is, rounded so that many of them are looked at together.
func (q *settling) refill(now int64) time.Duration {
	q.ready, q.first = q.ready[:0], 0
	if len(q.later) == 0 {
		q.ready, q.later = nil, nil
		return 0
	}
	kept, soonest := q.later[:0], int64(never)
	for _, s := range q.later {
		if s.notSoon <= now {
			q.ready = append(q.ready, s)
			continue
		}
		kept, soonest = append(kept, s), min(soonest, s.notSoon)
	}
	q.later = kept
	return max(time.Duration(soonest-now), 10*time.Millisecond)
}

func (c *Client) settleOne(s settlement) {
	ctx, cancel := context.WithTimeout(c.cleanup, min(settleBound, time.Duration(c.closeBy.Load()-c.now())))
	_, err := c.store.Release(ctx, s.ref)
	for errors.Is(err, driver.ErrHasty) {
		_, err = c.store.Release(ctx, s.ref)
	}
	cancel()
	if err == nil && !s.departs {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	c.departed(&s)
	if err == nil {
		return
	}
	now := c.now()
	if driver.ClassOf(err) == driver.Fatal || now >= s.giveUp {
		c.logGaveUp(s.ref.Key, err)
		if c.closed {
			c.settling.refused++
			c.settling.cause = err
		}
		return
	}
	s.notSoon = after(now, min(c.pause(s.ref.ID, s.tries), settlePause))
	s.tries++
	c.settling.later = append(c.settling.later, s)
}

// settleAll waits until everything is settled or clean-up is told to give up. It returns how
// much is left, and why if the backend has refused it.
func (c *Client) settleAll() (int, error) {
	c.mu.Lock()
	idle := make(chan struct{})
	if !c.settling.busy() {
		close(idle)
	} else {
		c.settling.idle = idle
	}
	c.unlock()
	<-idle
	c.mu.Lock()
	defer c.unlock()
	return c.settling.count() + c.settling.refused, c.settling.cause
}
