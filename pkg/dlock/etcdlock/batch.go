package etcdlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A batcher sends calls for different locks as one transaction: one message, one proposal and one
// write to the disk for all of them. A call that finds few others in flight is sent alone and at
// once. Any other call waits until one of those was answered, and is then sent together with all
// that wait. See ADR 0021.
type batcher struct {
	*etcdDriver
	maxInFlight    int // beyond that, calls wait for each other
	maxCalls       int // in a batch; under mu
	pendingTimeout time.Duration
	timeout        time.Duration // of a batch
	always         bool          // also a lone call is sent as a batch, for tests

	mu       sync.Mutex
	inFlight int             // calls and batches that were sent and not answered
	pending  []*call         // those that wait to be sent, in order
	puts     map[string]bool // the locks that a pending call stores a claim on
	timer    *time.Timer
}

func newBatcher(d *etcdDriver) batcher {
	return batcher{etcdDriver: d, maxInFlight: 4, maxCalls: maxBatch, pendingTimeout: 20 * time.Millisecond, timeout: batchTimeout, puts: map[string]bool{}}
}

const (
	maxBatch      = 64        // calls; etcd allows 128 operations in a transaction by default
	maxBatchBytes = 256 << 10 // of values; etcd allows 1.5 MiB in a request by default
	// batchTimeout is less than the life of a tombstone by far: a caller may leave its batch, and
	// clean up, before the batch is sent.
	batchTimeout = 2 * time.Second
)

// A call is what a batcher sends for a claim.
type call struct {
	lock  string
	own   string         // the claim's key
	text  string         // what is put there, or "" for a delete
	ifs   []clientv3.Cmp // what must be so
	op    clientv3.Op
	alone func(context.Context) (answer, error) // sends it without a batch

	done chan struct{}

	// Under batcher.mu until done is closed.
	batch    *batch // it was sent with
	finished bool
	left     bool // the caller does not wait any more
	again    bool // to be sent alone: it counts as in flight
	answer
	err error
}

// An answer is what the server did.
type answer struct {
	ok  bool // the claim is stored, or its key is deleted
	rev int64
}

type batch struct {
	calls   []*call
	waiting int // callers
	cancel  context.CancelFunc
}

// do sends a call. Its error is not classified.
func (b *batcher) do(ctx context.Context, c *call) (answer, error) {
	done := ctx.Done() // the user's code, so before anything is counted
	switch b.enter(c) {
	case aloneCounted:
		defer b.answered()
		return c.alone(ctx)
	case alone:
		return c.alone(ctx)
	case inBatch:
	}
	select {
	case <-c.done:
	case <-done:
		switch finished, sent := b.leave(c); {
		case finished:
		case sent:
			return answer{}, ctx.Err()
		default:
			return answer{}, driver.Classify(ctx.Err(), driver.Transient)
		}
	}
	if c.again {
		defer b.answered()
		return c.alone(ctx)
	}
	return c.answer, c.err
}

// A route is how a call is sent.
type route uint8

const (
	inBatch      route = iota // it is pending
	alone                     // at once, by its caller
	aloneCounted              // the same, and others may wait for its answer
)

// enter decides how a call is sent.
func (b *batcher) enter(c *call) route {
	b.mu.Lock()
	defer b.mu.Unlock()
	free := b.inFlight < b.maxInFlight
	switch {
	case free && !b.always:
		b.inFlight++
		return aloneCounted
	case b.maxCalls == 1, c.isPut() && b.puts[c.lock]:
		return alone
	}
	c.done = make(chan struct{})
	b.pending = append(b.pending, c)
	if c.isPut() {
		b.puts[c.lock] = true // no two claims on a lock may have the same revision
	}
	switch {
	case free:
		b.send()
	case len(b.pending) == 1:
		b.startTimer()
	}
	return inBatch
}

// startTimer sends what is pending after a while, even if nothing was answered: a member that hangs
// must not stop calls to other members. The caller holds mu.
func (b *batcher) startTimer() {
	if b.timer != nil {
		b.timer.Reset(b.pendingTimeout)
		return
	}
	b.timer = time.AfterFunc(b.pendingTimeout, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for len(b.pending) > 0 {
			b.send()
		}
	})
}

// leave removes a call whose caller does not wait any more. It was sent, or not, unless it is finished.
func (b *batcher) leave(c *call) (finished, sent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case c.finished:
		return true, true
	case c.batch == nil:
		for i, p := range b.pending {
			if p == c {
				b.pending = append(b.pending[:i], b.pending[i+1:]...)
				b.forget(c)
				break
			}
		}
		return false, false
	}
	c.left = true
	c.batch.waiting--
	if c.batch.waiting == 0 {
		c.batch.cancel()
	}
	return false, true
}

// forget records that a call is not pending any more. The caller holds mu.
func (b *batcher) forget(c *call) {
	if c.isPut() {
		delete(b.puts, c.lock)
	}
}

