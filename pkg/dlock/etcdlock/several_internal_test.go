package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// phases returns the phases of states.
func phases(states []driver.State) (all []driver.Phase) {
	for _, st := range states {
		all = append(all, st.Phase)
	}
	return all
}

// wantPhases asserts the answer to a batch: so many claims are held, and the rest is gone.
func wantPhases(t *testing.T, states []driver.State, err error, held, all int) {
	t.Helper()
	want := slices.Concat(slices.Repeat([]driver.Phase{driver.Held}, held), slices.Repeat([]driver.Phase{driver.Gone}, all-held))
	if err != nil || !slices.Equal(phases(states), want) {
		t.Fatalf("%v, %v; want %v", states, err, want)
	}
}

// revisionOf returns the revision of the server.
func revisionOf(t *testing.T, client *clientv3.Client) int64 {
	t.Helper()
	resp, err := client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}

// countStored returns how many claims are stored on the keys of requests.
func countStored(t *testing.T, d *etcdDriver, rs []driver.Request) (n int) {
	t.Helper()
	for _, r := range rs {
		resp, err := d.client.Get(t.Context(), d.prefixOf(r.Key), clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		n += int(resp.Count)
	}
	return n
}

// Claims of one call are stored in one transaction, up to the first that must wait, and are released in one.
func TestSeveralKeysInOneTransaction(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t).Endpoint()
	d, client := openInternal(t, server)
	other, _ := openInternal(t, server)
	acquireHeld(t, d, driver.Request{Ref: refTo("lease", 1<<20, time.Minute)})
	for _, taken := range []int{maxTogether, 5, 1, 0} {
		all := requests(maxTogether)
		if taken < len(all) {
			acquireHeld(t, other, driver.Request{Ref: refTo(all[taken].Key, 1<<21, time.Minute)})
		}
		before := revisionOf(t, client)
		states, err := d.AcquireBatch(t.Context(), all)
		wantPhases(t, states, err, taken, len(all))
		if after := revisionOf(t, client); after != before+min(1, int64(taken)) {
			t.Errorf("%d writes for %d claims", after-before, taken)
		}
		for i, st := range states[:taken] {
			if st.Token != before+1 || time.Until(st.Until) > time.Minute || time.Until(st.Until) < 30*time.Second {
				t.Errorf("%s: %v", all[i].Key, st)
			}
		}
		if n := countStored(t, d, all); n != min(taken+1, len(all)) {
			t.Errorf("%d claims are stored, want those of %d keys", n, taken+1)
		}
		before = revisionOf(t, client)
		var refs []driver.Ref
		for _, r := range all[:taken] {
			refs = append(refs, r.Ref)
		}
		states, err = d.ReleaseBatch(t.Context(), refs)
		wantPhases(t, states, err, taken, taken)
		if after := revisionOf(t, client); after != before+min(1, int64(taken)) {
			t.Errorf("%d writes for %d releases", after-before, taken)
		}
		if taken < len(all) {
			_, err := other.Release(t.Context(), refTo(all[taken].Key, 1<<21, time.Minute))
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := countStored(t, d, all); n != 0 {
			t.Errorf("%d claims are left", n)
		}
	}
}

// A call whose answer is lost is sent again, and finds what it has stored: also if a claim was removed meanwhile.
func TestSeveralKeysWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t).Endpoint()
	d, g := behindGate(t, server)
	g.open()
	all := requests(4)
	g.lose(errors.New("the answer is lost"))
	_, err := d.AcquireBatch(t.Context(), all)
	if driver.ClassOf(err) != driver.Ambiguous {
		t.Fatalf("the error is %v", err)
	}
	g.lose(nil)
	if n := countStored(t, d, all); n != 4 {
		t.Fatalf("%d claims are stored: the fault did not happen", n)
	}
	states, err := d.AcquireBatch(t.Context(), all)
	wantPhases(t, states, err, 4, 4)
	resp, err := d.client.Delete(t.Context(), d.prefixOf(all[1].Key), clientv3.WithPrefix())
	if err != nil || resp.Deleted != 1 {
		t.Fatal(resp, err)
	}
	tombstone := all[1].Ref
	tombstone.Unanswered = true
	Answered(t, func() error { _, err := d.Release(t.Context(), tombstone); return err })
	states, err = d.AcquireBatch(t.Context(), all)
	wantPhases(t, states, err, 1, 4)
	if n := countStored(t, d, all); n != 3 {
		t.Errorf("%d claims are stored, want the three that nobody removed", n)
	}
}

