package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A gate delays the transactions of a driver, and may answer instead of the server.
type gate struct {
	clientv3.KV

	mu      sync.Mutex
	shut    chan struct{} // nil if transactions pass
	stopped int           // transactions that came while it was shut
	lost    error         // if set, transactions are executed, and this is returned
}

type gatedTxn struct {
	clientv3.Txn
	ctx context.Context
	*gate
}

func (g *gate) Txn(ctx context.Context) clientv3.Txn { return gatedTxn{g.KV.Txn(ctx), ctx, g} }

func (x gatedTxn) If(c ...clientv3.Cmp) clientv3.Txn  { x.Txn = x.Txn.If(c...); return x }
func (x gatedTxn) Then(o ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Then(o...); return x }
func (x gatedTxn) Else(o ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Else(o...); return x }

func (x gatedTxn) Commit() (*clientv3.TxnResponse, error) {
	x.mu.Lock()
	shut := x.shut
	if shut == nil {
		shut = make(chan struct{})
		close(shut)
	} else {
		x.stopped++
	}
	x.mu.Unlock()
	select {
	case <-shut:
	case <-x.ctx.Done():
		return nil, x.ctx.Err()
	}
	resp, err := x.Txn.Commit()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.lost != nil {
		return nil, x.lost
	}
	return resp, err
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.stopped = make(chan struct{}), 0
}

// open lets all pass that were stopped, and those to come.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

// await waits until so many transactions were stopped.
func (g *gate) await(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, patience, "the calls are at the gate", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.stopped == n
	})
}

// lose makes the answers of the server get lost.
func (g *gate) lose(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lost = err
}

// behindGate returns a driver whose new claims stop at a gate. Its calls wait for each other until the gate opens.
func behindGate(t *testing.T, server string) (*etcdDriver, *gate) {
	t.Helper()
	d, _ := openInternal(t, server)
	acquireHeld(t, d, driver.Request{Ref: refTo("lease", 1<<20, time.Minute)}) // so that a lease is there
	g := &gate{KV: d.kv}
	g.close()
	d.kv = g
	d.batches.pendingTimeout, d.batches.timeout = time.Hour, time.Hour
	return d, g
}

// sendPending sends what waits, as the timer does.
func (b *batcher) sendPending() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.send()
}

// An outcome is what a claim was told.
type outcome struct {
	driver.State
	err error
}

// submitAll submits claims and waits until those beyond the limit are pending. The result is complete when wait returns.
func submitAll(t *testing.T, d *etcdDriver, requests ...driver.Request) (outcomes []outcome, wait func()) {
	t.Helper()
	outcomes = make([]outcome, len(requests))
	var calls sync.WaitGroup
	for i, r := range requests {
		calls.Go(func() { outcomes[i].State, outcomes[i].err = d.Acquire(t.Context(), r) })
		d.awaitPending(t, i+1-d.batches.maxInFlight)
	}
	return outcomes, calls.Wait
}

func (d *etcdDriver) awaitPending(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, patience, "the calls are pending", func() bool {
		d.batches.mu.Lock()
		defer d.batches.mu.Unlock()
		return len(d.batches.pending) >= n
	})
}

func requests(n int) (all []driver.Request) {
	for i := range n {
		all = append(all, driver.Request{Ref: refTo(fmt.Sprint("k", i), i, time.Minute)})
	}
	return all
}

// Claims on different locks that are submitted at a time are stored in one transaction, and released in one.
func TestBatchCarriesManyLocks(t *testing.T) {
	t.Parallel()
	d, g := behindGate(t, testenv.Etcd(t).Endpoint())
	all := requests(60)
	outcomes, wait := submitAll(t, d, all...)
	g.open()
	wait()
	tokens := map[int64]int{}
	for i, o := range outcomes {
		if o.err != nil || o.Phase != driver.Held {
			t.Errorf("%s: %v, %v", all[i].Key, o.State, o.err)
		}
		tokens[o.Token]++
	}
	if most := d.batches.maxInFlight + 1; len(tokens) > most {
		t.Errorf("%d transactions for 60 claims, want %d at most", len(tokens), most)
	}
	for i, r := range all {
		resp, err := d.client.Get(t.Context(), d.prefixOf(r.Key), clientv3.WithPrefix())
		if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].CreateRevision != outcomes[i].Token {
			t.Errorf("%s: %v, %v", r.Key, resp, err)
		}
	}
	g.close()
	var calls sync.WaitGroup
	revision := func() int64 {
		resp, err := d.client.Get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	before := revision()
	d.batches.mu.Lock()
	d.batches.maxInFlight = 0 // all of them wait
	d.batches.mu.Unlock()
	for _, r := range all {
		calls.Go(func() {
			st, err := d.Release(t.Context(), r.Ref)
			if err != nil || st.Phase != driver.Held {
				t.Errorf("%s: %v, %v", r.Key, st, err)
			}
		})
	}
	d.awaitPending(t, len(all))
	g.open()
	d.batches.sendPending()
	calls.Wait()
	if n := revision() - before; n != 1 {
		t.Errorf("%d transactions for 60 releases", n)
	}
}

