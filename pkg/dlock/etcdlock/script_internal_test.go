package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A scriptedStore answers transactions one after another, in place of a server.
type scriptedStore struct {
	clientv3.KV
	takes time.Duration // for each call

	mu      sync.Mutex
	answers []any // *clientv3.TxnResponse or error; the last is repeated
	sent    []*scriptedTxn
}

type scriptedTxn struct {
	store           *scriptedStore
	ctx             context.Context
	ifs             []clientv3.Cmp
	then, otherwise []clientv3.Op
}

func (s *scriptedStore) Txn(ctx context.Context) clientv3.Txn {
	return &scriptedTxn{store: s, ctx: ctx}
}

// Do and Get are answered with the first range of the next answer.
func (s *scriptedStore) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	resp, err := s.Txn(ctx).Then(op).Commit()
	if err != nil {
		return clientv3.OpResponse{}, err
	}
	read := resp.Responses[0].GetResponseRange()
	return (&clientv3.GetResponse{Header: resp.Header, Kvs: read.Kvs, Count: read.Count, More: read.More}).OpResponse(), nil
}

func (s *scriptedStore) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := s.Do(ctx, clientv3.OpGet(key, opts...))
	return resp.Get(), err
}

func (x *scriptedTxn) If(c ...clientv3.Cmp) clientv3.Txn  { x.ifs = append(x.ifs, c...); return x }
func (x *scriptedTxn) Then(o ...clientv3.Op) clientv3.Txn { x.then = append(x.then, o...); return x }

func (x *scriptedTxn) Else(o ...clientv3.Op) clientv3.Txn {
	x.otherwise = append(x.otherwise, o...)
	return x
}

func (x *scriptedTxn) Commit() (*clientv3.TxnResponse, error) {
	if !sleep(x.ctx, x.store.takes) {
		return nil, x.ctx.Err()
	}
	s := x.store
	s.mu.Lock()
	defer s.mu.Unlock()
	i := min(len(s.sent), len(s.answers)-1)
	s.sent = append(s.sent, x)
	switch a := s.answers[i].(type) {
	case error:
		return nil, a
	case *clientv3.TxnResponse:
		return a, nil
	default:
		panic(fmt.Sprintf("no answer: %v", a))
	}
}

// kinds returns what was sent, in short: "get", "put" or "delete" for each operation, with "if N" before it.
func (s *scriptedStore) kinds() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sent {
		var words []string
		if len(x.ifs) > 0 {
			words = append(words, fmt.Sprint("if ", len(x.ifs)))
		}
		for _, op := range x.then {
			switch {
			case op.IsGet():
				words = append(words, "get")
			case op.IsPut():
				words = append(words, "put")
			case op.IsDelete():
				words = append(words, "delete")
			}
		}
		all = append(all, strings.Join(words, " "))
	}
	return all
}

// conditions returns those of a transaction: a key, how the revision of its creation compares, and with what. A key with … stands for all that
// begin with it.
func (x *scriptedTxn) conditions() (all []string) {
	for i := range x.ifs {
		c := x.ifs[i].GetCompare()
		key := string(c.Key)
		if len(c.RangeEnd) > 0 {
			key += "…"
		}
		all = append(all, fmt.Sprintf("%s %s %d", key, c.Result, c.GetCreateRevision()))
	}
	return all
}

func (s *scriptedStore) wantSent(t *testing.T, name string, want ...string) {
	t.Helper()
	if got := s.kinds(); strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("%s: sent %q, want %q", name, got, want)
	}
}

