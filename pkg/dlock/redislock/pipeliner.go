package redislock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// A pipeliner sends calls to one master. A call is sent at once, with delayed releases if there are any,
// while fewer than maxInFlight round trips are in flight. Otherwise it becomes pending, and the first batch that
// returns sends pending calls, up to maxBatch, in one pipeline. Calls that follow a shared batch are collected
// too. So a single call never waits, and many calls share round trips and system calls.
//
// A cluster has one pipeliner per master, so a master that stalls or is far away does not delay the
// others.
//
// go-redis honors deadlines only if it is configured to, and it never honors cancellation. So a
// call that can be cancelled is made in another goroutine while its own goroutine waits for the
// answer or the end of the context. The same applies to every call if go-redis does not honor
// deadlines. The extra goroutine is the largest cost in a client. If the master has recently been
// fast, the call is therefore made inline, in its own goroutine, with a short attempt timeout. If
// it has not returned by then, it is abandoned and made again in another goroutine.
type pipeliner struct {
	driver *redisDriver

	timeouts sharedtimeout.Contexts
	stalled  atomic.Bool // a long round trip had no answer, and no later one was answered

	mu       sync.Mutex
	inFlight int
	full     int  // of them, those with maxBatch calls
	quick    int  // quick round trips in a row, up to quickTrips
	batching bool // the last round trip had several calls, so the next calls are collected too
	pending  []*pendingCall
	left     int       // of the pending calls, those whose callers have left
	used     time.Time // when the last round trip ended

	delayed    []*pendingCall // to be sent with the next call, before it
	delayTimer *time.Timer    // sends them without one
}

// A callMode says whether a call may be made inline, and then end early with
// sharedtimeout.ErrAttemptTimeout.
type callMode bool

const (
	mayInline callMode = true
	notInline callMode = false
)

// attemptTimeout is how long an inline call may outlast its context; it may be up to a quarter
// shorter. A round trip is quick if it takes far less than that, and a master is quick
// after quickTrips quick round trips in a row.
const (
	attemptTimeout = 25 * time.Millisecond
	quickTrip      = attemptTimeout / 8
	quickTrips     = 8
)

// A pendingCall is a call that waits to be sent in a batch.
type pendingCall struct {
	cmd       *command
	until     time.Time // zero: no limit of its own
	done      chan struct{}
	answer    func(error) // called instead of closing done, if the caller does not wait
	taken     bool        // it is not pending any more; under pipeliner.mu
	abandoned bool        // its caller has left; under pipeliner.mu
	panicked  any         // what a hook of the client panicked with; set before done is closed
}

// end tells who waits for a call that it has ended.
func (c *pendingCall) end(err error) {
	if c.answer != nil {
		c.answer(err)
		return
	}
	close(c.done)
}

// maxInFlight is how many round trips to a master are in flight at a time. maxBatch is how many
// calls share one, and maxFull how many with so many calls are in flight: more would wait at the server until
// their time is over, and be sent again.
const (
	maxInFlight = 6
	maxBatch    = 128
	maxFull     = 2
)

// congested reports whether the pending calls wait for another batch to return. The caller holds mu.
func (p *pipeliner) congested() bool { return p.full >= maxFull && len(p.pending)-p.left >= maxBatch }

// tripTimeout is the longest that a round trip may take, and so the longest that Close waits for
// one: nothing else ends a call that the client has begun.
const tripTimeout = 750 * time.Millisecond

// call runs a command and returns its reply with a classified error. If the server does not know
// the script, call sends the full script. If a demoted master refuses the command, call sends it
// again.
func (d *redisDriver) call(ctx context.Context, cmd *command, mode callMode) (any, error) {
	err := ctx.Err()
	if err != nil {
		return nil, driver.Classify(err, driver.Transient) // nothing was sent
	}
	p := &d.pipeliner
	if d.cluster != nil {
		p = d.pipelinerFor(ctx, lockOf(cmd))
	}
	err = p.send(ctx, cmd, mode)
	for sentWhole, left := false, -1; ctx.Err() == nil; {
		if redis.IsReadOnlyError(err) && left < 0 {
			d.suspectSubscription(lockOf(cmd))
			left = d.staleConnections()
		}
		switch {
		case redisnode.IsNoScript(err) && !sentWhole:
			cmd, sentWhole = cmd.Whole(ctx), true
		case redis.IsReadOnlyError(err) && left > 0:
			left--
			cmd.Rewind()
		default:
			return d.answerOf(cmd, err)
		}
		err = p.send(ctx, cmd, mode)
	}
	return d.answerOf(cmd, err)
}