// calls counts the transactions of a client. It panics in those that only delete, if it is to.
type calls struct {
	n      atomic.Int64
	panics bool
}

func (c *calls) intercept() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		txn, ok := req.(*pb.TxnRequest)
		if ok {
			c.n.Add(1)
		}
		if ok && c.panics && len(txn.Failure) == 0 && txn.Success[0].GetRequestTxn() != nil {
			panic("of the client")
		}
		return next(ctx, method, req, reply, cc, opts...)
	})
}

// After a lost answer, one call finds what is stored, however many keys there are.
func TestSeveralKeysAfterALostAnswer(t *testing.T) {
	t.Parallel()
	var sent calls
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint(), sent.intercept())
	acquireHeld(t, d, driver.Request{Ref: refTo("lease", 1<<20, time.Minute)})
	g := &gate{KV: d.kv, lost: errors.New("the answer is lost")}
	kv := d.kv
	d.kv = g
	all := requests(maxTogether)
	if _, err := d.AcquireBatch(t.Context(), all[:maxTogether-2]); driver.ClassOf(err) != driver.Ambiguous {
		t.Fatalf("the error is %v", err)
	}
	d.kv = kv
	before := sent.n.Load()
	states, err := d.AcquireBatch(t.Context(), all) // and two more
	wantPhases(t, states, err, len(all), len(all))
	if n := sent.n.Load() - before; n != 2 {
		t.Errorf("%d calls, want one that reads and one that stores the rest", n)
	}
	if states[0].Token == 0 || states[0].Token != states[maxTogether-3].Token || states[maxTogether-1].Token <= states[0].Token {
		t.Errorf("tokens are %d, %d and %d", states[0].Token, states[maxTogether-3].Token, states[maxTogether-1].Token)
	}
}

// Claims without renewal have a lease each. They are left to be submitted alone, and nothing is sent.
func TestSeveralKeysWithoutRenewal(t *testing.T) {
	t.Parallel()
	var sent calls
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint(), sent.intercept())
	all := requests(2)
	for i := range all {
		all[i].Fixed = true
	}
	_, err := d.AcquireBatch(t.Context(), all)
	if !errors.Is(err, driver.ErrUnsupported) || driver.ClassOf(err) != driver.Fatal || sent.n.Load() != 0 {
		t.Errorf("the error is %v, after %d calls", err, sent.n.Load())
	}
}

// A server without space refuses the claims. One call takes back what it may have stored, and a client that panics in
// it does not end the process.
func TestSeveralKeysWithoutSpace(t *testing.T) {
	t.Parallel()
	for _, panics := range []bool{false, true} {
		sent := calls{panics: panics}
		server := testenv.Etcd(t).Endpoint()
		_, direct := openInternal(t, server)
		d, _ := openInternal(t, server, sent.intercept())
		acquireHeld(t, d, driver.Request{Ref: refTo("lease", 1<<20, time.Minute)})
		_, err := pb.NewMaintenanceClient(direct.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE})
		if err != nil {
			t.Fatal(err)
		}
		before := sent.n.Load()
		all := requests(maxTogether)
		_, err = d.AcquireBatch(t.Context(), all)
		if !errors.Is(err, ErrNoSpace) || (driver.ClassOf(err) == driver.Ambiguous) != panics {
			t.Errorf("the error is %v", err)
		}
		if n := sent.n.Load() - before; n != 2 {
			t.Errorf("%d calls, want one that is refused and one that takes back", n)
		}
		if n := countStored(t, d, all); n != 0 {
			t.Errorf("%d claims are stored", n)
		}
	}
}