// Two claims on one lock never share a transaction, and a lock that is taken is refused to its own claim alone.
func TestBatchHasOneClaimPerLock(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t).Endpoint()
	other, _ := openInternal(t, server)
	acquireHeld(t, other, driver.Request{Ref: refTo("k7", 700, time.Minute)})
	d, g := behindGate(t, server)
	all := requests(10)
	rival := driver.Request{Ref: refTo("k8", 800, time.Minute)}
	outcomes, wait := submitAll(t, d, all...)
	var second outcome
	var late sync.WaitGroup
	late.Go(func() { second.State, second.err = d.Acquire(t.Context(), rival) })
	g.await(t, d.batches.maxInFlight+1) // it does not wait for the batch
	g.open()
	wait()
	late.Wait()
	for i, r := range all {
		want := driver.Held
		if r.Key == "k7" {
			want = driver.Gone
		}
		if r.Key != "k8" && (outcomes[i].err != nil || outcomes[i].Phase != want) {
			t.Errorf("%s: %v, %v", r.Key, outcomes[i].State, outcomes[i].err)
		}
	}
	first := outcomes[8]
	if first.err != nil || second.err != nil || (first.Phase == driver.Held) == (second.Phase == driver.Held) {
		t.Errorf("two claims on one lock: %v and %v", first, second)
	}
}

// A release that leaves the batch does not let a second claim on its lock into it.
func TestLeavingReleaseKeepsOneClaimPerLock(t *testing.T) {
	t.Parallel()
	d, g := behindGate(t, testenv.Etcd(t).Endpoint())
	g.open()
	held := refTo("k", 901, time.Minute)
	acquireHeld(t, d, driver.Request{Ref: held})
	g.close()
	_, wait := submitAll(t, d, requests(d.batches.maxInFlight)...)
	g.await(t, d.batches.maxInFlight)
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	var released, first, second outcome
	calls.Go(func() { released.State, released.err = d.Release(ctx, held) })
	d.awaitPending(t, 1)
	calls.Go(func() {
		first.State, first.err = d.Acquire(t.Context(), driver.Request{Ref: refTo("k", 902, time.Minute)})
	})
	d.awaitPending(t, 2)
	cancel()
	testenv.Eventually(t, patience, "the release has left", func() bool {
		d.batches.mu.Lock()
		defer d.batches.mu.Unlock()
		return len(d.batches.pending) == 1
	})
	calls.Go(func() {
		second.State, second.err = d.Acquire(t.Context(), driver.Request{Ref: refTo("k", 903, time.Minute)})
	})
	g.await(t, d.batches.maxInFlight+1) // alone
	_, err := d.client.Delete(t.Context(), d.prefixOf("k"), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	g.open()
	calls.Wait()
	wait()
	if driver.ClassOf(released.err) != driver.Transient {
		t.Errorf("a release that was not sent: %v", released.err)
	}
	if first.err != nil || second.err != nil || (first.Phase == driver.Held) == (second.Phase == driver.Held) {
		t.Errorf("two claims on one lock: %v and %v", first, second)
	}
}

// A batch that the server refuses because of one claim is sent again claim by claim.
func TestBatchWithADeadLease(t *testing.T) {
	t.Parallel()
	d, g := behindGate(t, testenv.Etcd(t).Endpoint())
	doomed := refTo("doomed", 99, 7*time.Second) // on a lease of its own
	g.open()
	acquireHeld(t, d, driver.Request{Ref: refTo("other", 98, 7*time.Second)})
	g.close()
	d.mu.Lock()
	lease := d.leases[7].id
	d.mu.Unlock()
	all := append(requests(8), driver.Request{Ref: doomed})
	outcomes, wait := submitAll(t, d, all...)
	_, err := d.client.Revoke(t.Context(), lease)
	if err != nil {
		t.Fatal(err)
	}
	g.open()
	wait()
	for i, o := range outcomes {
		if o.err != nil || o.Phase != driver.Held {
			t.Errorf("%s: %v, %v", all[i].Key, o.State, o.err)
		}
	}
}

// A server may allow fewer operations in a transaction.
func TestBatchIsTooLargeForTheServer(t *testing.T) {
	t.Parallel()
	d, g := behindGate(t, testenv.Etcd(t, "--max-txn-ops", "10").Endpoint())
	for round := range 4 {
		var all []driver.Request
		for i := range 40 {
			all = append(all, driver.Request{Ref: refTo(fmt.Sprint(round, " ", i), round*100+i, time.Minute)})
		}
		outcomes, wait := submitAll(t, d, all...)
		g.open()
		wait()
		g.close()
		for i, o := range outcomes {
			if o.err != nil || o.Phase != driver.Held {
				t.Errorf("%s: %v, %v", all[i].Key, o.State, o.err)
			}
		}
	}
	d.batches.mu.Lock()
	defer d.batches.mu.Unlock()
	if n := d.batches.maxCalls; n > 10 || n < 2 {
		t.Errorf("batches of %d calls", n)
	}
}

// A client may allow smaller messages than the batches are.
func TestBatchIsTooLargeForTheClient(t *testing.T) {
	t.Parallel()
	const most = 4000
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint(), grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(most)))
	d.client.Lease = clientv3.NewLease(d.client)
	all := requests(200)
	var calls sync.WaitGroup
	for _, r := range all {
		calls.Go(func() {
			st, err := d.Acquire(t.Context(), r)
			if err != nil || st.Phase != driver.Held {
				t.Errorf("%s: %v, %v", r.Key, st, err)
			}
		})
	}
	calls.Wait()
}