func (d *redisDriver) answerOf(cmd *command, err error) (any, error) {
	if cmd.Answered(err) {
		return cmd.Val(), nil
	}
	if cmd.Withdraw() {
		err = d.explain(err)
	}
	return nil, cmd.Classify(err)
}

// explain finds out why a call had no connection before its deadline. A caller that has cancelled
// its call does not wait for that.
func (d *redisDriver) explain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return d.explainer.Explain(d.client, err)
	}
	return err
}

// staleConnections is how often a call is repeated at once after a demoted master has refused it:
// go-redis drops the connection, but the other connections of its pool may lead to the same server,
// although the address belongs to another master by now.
func (d *redisDriver) staleConnections() int {
	if d.cluster != nil {
		return 0
	}
	return min(int(d.client.PoolStats().IdleConns)+1, maxStaleConnections)
}

const maxStaleConnections = 32

// suspectSubscription is called after a server has answered that it is a replica: the subscription
// may still be at that server, where scripts do not count it.
func (d *redisDriver) suspectSubscription(lock string) {
	d.subscriptions.reportUnsubscribed(d.slotOf(lock))
}

func (p *pipeliner) send(ctx context.Context, cmd *command, mode callMode) error {
	_, uncancellable := ctx.(sharedtimeout.Uncancelled)
	own, limited := ctx.Deadline() // may be the user's code, so not under mu
	p.mu.Lock()
	quick := !uncancellable && mode == mayInline && p.driver.shortTimeoutClient != nil && (p.quick == quickTrips || p.driver.settings.alwaysInline)
	uncancellable = uncancellable && p.driver.honorsDeadline
	if p.inFlight < maxInFlight && !p.batching && (uncancellable || quick) {
		p.inFlight++
		delayed := p.delayed
		p.delayed = nil
		p.mu.Unlock()
		return p.callInline(ctx, inlineCall{cmd, own, limited, uncancellable, delayed})
	}
	c := &pendingCall{cmd: cmd, done: make(chan struct{}), until: own}
	p.pending = append(p.pending, c)
	if p.inFlight < maxInFlight && !p.congested() {
		p.inFlight++
		p.start()
	}
	p.mu.Unlock()
	caller, deadline := ends(ctx)
	select {
	case <-c.done:
		if c.panicked != nil {
			panic(c.panicked) // as if the call had been made here
		}
		return cmd.Err()
	case <-caller:
	case <-deadline:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.abandoned = true
	if !c.taken {
		p.left++
	}
	cmd.Withdraw() // its batch may be waiting for a connection
	return ctx.Err()
}

// isAnswer reports whether the server has answered.
func isAnswer(err error) bool {
	if err == nil {
		return true
	}
	var answer redis.Error
	return errors.As(err, &answer)
}

// ends returns the channels of which one is closed when a call must end. One of them may be nil.
func ends(ctx context.Context) (caller, deadline <-chan struct{}) {
	if j, ok := ctx.(*sharedtimeout.Joined); ok {
		return j.Ends()
	}
	return ctx.Done(), nil
}

// finish ends the round trip of an inline call and starts one for pending calls.
func (p *pipeliner) finish(started time.Time, answered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.record(started, 1, answered)
	if len(p.pending) > 0 && p.driver.ctx.Err() == nil {
		p.start()
		return
	}
	p.inFlight--
}

// record stores how long a round trip took, how many calls shared it, and whether it was answered. Releases
// whose callers do not wait do not count. The caller holds mu.
func (p *pipeliner) record(started time.Time, calls int, answered bool) {
	p.used = time.Now()
	p.batching = calls > 1
	took := p.used.Sub(started)
	if !answered && took > 2*attemptTimeout {
		p.stalled.Store(true)
	} else if answered && p.stalled.Load() {
		p.stalled.Store(false)
	}
	switch {
	case answered && p.driver.settings.inlineOnceAnswered:
		p.quick = quickTrips
	case took > quickTrip || !answered:
		p.quick = 0
	case p.quick < quickTrips:
		p.quick++
	}
}

// start sends batches until nothing is pending. The caller holds mu.
func (p *pipeliner) start() {
	p.driver.work.Go(func() {
		for batch := p.next(); len(batch) > 0; batch = p.next() {
			started := time.Now()
			answered := p.flush(batch)
			p.mu.Lock()
			p.record(started, awaited(batch), answered)
			if len(batch) == maxBatch {
				p.full--
			}
			p.mu.Unlock()
			if len(batch) > 1 {
				p.collect(time.Since(started))
			}
		}
	})
}

// collect lets callers that were just answered call again, so that they share the next round trip. If it takes long,
// missing it would cost them much more than this delay.
func (p *pipeliner) collect(trip time.Duration) {
	if trip < time.Millisecond {
		runtime.Gosched()
		return
	}
	time.Sleep(min(trip/20, 200*time.Microsecond))
}

// awaited returns how many calls of a batch have a caller that waits.
func awaited(batch []*pendingCall) (n int) {
	for _, c := range batch {
		if c.answer == nil {
			n++
		}
	}
	return n
}

// next takes the pending calls whose callers still wait. If there are none, it decreases the number
// of round trips in flight.
func (p *pipeliner) next() (batch []*pendingCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.delayed) > 0 {
		p.pending, p.delayed = append(p.delayed, p.pending...), nil
	}
	for len(batch) == 0 && len(p.pending) > 0 && !p.congested() && p.driver.ctx.Err() == nil {
		n := min(len(p.pending), maxBatch)
		batch = p.pending[:n:n]
		p.pending = p.pending[n:]
		for _, c := range batch {
			c.taken = true
		}
		batch = slices.DeleteFunc(batch, func(c *pendingCall) bool { return c.abandoned })
		p.left -= n - len(batch)
	}
	switch len(batch) {
	case 0:
		p.inFlight--
	case maxBatch:
		p.full++
	}
	return batch
}