// A call that is too large to send was not executed.
func TestSeveralKeysAreTooLarge(t *testing.T) {
	t.Parallel()
	d, client := openInternal(t, testenv.Etcd(t).Endpoint())
	acquireHeld(t, d, driver.Request{Ref: refTo("lease", 1<<20, time.Minute)})
	d.kv = &gate{KV: client.KV, lost: status.Error(codes.ResourceExhausted, tooLargeToSend)}
	all := requests(16)
	_, err := d.AcquireBatch(t.Context(), all)
	if driver.ClassOf(err) != driver.Fatal || d.together.Load() != 8 {
		t.Errorf("the error is %v, and %d claims go together", err, d.together.Load())
	}
	d.tooMany(20) // of a larger call that was under way
	d.tooMany(1)
	if d.together.Load() != 8 {
		t.Errorf("%d claims go together", d.together.Load())
	}
}

// Of claims on two leases, only those on the lease that is gone are forgotten. The locks on the other one stay.
func TestSeveralKeysOnTwoLeases(t *testing.T) {
	t.Parallel()
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint())
	all := requests(2)
	acquireHeld(t, d, all[0])
	d.mu.Lock()
	first := d.claims[all[0].ID]
	delete(d.leases, first.lease.seconds) // as if it had ended by the clock of this process
	d.mu.Unlock()
	acquireHeld(t, d, all[1])
	d.mu.Lock()
	second := d.claims[all[1].ID]
	d.markLeaseDead(first.lease) // as a keep-alive does
	d.mu.Unlock()
	d.submitFailed(classify(rpctypes.ErrLeaseNotFound), first, second)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claims[all[0].ID] != nil || d.claims[all[1].ID] != second || second.lease.dead || !second.open {
		t.Errorf("the first claim is known: %v; the second: %v, its lease is dead: %v", d.claims[all[0].ID] != nil, d.claims[all[1].ID] == second, second.lease.dead)
	}
}

// A claim that was not stored because its lease is gone is forgotten, also if nobody submits it again.
func TestClaimOfALeaseThatIsGone(t *testing.T) {
	t.Parallel()
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint())
	c, err := d.enter(t.Context(), requests(1)[0])
	if err != nil {
		t.Fatal(err)
	}
	d.submitFailed(classify(rpctypes.ErrLeaseNotFound), c)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.claims) != 0 || len(c.lease.claims) != 0 || !c.lease.dead {
		t.Errorf("%d claims are known, %d on the lease, which is dead: %v", len(d.claims), len(c.lease.claims), c.lease.dead)
	}
}