// A call for a lock that is tried by many does not delay calls for others.
func TestBusyLockDoesNotFillTheFlight(t *testing.T) {
	t.Parallel()
	d, g := behindGate(t, testenv.Etcd(t).Endpoint())
	_, wait := submitAll(t, d, requests(d.batches.maxInFlight)...)
	g.await(t, d.batches.maxInFlight)
	var calls sync.WaitGroup
	for i := range 10 {
		calls.Go(func() {
			if _, err := d.Acquire(t.Context(), driver.Request{Ref: refTo("busy", 100+i, time.Minute)}); err != nil {
				t.Error(err)
			}
		})
	}
	g.await(t, d.batches.maxInFlight+9) // one of them is pending
	d.batches.mu.Lock()
	n := d.batches.inFlight
	d.batches.mu.Unlock()
	if n != d.batches.maxInFlight {
		t.Errorf("%d calls count as in flight", n)
	}
	g.open()
	calls.Wait()
	wait()
}

// An error that leaves the outcome open does so for every claim of the batch. Each may be submitted again.
func TestBatchWithoutAnswer(t *testing.T) {
	t.Parallel()
	d, g := behindGate(t, testenv.Etcd(t).Endpoint())
	all := requests(12)
	outcomes, wait := submitAll(t, d, all...)
	broken := errors.New("the connection broke")
	g.lose(broken)
	g.open()
	wait()
	for i, o := range outcomes {
		if !errors.Is(o.err, broken) || driver.ClassOf(o.err) != driver.Ambiguous {
			t.Errorf("%s: %v, %v", all[i].Key, o.State, o.err)
		}
	}
	g.lose(nil)
	for _, r := range all {
		acquireHeld(t, d, r)
	}
	for _, r := range all {
		st, err := d.Release(t.Context(), r.Ref)
		if err != nil || st.Phase != driver.Held {
			t.Errorf("%s: %v, %v", r.Key, st, err)
		}
	}
}

