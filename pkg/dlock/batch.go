package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/hide"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// A batch is one call to the backend that submits a claim on each of several keys. Each claim is registered,
// answered and cleaned up as if it had been submitted alone.
type batch struct {
	acquisition // of all claims: they have the same settings
	parts       []batchPart
	requests    []driver.Request
	refused     bool // by the backend, as a whole
}

// A batchPart is the part of one key.
type batchPart struct {
	key    string
	info   driver.Info
	guard  *Guard          // nil if the lock was not acquired
	open   bool            // the claim is registered, and its outcome is not recorded
	doubt  bool            // the claim may be stored although the lock was not acquired
	traced context.Context // of its span
	span   trace.Span
	err    error // why it was not acquired
	alone  bool  // it was not tried: it is counted when it is acquired alone
}

// canBatch reports whether the backend can submit the claims on all keys in one call.
func (a *allAcquisition) canBatch() bool {
	c, s := a.wants[0].client, &a.wants[0].settings
	if len(a.wants) == 1 || a.inOrder || c.batcher == nil || s.mode != driver.Exclusive || s.ownLease {
		return false
	}
	keys := make([]string, len(a.wants))
	for i := range a.wants {
		keys[i] = a.wants[i].key
	}
	return c.batcher.CanBatch(keys)
}

// tryBatch submits claims on all keys in one call, and keeps the locks that are granted at once. Like a single claim,
// the batch is sent with the same IDs until it is answered. The caller acquires the other keys alone, unless there
// is an error. It reports whether the backend refused the call as a whole.
func (a *allAcquisition) tryBatch(ctx context.Context) (refused bool, err error) {
	c, s := a.wants[0].client, a.wants[0].settings
	s.waitUntil(a.deadline)
	started, observed := c.now(), !c.unobserved()
	b := batch{acquisition: acquisition{client: c, settings: s, deadline: c.waitDeadline(&s)}, parts: make([]batchPart, len(a.wants))}
	for i := range b.parts {
		p := &b.parts[i]
		p.key, p.info, p.traced = a.wants[i].key, s.info, ctx
	}
	if observed {
		each(len(b.parts), func(i int) {
			p, own := &b.parts[i], s
			p.traced, p.span = c.traceAcquire(ctx, p.key, &own)
			p.info = own.info
		})
	}
	defer func() { // also if a hook of the backend's client or the caller's context panicked
		for i := range b.parts {
			a.guards[i], a.wants[i].doubt = b.parts[i].guard.withValues(ctx), b.parts[i].doubt
		}
	}()
	err = b.run(ctx)
	if observed {
		b.report(ctx, started)
	}
	if err != nil {
		return false, fail(a.op, a.wants[0].key, err)
	}
	return b.refused, nil
}

// run submits the claims. An error means that the whole call has failed.
func (b *batch) run(ctx context.Context) (err error) {
	c := b.client
	defer func() {
		for i := range b.parts {
			if p := &b.parts[i]; err != nil && p.err == nil {
				p.err = err
			}
		}
	}()
	if ctx.Err() != nil {
		return ctxError(ctx)
	}
	if err := c.beginCall(); err != nil {
		return err
	}
	defer c.endCall()
	keys := make([]string, len(b.parts))
	for i := range b.parts {
		keys[i] = b.parts[i].key
	}
	if err := c.awaitAbandoned(ctx, b.settings.wait, keys...); err != nil {
		return err
	}
	b.started = c.now()
	defer func() { // a hook of the backend's client or the caller's context panicked
		for i := range b.parts {
			if p := &b.parts[i]; p.open {
				b.panicked(p.guard.claim)
				p.guard = nil
			}
		}
	}()
	b.register()
	states, call, err := b.submit(ctx)
	if err != nil {
		return b.failed(err)
	}
	return b.record(ctx, states, call)
}

// register adds the claims before they are submitted.
func (b *batch) register() {
	b.requests = make([]driver.Request, len(b.parts))
	for i := range b.parts {
		p := &b.parts[i]
		p.guard, p.open = b.acquisition.register(p.key), true
		b.requests[i] = b.request(p.guard.claim)
		b.requests[i].Wait, b.requests[i].Info = false, p.info
	}
}

// submit sends the claims until they are answered.
func (b *batch) submit(ctx context.Context) ([]driver.State, sent, error) {
	for {
		states, call, err := b.send(ctx)
		if err == nil {
			return states, call, nil
		}
		class := driver.ClassOf(err)
		for i := range b.parts {
			b.handleError(b.parts[i].guard.claim, call, err, class)
		}
		switch {
		case class == driver.Fatal:
			return nil, call, err
		case errors.Is(err, sharedtimeout.ErrAttemptTimeout):
			continue
		case ctx.Err() == nil:
			b.client.logRetry(b.parts[0].key, b.failures+1, err)
		}
		if err := b.backOff(ctx, err); err != nil {
			return nil, call, err
		}
	}
}