// latest returns the latest deadline of the calls, or zero if one of them has none.
func latest(batch []*pendingCall) (until time.Time) {
	for _, c := range batch {
		if c.until.IsZero() {
			return time.Time{}
		}
		if c.until.After(until) {
			until = c.until
		}
	}
	return until
}

// flush makes a round trip and reports whether it was answered. Its deadline is the latest deadline
// of its calls.
func (p *pipeliner) flush(batch []*pendingCall) (answered bool) {
	ctx := p.timeouts.Within(p.driver.ctx, tripTimeout)
	at, _ := ctx.Deadline()
	if until := latest(batch); !until.IsZero() && at.After(until) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(p.driver.ctx, until)
		defer cancel()
	}
	panicked := true
	defer func() {
		if !panicked {
			return
		}
		reason := recover() // of a hook of the client
		for _, c := range batch {
			if c.cmd.Val() == nil { // it was not answered
				c.cmd.SetErr(fmt.Errorf("%w: %v", errPanicked, reason))
			}
			if len(batch) == 1 { // otherwise it may be the panic of another
				c.panicked = reason
			}
			c.end(c.cmd.Err())
		}
	}()
	if len(batch) == 1 {
		_ = p.driver.client.Process(ctx, batch[0].cmd) // the command has its error
	} else {
		pipe := p.driver.client.Pipeline()
		for _, c := range batch {
			_ = pipe.Process(ctx, c.cmd)
		}
		redisnode.Execute(ctx, pipe)
	}
	panicked = false
	answered = isAnswer(batch[0].cmd.Err()) // before its caller may use the command again
	for _, c := range batch {
		c.end(c.cmd.Err())
	}
	return answered
}