// A caller that leaves before its call is sent has stored nothing. One that leaves later does not know. The others
// of its batch get their locks.
func TestLeavingABatch(t *testing.T) {
	t.Parallel()
	d, g := behindGate(t, testenv.Etcd(t).Endpoint())
	all := requests(10)
	outcomes, wait := submitAll(t, d, all...)
	leave := func(id int) (cancel context.CancelFunc, left <-chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := d.Acquire(ctx, driver.Request{Ref: refTo(fmt.Sprint("left", id), id, time.Minute)})
			result <- err
		}()
		return cancel, result
	}
	cancel, left := leave(501)
	d.awaitPending(t, 7)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || driver.ClassOf(err) != driver.Transient {
		t.Errorf("before it was sent: %v, %v", err, driver.ClassOf(err))
	}
	cancel, left = leave(502)
	d.awaitPending(t, 7)
	d.batches.sendPending()
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || driver.ClassOf(err) != driver.Ambiguous {
		t.Errorf("after it was sent: %v, %v", err, driver.ClassOf(err))
	}
	g.open()
	wait()
	for i, o := range outcomes {
		if o.err != nil || o.Phase != driver.Held {
			t.Errorf("%s: %v, %v", all[i].Key, o.State, o.err)
		}
	}
	resp, err := d.client.Get(t.Context(), d.prefixOf("left501"), clientv3.WithPrefix())
	if err != nil || resp.Count > 0 {
		t.Errorf("a call that was not sent is stored: %v, %v", resp, err)
	}
	sent := driver.Ref{Key: "left502", ID: refTo("", 502, 0).ID, TTL: time.Minute, Unanswered: true}
	var st driver.State
	Answered(t, func() (err error) { st, err = d.Release(t.Context(), sent); return err })
	if st.Phase == driver.Gone {
		t.Errorf("a call that was sent is not stored: %v", st)
	}
}

// When all callers have left a batch, it is canceled.
func TestAbandonedBatchIsCanceled(t *testing.T) {
	t.Parallel()
	d, _ := behindGate(t, testenv.Etcd(t).Endpoint())
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for _, r := range requests(12) {
		calls.Go(func() {
			if _, err := d.Acquire(ctx, r); err == nil {
				t.Errorf("%s was granted", r.Key)
			}
		})
	}
	d.awaitPending(t, 12-d.batches.maxInFlight)
	d.batches.sendPending()
	cancel()
	calls.Wait()
	testenv.Eventually(t, patience, "nothing is in flight", func() bool {
		d.batches.mu.Lock()
		defer d.batches.mu.Unlock()
		return d.batches.inFlight == 0 && len(d.batches.pending) == 0
	})
}

// Calls to a member that hangs do not keep other calls waiting.
func TestBatchDoesNotWaitForAHungCall(t *testing.T) {
	t.Parallel()
	d, g := behindGate(t, testenv.Etcd(t).Endpoint())
	d.batches.pendingTimeout = 20 * time.Millisecond
	hung := requests(d.batches.maxInFlight)
	_, wait := submitAll(t, d, hung...)
	hangs := g.shut
	g.await(t, len(hung))
	g.mu.Lock()
	g.shut = nil // the others pass
	g.mu.Unlock()
	acquireHeld(t, d, driver.Request{Ref: refTo("late", 900, time.Minute)})
	close(hangs)
	wait()
}