// onStore returns a driver whose calls a script answers. It has a claim that was not answered yet.
func onStore(t *testing.T, k kind, answers ...any) (*etcdDriver, submission, *scriptedStore) {
	t.Helper()
	d, c := claimOn(time.Minute)
	store := &scriptedStore{answers: answers}
	d.ctx, d.cancel = context.WithCancel(t.Context())
	d.client, d.kv, d.me, d.prefix = clientv3.NewCtxClient(d.ctx), store, "aa", "p:"
	d.client.KV = store
	d.enqueuing = make(chan struct{}, maxEnqueuing)
	d.batches = newBatcher(d)
	d.keys = keyWatcher{etcdDriver: d, wake: make(chan struct{}, 1)}
	d.log = slog.New(slog.DiscardHandler)
	t.Cleanup(func() {
		d.cancel()
		d.work.Wait()
	})
	delete(d.owns, c.own)
	c.kind, c.own, c.position, c.text = k, d.ownKey("k", k, 0), position{}, "text"
	d.owns[c.own] = c
	return d, submission{claim: c, prefix: d.prefixOf("k"), tombstone: d.tombstoneKey(c.id), lease: 60, text: c.text}, store
}

// txnAt returns the answer to a transaction, at a revision.
func txnAt(rev int64, ok bool, reads ...*pb.RangeResponse) *clientv3.TxnResponse {
	resp := &clientv3.TxnResponse{Header: &pb.ResponseHeader{Revision: rev}, Succeeded: ok}
	for _, r := range reads {
		resp.Responses = append(resp.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: r}})
	}
	return resp
}

// rangeOf returns the answer to a read, with keys of a queue and the revisions of their creation.
func rangeOf(kvs ...*mvccpb.KeyValue) *pb.RangeResponse {
	return &pb.RangeResponse{Kvs: kvs, Count: int64(len(kvs))}
}

func kvAt(key string, rev int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(key), CreateRevision: rev, Value: []byte("of another")}
}

var (
	writer = kind{mode: driver.Exclusive}
	reader = kind{mode: driver.Shared}
	permit = kind{mode: driver.Permit, limit: 2}
)

// A permit that does not wait is stored if the permits that were counted leave room, and no other claim has come since. Whatever cannot
// be told from keys is left to a place in the queue.
func TestPermitThatDoesNotWait(t *testing.T) {
	const p = "p:k/"
	stranger := &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{kvAt(p+"abc", 3)}, Count: 1} // perhaps a Mutex
	one := rangeOf(kvAt(p+"p2-bb-dlock0", 4))
	two := rangeOf(kvAt(p+"p2-bb-dlock0", 4), kvAt(p+"p2-bb-dlock1", 5))
	none := rangeOf()
	own := rangeOf(&mvccpb.KeyValue{Key: []byte(p + "p2-aa-dlock0"), CreateRevision: 6, Value: []byte("text")})
	broken := errors.New("broken")
	const probe, store, queued, deleted = "get get get get get", "if 3 put", "if 2 put get get get", "if 1 delete"
	// The reads of a probe: below the permits, above them, the permits, its own key and its tombstone.
	for _, tc := range []struct {
		name    string
		answers []any
		phase   driver.Phase
		rev     int64
		fails   bool
		sent    []string
	}{
		{"free", []any{txnAt(9, true, none, none, none, none, none), txnAt(10, true)}, driver.Held, 10, false, []string{probe, store}},
		{"room", []any{txnAt(9, true, none, none, one, none, none), txnAt(10, true)}, driver.Held, 10, false, []string{probe, store}},
		{"full", []any{txnAt(9, true, none, none, two, none, none)}, driver.Gone, 0, false, []string{probe}},
		{"a writer", []any{txnAt(9, true, rangeOf(kvAt(p+"bb-dlock0", 3)), none, none, none, none)}, driver.Gone, 0, false, []string{probe}},
		{"a reader", []any{txnAt(9, true, none, rangeOf(kvAt(p+"r-bb-dlock0", 3)), none, none, none)}, driver.Gone, 0, false, []string{probe}},
		{"a tombstone", []any{txnAt(9, true, none, none, none, none, rangeOf(kvAt("p:%tombstone/id", 8)))}, driver.Gone, 0, false, []string{probe}},
		{"others come, once", []any{txnAt(9, true, none, none, none, none, none), txnAt(10, false), txnAt(11, true, none, none, one, none, none), txnAt(12, true)}, driver.Held, 12, false, []string{probe, store, probe, store}},
		{"not read", []any{broken}, 0, 0, true, []string{probe}},
		{"not stored", []any{txnAt(9, true, none, none, none, none, none), broken}, 0, 0, true, []string{probe, store}},
		{"a stranger", []any{txnAt(9, true, stranger, none, none, none, none), txnAt(10, true, none, none, none, one)}, driver.Held, 10, false, []string{probe, queued}},
		{"a stranger, and then queued", []any{txnAt(9, true, stranger, none, none, none, none), txnAt(10, true, none, rangeOf(kvAt(p+"bb-dlock0", 3)), none, one), txnAt(11, true)}, driver.Gone, 0, false, []string{probe, queued, deleted}},
		{"stored before", []any{txnAt(9, true, none, none, one, own, none), txnAt(10, true, none, none, one, rangeOf(kvAt(p+"p2-aa-dlock0", 6)))}, driver.Held, 6, false, []string{probe, "get get get get"}},
	} {
		d, s, script := onStore(t, permit, tc.answers...)
		got, err := d.try(t.Context(), s)
		if got.phase != tc.phase || got.rev != tc.rev || (err != nil) != tc.fails {
			t.Errorf("%s: %+v, %v", tc.name, got, err)
		}
		script.wantSent(t, tc.name, tc.sent...)
		for _, x := range script.sent {
			if got := x.conditions(); len(got) == 3 && !slices.Equal(got, []string{"p:%tombstone/id EQUAL 0", s.own + " EQUAL 0", "p:k/… LESS 10"}) && tc.rev != 12 {
				t.Errorf("%s: stored if %q", tc.name, got)
			}
		}
		if len(d.enqueuing) != 0 {
			t.Errorf("%s: %d claims are being submitted", tc.name, len(d.enqueuing))
		}
		if at := got.asOf; got.phase == driver.Held && at != 10 && at != 12 {
			t.Errorf("%s: as of %d", tc.name, at)
		}
	}
}

