package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
	"github.com/ceyewan/genesis/pkg/dlock/internal/unanswered"
)

// A renewal is the state of one call of Renew.
type renewal struct {
	driver *redisDriver
	refs   []driver.Ref
	sent   time.Time

	mu       sync.Mutex
	states   []driver.State
	errs     []error // of claims that were not answered
	returned bool    // Renew has returned: further answers are ignored
}

// Renew renews held claims with many keys per script, and queued claims one key at a time. Commands
// are pipelined, concurrently for each master of a cluster, and every answer that arrives before
// ctx ends counts.
func (d *redisDriver) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		return nil, nil
	}
	r := &renewal{driver: d, refs: slices.Clone(refs), sent: time.Now(), states: make([]driver.State, len(refs)), errs: make([]error, len(refs))}
	r.await(ctx, r.group(ctx))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.returned = true
	return slices.Clone(r.states), unanswered.Cause(r.states, r.errs, cmp.Or(ctx.Err(), errNoAnswer))
}

// errNoAnswer is the cause of a claim whose master did not answer while others did, or just before ctx.Err reports
// the end of the call.
var errNoAnswer = errors.New("redislock: no answer in time")

// stalledGrace is the shortest time to wait for a master that did not answer recently, once the
// others have answered.
const stalledGrace = 50 * time.Millisecond