// A server that allows few operations in a transaction refuses the call, stores nothing, and is not asked again.
func TestSeveralKeysAreTooMany(t *testing.T) {
	t.Parallel()
	d, _ := openInternal(t, testenv.Etcd(t, "--max-txn-ops", "10").Endpoint())
	all := requests(8)
	keys := make([]string, len(all))
	for i, r := range all {
		keys[i] = r.Key
	}
	if !d.CanBatch(keys) || d.CanBatch(make([]string, maxTogether+1)) {
		t.Fatal("CanBatch is wrong before the call")
	}
	_, err := d.AcquireBatch(t.Context(), all)
	if driver.ClassOf(err) != driver.Fatal || countStored(t, d, all) != 0 {
		t.Errorf("the error is %v, and %d claims are stored", err, countStored(t, d, all))
	}
	if d.CanBatch(keys) || !d.CanBatch(keys[:3]) {
		t.Error("CanBatch is wrong after the call")
	}
	states, err := d.AcquireBatch(t.Context(), all[:3])
	wantPhases(t, states, err, 3, 3)
	var refs []driver.Ref
	for i := range 12 {
		r := driver.Request{Ref: refTo(fmt.Sprint("reader", i), 100+i, time.Minute), Mode: driver.Shared}
		acquireHeld(t, d, r)
		refs = append(refs, r.Ref)
	}
	if _, err := d.ReleaseBatch(t.Context(), refs); driver.ClassOf(err) != driver.Fatal {
		t.Errorf("12 releases: %v", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range refs {
		if d.claims[r.ID].tainted {
			t.Errorf("the key of %s is not reused although no delete was executed", r.Key)
		}
	}
}

// If the lease was revoked, the claims are stored on a new one.
func TestSeveralKeysOnARevokedLease(t *testing.T) {
	t.Parallel()
	d, client := openInternal(t, testenv.Etcd(t).Endpoint())
	acquireHeld(t, d, driver.Request{Ref: refTo("lease", 1<<20, time.Minute)})
	d.mu.Lock()
	l := d.leases[60]
	d.mu.Unlock()
	if _, err := client.Revoke(t.Context(), l.id); err != nil {
		t.Fatal(err)
	}
	all := requests(3)
	states, err := d.AcquireBatch(t.Context(), all)
	wantPhases(t, states, err, 3, 3)
	if n := countStored(t, d, all); n != 3 {
		t.Errorf("%d claims are stored", n)
	}
}

// A claim that another one of the process waits for is left, and so is one that is not known or may have been released.
func TestSeveralReleasesLeaveWhatIsNotSimple(t *testing.T) {
	t.Parallel()
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint())
	all := requests(4)
	states, err := d.AcquireBatch(t.Context(), all)
	wantPhases(t, states, err, 4, 4)
	waits, err := d.Acquire(t.Context(), driver.Request{Ref: refTo(all[1].Key, 100, time.Minute), Wait: true})
	if err != nil || waits.Phase != driver.Queued {
		t.Fatal(waits, err)
	}
	refs := []driver.Ref{all[0].Ref, all[1].Ref, all[2].Ref, refTo("unknown", 101, time.Minute), all[3].Ref}
	refs[2].Unanswered = true
	states, err = d.ReleaseBatch(t.Context(), refs)
	if want := []driver.Phase{driver.Held, driver.Unknown, driver.Unknown, driver.Unknown, driver.Held}; err != nil || !slices.Equal(phases(states), want) {
		t.Errorf("%v, %v; want %v", phases(states), err, want)
	}
	for _, r := range refs[1:3] {
		st, err := d.Release(t.Context(), r)
		if err != nil || st.Phase != driver.Held {
			t.Errorf("%s: %v, %v", r.Key, st, err)
		}
	}
	if n := countStored(t, d, all); n != 1 {
		t.Errorf("%d claims are left, want the one that waited", n)
	}
}

// The client repeats a call that was cancelled on its way, and then finds no connection: the deletes may still arrive, so the
// keys are not used again.
func TestSeveralReleasesMayArriveLate(t *testing.T) {
	t.Parallel()
	fails := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if txn, ok := req.(*pb.TxnRequest); ok && txn.Success[0].GetRequestDeleteRange() != nil {
			return status.Error(codes.Unavailable, unconnected[0])
		}
		return next(ctx, method, req, reply, cc, opts...)
	})
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint(), fails)
	all := requests(2)
	states, err := d.AcquireBatch(t.Context(), all)
	wantPhases(t, states, err, 2, 2)
	if _, err := d.ReleaseBatch(t.Context(), []driver.Ref{all[0].Ref, all[1].Ref}); driver.ClassOf(err) != driver.Transient {
		t.Fatalf("the error is %v", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range all {
		if !d.claims[r.ID].tainted {
			t.Errorf("the key of %s would be used again", r.Key)
		}
	}
}

// An attempt that may have been carried out makes the outcome unknown, whatever a later one returns.
func TestRefusedAfterAnAttempt(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	between := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Failure) > 0 {
			if sent.Add(1) > 1 {
				return rpctypes.ErrGRPCRequestTooManyRequests
			}
			err := next(ctx, method, req, reply, cc, opts...)
			if err == nil {
				err = status.Error(codes.Canceled, "reset on its way back") // the client repeats it
			}
			return err
		}
		return next(ctx, method, req, reply, cc, opts...)
	})
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint(), between)
	all := requests(2)
	_, err := d.AcquireBatch(t.Context(), all)
	if driver.ClassOf(err) != driver.Ambiguous || sent.Load() < 2 || countStored(t, d, all) != 2 {
		t.Errorf("the error is %v after %d attempts, and %d claims are stored", err, sent.Load(), countStored(t, d, all))
	}
}