// A permit is tried so often, and so long, while others come each time; then it takes a place in the queue.
func TestPermitAmongManyOthers(t *testing.T) {
	for _, tc := range []struct {
		takes time.Duration
		tries int
	}{{0, maxTries}, {tryTime / 2, 2}, {tryTime/2 - 1, 2}, {tryTime / 4, 3}, {time.Second, 1}} {
		synctest.Test(t, func(t *testing.T) {
			none := rangeOf()
			var answers []any
			for range tc.tries {
				answers = append(answers, txnAt(9, true, none, none, none, none, none), txnAt(10, false))
			}
			d, s, script := onStore(t, permit, append(answers, txnAt(20, true, none, none, none, rangeOf(kvAt("p:k/p2-aa-dlock0", 20))))...)
			script.takes = tc.takes
			got, err := d.try(t.Context(), s)
			if n := len(script.sent); got.phase != driver.Held || got.rev != 20 || err != nil || n != 2*tc.tries+1 {
				t.Errorf("%v for a call: %+v, %v, after %d calls", tc.takes, got, err, n)
			}
		})
	}
}

// What the first keys of a queue say about a new claim: that it must wait, that it need not, or neither.
func TestWhatProbesShow(t *testing.T) {
	const p = "p:k/"
	many := func(key string, n int) (r *pb.RangeResponse) {
		r = rangeOf()
		for i := range n {
			r.Kvs = append(r.Kvs, kvAt(fmt.Sprint(key, i), int64(i)))
		}
		r.Count = int64(n)
		return r
	}
	of := func(n int64, r *pb.RangeResponse) *pb.RangeResponse { r.Count = n; return r }
	for _, tc := range []struct {
		name          string
		kind          kind
		reads         []*pb.RangeResponse
		blocked, sure bool
	}{
		{"a free lock", writer, []*pb.RangeResponse{rangeOf()}, false, true},
		{"a writer", writer, []*pb.RangeResponse{many(p+"bb-dlock", 1)}, true, true},
		{"other data", writer, []*pb.RangeResponse{many(p+"config", near-1)}, false, true},
		{"much other data", writer, []*pb.RangeResponse{many(p+"config", near)}, false, false},
		{"perhaps a Mutex", writer, []*pb.RangeResponse{many(p+"ab", 1)}, false, false},
		{"a claim behind much data", writer, []*pb.RangeResponse{rangeOf(append(many(p+"config", near-1).Kvs, kvAt(p+"bb-dlock0", 9))...)}, true, true},
		{"a reader with nobody else", reader, []*pb.RangeResponse{rangeOf()}, false, true},
		{"a reader behind a permit", reader, []*pb.RangeResponse{many(p+"p2-bb-dlock", 1)}, true, true},
		{"room for a permit", permit, []*pb.RangeResponse{rangeOf(), rangeOf(), many(p+"p2-bb-dlock", 1)}, false, true},
		{"no room", permit, []*pb.RangeResponse{rangeOf(), rangeOf(), many(p+"p2-bb-dlock", 2)}, true, true},
		{"no room, and other data", permit, []*pb.RangeResponse{rangeOf(), rangeOf(), rangeOf(kvAt(p+"p2-config", 1), kvAt(p+"p2-bb-dlock0", 2), kvAt(p+"p2-bb-dlock1", 3))}, true, true},
		{"perhaps room", permit, []*pb.RangeResponse{rangeOf(), rangeOf(), rangeOf(kvAt(p+"p2-config", 1), kvAt(p+"p2-bb-dlock0", 2))}, false, false},
		{"more than were read, all permits", permit, []*pb.RangeResponse{rangeOf(), rangeOf(), of(2, many(p+"p2-bb-dlock", 1))}, true, true},
		{"behind a writer, without room", permit, []*pb.RangeResponse{many(p+"bb-dlock", 1), rangeOf(), many(p+"p2-bb-dlock", 2)}, true, true},
		{"after much data", permit, []*pb.RangeResponse{rangeOf(), many(p+"r-config", near), rangeOf()}, false, false},
	} {
		var answers []*pb.ResponseOp
		for _, r := range tc.reads {
			answers = append(answers, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: r}})
		}
		if blocked, sure := tc.kind.blocked(p, answers); blocked != tc.blocked || sure != tc.sure {
			t.Errorf("%s: blocked %v, sure %v", tc.name, blocked, sure)
		}
	}
}