// answered counts a call or a batch as answered, and sends what has waited for that.
func (b *batcher) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
	for b.inFlight < b.maxInFlight && len(b.pending) > 0 {
		b.send()
	}
	if len(b.pending) == 0 && b.timer != nil {
		b.timer.Stop()
	}
}

// send sends the calls that have waited longest. The caller holds mu.
func (b *batcher) send() {
	calls := b.take()
	b.inFlight++
	if len(calls) == 1 && !b.always {
		calls[0].again = true
		calls[0].finish()
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, b.timeout)
	x := &batch{calls: calls, waiting: len(calls), cancel: cancel}
	for _, c := range calls {
		c.batch = x
	}
	b.work.Go(func() {
		defer b.answered()
		defer cancel()
		resp, err := b.commit(ctx, x)
		b.finish(x, resp, err)
	})
}

// commit sends a batch.
func (b *batcher) commit(ctx context.Context, x *batch) (resp *clientv3.TxnResponse, err error) {
	defer recoverPanic(&err)
	return b.kv.Txn(ctx).Then(x.ops()...).Else(x.bare()...).Commit()
}

// take removes from pending what fits into a batch. The caller holds mu.
func (b *batcher) take() (calls []*call) {
	n, bytes := 0, 0
	for n < min(len(b.pending), b.maxCalls) && (n == 0 || bytes+len(b.pending[n].text) <= maxBatchBytes) {
		c := b.pending[n]
		bytes += len(c.text)
		b.forget(c)
		n++
	}
	calls = b.pending[:n:n]
	b.pending = b.pending[n:]
	if len(b.pending) == 0 {
		b.pending = nil // and not the array with the calls that were sent
	}
	return calls
}

// ops returns a transaction for each call that has a condition, and the bare operation of the others.
func (x *batch) ops() (ops []clientv3.Op) {
	for _, c := range x.calls {
		op := c.op
		if len(c.ifs) > 0 {
			op = clientv3.OpTxn(c.ifs, []clientv3.Op{c.op}, nil)
		}
		ops = append(ops, op)
	}
	return ops
}

// bare returns puts that are never executed, because a transaction without conditions succeeds. They
// are for servers that do not look into nested transactions when they check the quota and the
// permissions of a user.
func (x *batch) bare() (ops []clientv3.Op) {
	for _, c := range x.calls {
		if c.isPut() {
			ops = append(ops, clientv3.OpPut(c.own, ""))
		}
	}
	return ops
}

// finish gives each call its part of the answer. An error is the error of each of them. If nothing was executed, a
// delete is sent alone, which also waits for a connection; and so is a claim, if the error may be that of another claim.
func (b *batcher) finish(x *batch, resp *clientv3.TxnResponse, err error) {
	r := refusalOf(err)
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.tooLarge {
		b.maxCalls = max(1, min(b.maxCalls, len(x.calls)/2))
	}
	for i, c := range x.calls {
		switch {
		case c.left:
			continue
		case err == nil:
			c.answer = answerOf(resp.Responses[i], resp.Header.Revision)
		case r.full && !c.isPut():
			c.err = errMaybeDeleted
		case r.ofOneCall, r.executedNothing && !c.isPut():
			c.again = true
			b.inFlight++
		default:
			c.err = err
		}
		c.finish()
	}
}

// A refusal is what the error of a batch says about its calls.
type refusal struct {
	executedNothing bool
	ofOneCall       bool // executedNothing, perhaps because of one of the calls, or of their number
	tooLarge        bool
	full            bool // the server is out of space: it may have executed the batch
}

func refusalOf(err error) (r refusal) {
	if err == nil {
		return r
	}
	reply, classified := rpctypes.Error(err), classify(err)
	class := driver.ClassOf(classified)
	r.full = errors.Is(classified, ErrNoSpace)
	r.tooLarge = errors.Is(reply, rpctypes.ErrTooManyOps) || errors.Is(reply, rpctypes.ErrRequestTooLarge) || strings.Contains(err.Error(), tooLargeToSend)
	r.ofOneCall = r.tooLarge || class == driver.Fatal || errors.Is(classified, errLeaseGone)
	r.executedNothing = r.ofOneCall || (class == driver.Transient && !r.full)
	return r
}

// tooLargeToSend is gRPC's error for a message that the client does not send.
const tooLargeToSend = "trying to send message larger than max"

// errMaybeDeleted: a batch with this delete has filled the server, so it may have been executed.
var errMaybeDeleted = errors.New("etcd ran out of space during the call")

func (c *call) isPut() bool { return c.text != "" }

func (c *call) finish() {
	c.finished = true
	close(c.done)
}

func answerOf(r *pb.ResponseOp, rev int64) answer {
	if txn := r.GetResponseTxn(); txn != nil {
		return answer{txn.Succeeded, rev}
	}
	return answer{r.GetResponseDeleteRange().GetDeleted() > 0, rev}
}