// send makes one attempt.
func (b *batch) send(ctx context.Context) ([]driver.State, sent, error) {
	cctx, timeout, cancel := b.callContext(ctx)
	defer cancel()
	call := b.beginSend()
	states, err := b.client.batcher.AcquireBatch(cctx, b.requests)
	if err == nil && len(states) != len(b.requests) {
		err = errNoAnswer
	}
	for i := range states {
		if err == nil && states[i].Phase == driver.Unknown {
			err = errNoAnswer
		}
	}
	return states, call, b.sendError(ctx, cctx, timeout, err)
}

// failed ends the claims of a call that was not answered, or that the backend refuses. It returns no error if nothing
// is stored and trying again is useless: the keys are then acquired alone, and those calls find out why.
func (b *batch) failed(err error) error {
	outcome := b.outcome(b.parts[0].guard.claim, err)
	useless := driver.ClassOf(err) == driver.Fatal && !b.parts[0].guard.claim.unanswered
	b.abandonAll(outcome)
	if !useless {
		return outcome
	}
	for i := range b.parts {
		b.parts[i].err, b.parts[i].alone = nil, true
	}
	b.refused = true
	return nil
}

func (b *batch) abandonAll(err error) {
	for i := range b.parts {
		p := &b.parts[i]
		p.open = false
		p.err = b.abandon(p.guard.claim, err)
		p.guard = nil
	}
}

// record records the answers. The claims that were not granted end.
func (b *batch) record(ctx context.Context, states []driver.State, call sent) error {
	c := b.client
	c.answers.Add(1)
	c.mu.Lock()
	now, refused := c.now(), []*batchPart(nil)
	for i := range b.parts {
		p := &b.parts[i]
		cl := p.guard.claim
		stored := c.recordAnswer(cl, states[i], call, now)
		if c.closed || cl.phase != granted || !c.accept(cl, now) {
			p.doubt = stored || cl.unanswered
			refused = append(refused, p)
		}
	}
	closed := c.closed
	c.unlockCall()
	switch {
	case closed:
		b.abandonAll(ErrClosed)
		return ErrClosed
	case ctx.Err() != nil: // it ended before the answer arrived
		b.abandonAll(ctxError(ctx))
		return ctxError(ctx)
	}
	for i := range b.parts {
		b.parts[i].open = false
	}
	b.takeBack(refused)
	return nil
}

// errBehindTaken is the error of a key that was not tried because the key before it is taken.
var errBehindTaken = fmt.Errorf("%w: not tried, because a smaller key is taken", ErrLockHeldByOther)

// takeBack ends claims that were not granted. One that may be stored is released before its key is asked for again:
// it must not look like the claim of another caller.
func (b *batch) takeBack(refused []*batchPart) {
	c := b.client
	var doubtful []*batchPart
	c.mu.Lock()
	for i, p := range refused {
		p.err, p.alone = errBehindTaken, true
		if i == 0 {
			p.err, p.alone = ErrLockHeldByOther, false
		}
		if p.guard.claim.phase != ended {
			c.finish(p.guard.claim, nil)
		}
		if p.doubt {
			doubtful = append(doubtful, p)
		} else {
			p.guard = nil
		}
	}
	c.unlock()
	each(len(doubtful), func(i int) {
		p := doubtful[i]
		p.doubt, p.guard = !c.releaseNow(p.guard.claim, b.deadline), nil
	})
}

// releaseNow releases a finished claim, and reports whether that was confirmed. If not, cleanup takes over.
//
//nolint:contextcheck,nolintlint // the release must not end with the caller's context
func (c *Client) releaseNow(cl *claim, deadline int64) bool {
	timeout := abandonedTimeout
	if deadline != never {
		timeout = min(timeout, time.Duration(deadline-c.now())/4)
	}
	ctx, cancel := context.WithTimeout(c.cleanup, timeout)
	defer cancel()
	err := c.releaseRef(ctx, cl.ref())
	if err == nil {
		return true
	}
	c.mu.Lock()
	c.endContexts(cl)
	c.cleanUpAbandoned(cl.ref())
	c.unlock()
	return false
}

// unsure returns the error of a key whose claim in a batch may still be stored: it is then unknown whether it is
// another claim that holds the key.
func (w *want) unsure(err error) error {
	if !w.doubt || !errors.Is(err, ErrLockHeldByOther) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, mayBeStored(hide.From(err, ErrLockHeldByOther)))
}

// report reports each key as if it had been tried alone. A key that was not tried is not counted.
func (b *batch) report(ctx context.Context, started int64) {
	c := b.client
	each(len(b.parts), func(i int) { // a slow logger or tracer delays all of them once: the locks are held
		p := &b.parts[i]
		if p.guard != nil {
			c.logAcquired(p.guard, started)
		}
		if !p.alone {
			c.measureAcquire(p.traced, started, p.err) //nolint:contextcheck // a child of ctx
		}
		c.endAcquire(ctx, p.span, p.guard, p.err)
	})
	c.reporter.deliver()
}