// A server that is out of space stores no claim of a batch.
func TestBatchWithoutSpace(t *testing.T) {
	t.Parallel()
	d, g := behindGate(t, testenv.Etcd(t, "--quota-backend-bytes", "2000000").Endpoint())
	all := requests(12)
	outcomes, wait := submitAll(t, d, all...)
	value := strings.Repeat("x", 100_000)
	for i := 0; ; i++ {
		_, err := d.client.Put(t.Context(), fmt.Sprint("fill", i), value)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	g.open()
	wait()
	for i, o := range outcomes {
		stored, err := d.client.Get(t.Context(), d.prefixOf(all[i].Key), clientv3.WithPrefix())
		if !errors.Is(o.err, ErrNoSpace) || err != nil || stored.Count > 0 {
			t.Errorf("%s: %v, %v, stored %v, %v", all[i].Key, o.State, o.err, stored, err)
		}
	}
}

// A batch that was refused is sent again in parts only if nothing of it was executed. A delete is, whatever the reason; a
// claim is if the reason may be another claim.
func TestWhatARefusedBatchSendsAgain(t *testing.T) {
	const put, del = "x", ""
	full := func(err error) bool { return errors.Is(err, rpctypes.ErrNoSpace) }
	for name, tt := range map[string]struct {
		err   error
		text  string
		again bool
		is    func(error) bool
	}{
		"dead lease":           {rpctypes.ErrGRPCLeaseNotFound, put, true, nil},
		"dead lease, delete":   {rpctypes.ErrGRPCLeaseNotFound, del, true, nil},
		"denied":               {rpctypes.ErrGRPCPermissionDenied, put, true, nil},
		"denied, delete":       {rpctypes.ErrGRPCPermissionDenied, del, true, nil},
		"too many":             {rpctypes.ErrGRPCTooManyOps, put, true, nil},
		"too large":            {rpctypes.ErrGRPCRequestTooLarge, put, true, nil},
		"too large to send":    {errors.New(tooLargeToSend), put, true, nil},
		"no leader":            {rpctypes.ErrGRPCNoLeader, put, false, func(err error) bool { return driver.ClassOf(classify(err)) == driver.Transient }},
		"no leader, delete":    {rpctypes.ErrGRPCNoLeader, del, true, nil},
		"no answer":            {errors.New("broken"), put, false, func(err error) bool { return driver.ClassOf(classify(err)) == driver.Ambiguous }},
		"no answer, delete":    {errors.New("broken"), del, false, func(err error) bool { return driver.ClassOf(classify(err)) == driver.Ambiguous }},
		"out of space":         {rpctypes.ErrNoSpace, put, false, full},
		"out of space, delete": {rpctypes.ErrNoSpace, del, false, func(err error) bool { return errors.Is(err, errMaybeDeleted) && !full(err) }},
	} {
		b := newBatcher(nil)
		newCall := func(left bool) *call { return &call{text: tt.text, done: make(chan struct{}), left: left} }
		call1, left := newCall(false), newCall(true)
		b.inFlight = 1 // the batch
		b.finish(&batch{calls: []*call{call1, left, newCall(true), newCall(true)}}, nil, tt.err)
		if call1.again != tt.again || !call1.finished || left.again || left.finished || (call1.err == nil) != (tt.is == nil) {
			t.Errorf("%s: again %v, %v", name, call1.again, call1.err)
		}
		if tt.is != nil && !tt.is(call1.err) {
			t.Errorf("%s: %v", name, call1.err)
		}
		inFlight := 1
		if tt.again {
			inFlight++ // and not one for a caller that has left, because nothing would end it
		}
		if b.inFlight != inFlight {
			t.Errorf("%s: %d in flight, want %d", name, b.inFlight, inFlight)
		}
		most := maxBatch
		if refusalOf(tt.err).tooLarge {
			most = 2
		}
		if b.maxCalls != most {
			t.Errorf("%s: batches of %d calls, want %d", name, b.maxCalls, most)
		}
	}
}

// A batch is canceled when its last caller leaves, and not before: the others still want their locks.
func TestBatchIsCanceledWithItsLastCaller(t *testing.T) {
	b := newBatcher(nil)
	canceled := false
	x := &batch{waiting: 3, cancel: func() { canceled = true }}
	for i := range 3 {
		c := &call{batch: x}
		finished, sent := b.leave(c)
		if finished || !sent || !c.left || canceled != (i == 2) {
			t.Errorf("%d of 3 have left: finished %v, sent %v, canceled %v", i+1, finished, sent, canceled)
		}
	}
	ended := &call{batch: &batch{waiting: 1}, finished: true}
	if finished, sent := b.leave(ended); !finished || !sent || ended.left {
		t.Errorf("a call that has ended: %v, %v", finished, sent)
	}
}

// Calls that are pending are taken in order, up to a number and a size, but always at least one. The lock of a claim that
// was taken, or whose caller has left, is free for the next batch.
func TestWhatABatchTakes(t *testing.T) {
	b := newBatcher(nil)
	add := func(lock string, bytes int) *call {
		c := &call{lock: lock, text: strings.Repeat("x", bytes)}
		b.pending = append(b.pending, c)
		if c.isPut() {
			b.puts[lock] = true
		}
		return c
	}
	large, half, rest, release := add("large", maxBatchBytes+1), add("half", maxBatchBytes/2), add("rest", maxBatchBytes/2), add("release", 0)
	small, leaves := add("small", 1), add("leaves", 1)
	if finished, sent := b.leave(leaves); finished || sent || b.puts["leaves"] || len(b.pending) != 5 {
		t.Errorf("%v, %v, and %d are pending", finished, sent, len(b.pending))
	}
	for i, want := range [][]*call{{large}, {half, rest, release}, {small}, nil} {
		if got := b.take(); !slices.Equal(got, want) {
			t.Errorf("batch %d has %d calls, want %d", i, len(got), len(want))
		}
	}
	if len(b.puts) != 0 || b.pending != nil {
		t.Errorf("%v are pending", b.puts)
	}
	b.maxCalls = 2
	for range 3 {
		add("k", 0)
	}
	if n := len(b.take()); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}
