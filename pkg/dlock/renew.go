package dlock

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A flight is the renewal of all claims of one class that are due. Claims are
// of one class if their leases, and so the time that an attempt may take, are
// within a factor of two: that bounds the number of flights however many TTLs
// are in use, and no claim waits for the patience of a much longer one. At most
// one flight of a class is in the air; what comes due meanwhile waits for it to
// land.
type flight struct {
	airborne bool
	boarding []*claim
	failures int
}

func class(cl *claim) int { return bits.Len64(uint64(cl.patience())) }

// board puts a claim on the next flight of its class.
func (c *Client) board(cl *claim) {
	f := &c.flights[class(cl)]
	f.boarding = append(f.boarding, cl)
	cl.parked = true
	c.place(cl)
}

// renewNow makes a claim due at once. If a renewal is under way, it may have
// been answered before what we want to know of, and is repeated.
func (c *Client) renewNow(cl *claim) {
	cl.renewAt, cl.again = c.now(), cl.flying
	c.place(cl)
}

// renewable reports whether the engine may renew the claim unasked.
func (cl *claim) renewable() bool { return !cl.noRenew || cl.phase < held }

func (c *Client) launchAll() {
	if c.closed {
		return
	}
	for i := range c.flights {
		if f := &c.flights[i]; !f.airborne && len(f.boarding) > 0 {
			c.launch(f)
		}
	}
}

// launch sends the renewal of everything that has boarded and is not over.
func (c *Client) launch(f *flight) {
	batch := make([]*claim, 0, len(f.boarding))
	refs := make([]driver.Ref, 0, len(f.boarding))
	bound := maxTTL
	now := c.now()
	for _, cl := range f.boarding {
		cl.parked = false
		if cl.phase == ended {
			continue
		}
		cl.flying = true
		batch = append(batch, cl)
		ref := cl.renewalRef(now)
		refs = append(refs, ref)
		bound = min(bound, cl.patience())
		c.expectShorter(cl, ref.TTL, now)
		c.place(cl)
	}
	clear(f.boarding)
	f.boarding = f.boarding[:0]
	if len(batch) == 0 {
		return
	}
	f.airborne = true
	c.workers.Go(func() { c.fly(f, batch, refs, bound) })
}

func (c *Client) fly(f *flight, batch []*claim, refs []driver.Ref, bound time.Duration) {
	ctx, cancel := context.WithTimeout(c.closing, bound)
	s := c.sending(0)
	states, err := c.store.Renew(ctx, refs)
	if err != nil && ctx.Err() != nil && c.closing.Err() == nil && driver.ClassOf(err) == driver.Ambiguous {
		err = fmt.Errorf("no answer within %v", bound) // our bound, not that of whoever is told
	}
	cancel()
	c.land(f, batch, refs, states, err, s)
}

// land takes in what a flight brought back. Answers for claims that are over by
// now are dropped.
func (c *Client) land(f *flight, batch []*claim, refs []driver.Ref, states []driver.State, err error, s sent) {
	c.mu.Lock()
	defer c.unlock()
	f.airborne = false
	failed, now := 0, c.now()
	defer c.kickScheduler()
	for i, cl := range batch {
		cl.flying = false
		if cl.phase == ended {
			continue
		}
		st := driver.State{}
		if err == nil && i < len(states) {
			st = states[i]
		}
		if c.meters != nil && cl.phase >= held && cl.valid != never {
			c.measure(measurement{of: measuredSlack, value: cl.remaining(now)})
		}
		s.ttl = refs[i].TTL
		if st.Phase == driver.Unknown {
			failed++
			c.unanswered(cl, f, err, s)
			continue
		}
		c.renewed(cl, st, s, now)
		if cl.again && cl.phase != ended {
			c.renewNow(cl)
		}
	}
	c.measure(measurement{of: measuredRenewals, n: len(batch) - failed, label: resultOK})
	c.measure(measurement{of: measuredRenewals, n: failed, label: resultFailed})
	if failed == 0 {
		f.failures = 0
	} else {
		f.failures++
		c.logRenewFailed(failed, len(batch), err)
	}
}

// expectShorter is for a renewal that may cut the lease: from now on the backend may have
// the shorter one. How long the attempt takes says nothing of that: the machine may sleep
// meanwhile.
func (c *Client) expectShorter(cl *claim, ttl time.Duration, now int64) {
	if cl.valid == never || ttl >= cl.span {
		return
	}
	c.countSleep(cl)
	cl.valid = min(cl.valid, after(now, ttl-cl.marginOf(ttl)))
}

// renewed applies a definite answer.
func (c *Client) renewed(cl *claim, st driver.State, s sent, now int64) {
	cl.doubted = false // it was sent after that push
	stays := c.answered(cl, st, s, now)
	switch {
	case stays:
		if cl.wait != nil && cl.phase >= held && s.ttl == cl.ttl && s.at >= cl.wait.since {
			cl.wait.signal() // an Extend waits for this
			cl.wait = nil
		}
	case cl.phase == held:
		c.lose(cl, lossTaken, "the backend says that it is not ours")
	case cl.phase == lingering:
		c.finish(cl, nil)
		c.logMinHoldCut(cl)
	default:
		c.finish(cl, nil) // the place in the queue is lost
		if st.Phase == driver.Queued {
			c.settle(cl) // it has another one, of which its caller does not know
		}
	}
}

// unanswered is not a loss: the renewal is tried again until validity ends.
func (c *Client) unanswered(cl *claim, f *flight, err error, s sent) {
	c.mayArrive(cl, s)
	cl.failures++
	if cl.wait != nil {
		cl.wait.err = notCallers(cmp.Or(err, errNoAnswer))
		cl.wait.signal()
	}
	pause := c.pause(cl.id, f.failures)
	if left := cl.remaining(c.now()); cl.valid != never && (left > 0 || cl.phase == held) {
		// Sooner and sooner as the end comes near, be it of the hold or of the place in
		// the queue.
		pause = min(pause, max(left/4, 5*time.Millisecond))
	}
	cl.renewAt = max(c.now(), after(s.at, pause)) // an attempt that hung was pause enough
	c.place(cl)
}