// await renews at all masters concurrently. It returns when ctx ends, when all masters have
// answered, or when all masters that answered recently have answered again and a grace period has
// passed. Claims that a stalled master has not answered by then stay Unknown and are retried. A
// late answer shows that the master is no longer stalled.
func (r *renewal) await(ctx context.Context, groups map[string][]*batch) {
	var healthyRuns, stalledRuns sync.WaitGroup
	healthy, all, waitFor := make(chan struct{}), make(chan struct{}), 0
	runCtx, cancel := r.outlasting(ctx)
	for addr, g := range groups {
		p, runs := r.driver.pipelinerOf(addr), &stalledRuns
		if !p.stalled.Load() {
			runs = &healthyRuns
			waitFor++
		}
		runs.Go(func() { r.run(runCtx, p, g) })
	}
	r.driver.work.Go(func() {
		defer cancel()
		healthyRuns.Wait()
		close(healthy)
		stalledRuns.Wait()
		close(all)
	})
	select {
	case <-healthy:
	case <-ctx.Done():
		return
	}
	grace := time.Until(r.sent.Add(max(4*time.Since(r.sent), stalledGrace)))
	if waitFor == 0 {
		grace = time.Hour // every master is stalled: wait for all of them
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-all:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// outlasting returns a context that has the deadline of ctx but is not canceled when Renew returns,
// so that a connection attempt to a stalled master can finish.
func (r *renewal) outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	run, cancel := context.WithCancel(ctx)
	end, ok := ctx.Deadline()
	if ok {
		cancel()
		run, cancel = context.WithDeadline(context.WithoutCancel(ctx), end)
	}
	stop := context.AfterFunc(r.driver.ctx, cancel)
	return run, func() {
		stop()
		cancel()
	}
}

// A batch is a set of claims that one script renews.
type batch struct {
	claims       []int // indexes into refs
	namedChannel bool  // the script was given this driver's channel
	queued       bool  // renewed by renew_queue.lua, on one lock; otherwise by renew_held.lua
	moving       bool  // of one lock, whose slot is moving: what is not held is not looked up in the queue
	joint        bool  // renewed by renew_joint.lua
}

// maxRenewals is how many claims one script renews: the server does nothing else meanwhile.
// maxPipeline is how many scripts are sent together.
const (
	maxRenewals = 128
	maxPipeline = 32
)

// group sorts the claims into batches, by master and, on a cluster, by slot.
func (r *renewal) group(ctx context.Context) map[string][]*batch {
	d, queued := r.driver, r.queued()
	groups := map[string][]*batch{}
	open := map[string]*batch{} // batches that are not full, by what their claims have in common
	for i, ref := range r.refs {
		common := "held"
		if queued[i] {
			common = "queued" + separator + ref.Key
		} else if d.bySlot.Load() {
			common += strconv.Itoa(slotOf(d.prefix + ref.Key))
		}
		b := open[common]
		if b == nil || len(b.claims) == maxRenewals {
			b = &batch{queued: queued[i]}
			open[common] = b
			node := d.nodeOf(ctx, d.prefix+ref.Key)
			groups[node] = append(groups[node], b)
		}
		b.claims = append(b.claims, i)
	}
	return groups
}

// queued reports which claims wait, as far as the driver knows, or are those of readers and permits.
func (r *renewal) queued() []bool {
	r.driver.mu.Lock()
	defer r.driver.mu.Unlock()
	queued := make([]bool, len(r.refs))
	for i, ref := range r.refs {
		_, waits := r.driver.waiting[ref.ID]
		_, joint := r.driver.joint[ref.ID]
		queued[i] = waits || joint
	}
	return queued
}

// nodeOf returns the address of the master of a key, as far as the driver knows.
func (d *redisDriver) nodeOf(ctx context.Context, lock string) string {
	if d.cluster == nil {
		return ""
	}
	node, err := d.masterFor(ctx, lock)
	if err != nil {
		return ""
	}
	return node.Options().Addr
}

// run renews the batches of one master, one pipeline at a time. Claims that turn out not to be held
// are looked up in their queues.
func (r *renewal) run(ctx context.Context, p *pipeliner, batches []*batch) {
	defer func() {
		if reason := recover(); reason != nil { // of a hook of the client, which no caller could recover
			for _, b := range batches {
				r.fail(b, fmt.Errorf("redislock: a hook of the client panicked: %v", reason))
			}
		}
	}()
	for len(batches) > 0 && ctx.Err() == nil {
		n := min(len(batches), maxPipeline)
		rest := r.send(ctx, p, batches[:n])
		batches = append(batches[n:], rest...)
	}
}

// send sends batches in one pipeline, and returns the batches that must be sent in another form.
func (r *renewal) send(ctx context.Context, p *pipeliner, batches []*batch) []*batch {
	cmds := make([]*command, len(batches))
	for i, b := range batches {
		cmds[i] = r.command(ctx, b)
	}
	unconfirmed := r.driver.pipeline(ctx, r.driver.prefix+r.refs[batches[0].claims[0]].Key, cmds)
	p.stalled.Store(!isAnswer(cmds[0].Err()))
	var rest []*batch
	for i, b := range batches {
		err := cmds[i].Err()
		parts := b.split(err)
		switch {
		case len(parts) > 0:
			rest = append(rest, parts...)
		case err != nil:
			if redis.IsTryAgainError(err) && b.queued {
				rest = append(rest, r.withoutQueue(b)...)
			}
			if redis.IsReadOnlyError(err) {
				r.driver.suspectSubscription(lockOf(cmds[i]))
			}
			r.fail(b, cmds[i].Classify(err))
		case unconfirmed[i] != nil:
			r.fail(b, unconfirmed[i])
		case b.queued:
			r.recordStates(b, cmds[i].Val())
		case b.moving:
			_ = r.recordTokens(b, cmds[i].Val()) // the others are asked for when the slot has moved
		default:
			rest = append(rest, r.recordTokens(b, cmds[i].Val())...)
		}
	}
	return rest
}

func (r *renewal) command(ctx context.Context, b *batch) *command {
	d := r.driver
	if b.joint {
		n, _ := d.namesOf(r.refs[b.claims[0]].Key) // it was submitted, so its name is valid
		args := []any{d.name}
		for _, c := range b.claims {
			args = append(args, r.refs[c].ID, millis(r.refs[c].TTL))
		}
		return renewJointScript.Command(ctx, []string{n.lock, n.holders}, args...)
	}
	if !b.queued {
		keys, args := make([]string, len(b.claims)), make([]any, 1, 1+2*len(b.claims))
		args[0] = d.name
		for i, c := range b.claims {
			keys[i] = d.prefix + r.refs[c].Key
			args = append(args, r.refs[c].ID, millis(r.refs[c].TTL))
		}
		return renewHeldScript.Command(ctx, keys, args...)
	}
	n, _ := d.namesOf(r.refs[b.claims[0]].Key) // it was submitted, so its name is valid
	channel := d.pushChannel(n.lock)
	b.namedChannel = channel != noChannel
	args := append(make([]any, 0, 2+3*len(b.claims)), d.name, channel)
	for _, c := range b.claims {
		ref := r.refs[c]
		args = append(args, ref.ID, millis(ref.TTL), millis(heartbeat(&ref)))
	}
	return renewQueueScript.Command(ctx, d.withGap(n, n.lock, n.counter, n.queue, n.waiters, n.holders), args...)
}

// recordTokens reads the answer of renew_held.lua. It returns the claims that were not held, each
// to be looked up in its queue.
func (r *renewal) recordTokens(b *batch, reply any) (rest []*batch) {
	list, ok := reply.([]any)
	if !ok || len(list) != len(b.claims)+1 || redisnode.Text(list[0]) != r.driver.name {
		r.fail(b, ErrUnexpectedReply)
		return nil
	}
	byKey := map[string]*batch{}
	for i, c := range b.claims {
		token, err := strconv.ParseInt(redisnode.Text(list[i+1]), 10, 64)
		if err != nil {
			q := byKey[r.refs[c].Key]
			if q == nil {
				q = &batch{queued: true}
				byKey[r.refs[c].Key] = q
				rest = append(rest, q)
			}
			q.claims = append(q.claims, c)
			continue
		}
		r.set(c, driver.State{Phase: driver.Held, Token: token, Until: r.sent.Add(r.refs[c].TTL)})
	}
	return rest
}

// recordStates reads the answer of renew_queue.lua.
func (r *renewal) recordStates(b *batch, reply any) {
	list, ok := reply.([]any)
	if !ok || len(list) != len(b.claims)+1 || redisnode.Text(list[0]) != r.driver.name {
		r.fail(b, ErrUnexpectedReply)
		return
	}
	unsubscribed, waits := false, false
	for i, c := range b.claims {
		a, err := parseAnswer(list[i+1], r.refs[c], r.sent)
		if err != nil {
			r.fail(&batch{claims: []int{c}}, err)
			continue
		}
		unsubscribed, waits = unsubscribed || a.unsubscribed, waits || a.state.Phase == driver.Queued
		r.set(c, a.state)
	}
	slot := r.driver.slotOf(r.driver.prefix + r.refs[b.claims[0]].Key)
	switch {
	case unsubscribed:
		r.driver.subscriptions.reportUnsubscribed(slot)
	case waits && b.namedChannel:
		r.driver.subscriptions.reportSubscribed(slot)
	}
}

func (r *renewal) set(i int, st driver.State) {
	if r.hasReturned() {
		return // the answer may be out of date
	}
	ref := r.refs[i]
	switch st.Phase {
	case driver.Held:
		r.driver.stopWaiting(ref.ID)
	case driver.Gone:
		r.driver.forget(ref.ID)
	case driver.Queued, driver.Unknown: // recorded when it was submitted, unless it was released since
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states[i] = st
}

func (r *renewal) hasReturned() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.returned
}

// forget removes a claim that is gone from the tables.
func (d *redisDriver) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waiting, id)
	delete(d.joint, id)
}

// Leave forgets a claim that is left to its lease.
func (d *redisDriver) Leave(r driver.Ref) { d.forget(r.ID) }

// stopWaiting removes a claim that is held from the table of queued claims.
func (d *redisDriver) stopWaiting(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waiting, id)
}

// fail stores why the claims of a batch were not answered.
func (r *renewal) fail(b *batch, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range b.claims {
		r.errs[i] = err
	}
}