// A claim that does not wait is removed if it is queued. If that is not answered, it may still be there, and its ID is not used again.
func TestClaimThatDoesNotWaitIsRemoved(t *testing.T) {
	broken := errors.New("broken")
	for _, tc := range []struct {
		name  string
		found position
		err   error
		reply any
		phase driver.Phase
		class driver.Class
		sent  int
	}{
		{"held", position{phase: driver.Held, rev: 5}, nil, txnAt(9, true), driver.Held, 0, 0},
		{"gone", position{phase: driver.Gone}, nil, txnAt(9, true), driver.Gone, 0, 0},
		{"not found out", position{}, driver.Classify(broken, driver.Transient), txnAt(9, true), 0, driver.Transient, 0},
		{"queued", position{phase: driver.Queued, rev: 5}, nil, txnAt(9, true), driver.Gone, 0, 1},
		{"queued, and not removed", position{phase: driver.Queued, rev: 5}, nil, broken, 0, driver.Ambiguous, 1},
	} {
		d, s, script := onStore(t, writer, tc.reply)
		got, err := d.withoutWaiting(t.Context(), s, func() (position, error) { return tc.found, tc.err })
		if got.phase != tc.phase || (err != nil) != (tc.class != 0 || tc.phase == 0) || err != nil && driver.ClassOf(err) != tc.class || len(script.sent) != tc.sent {
			t.Errorf("%s: %+v, %v, after %d calls", tc.name, got, err, len(script.sent))
		}
		if retired := tc.sent == 1 && tc.phase == 0; d.isRetired(s.claim) != retired {
			t.Errorf("%s: retired %v", tc.name, !retired)
		}
		if tc.sent == 1 {
			if got := script.sent[0].conditions(); !slices.Equal(got, []string{s.own + " EQUAL 5"}) {
				t.Errorf("%s: removed if %q", tc.name, got)
			}
		}
	}
}
