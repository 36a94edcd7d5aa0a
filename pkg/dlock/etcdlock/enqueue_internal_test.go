package etcdlock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A claim is stored at the end of its queue, unless its key or its tombstone is there; the answer says where it is. What that answer cannot
// tell, a look does.
func TestPlaceAtTheEnd(t *testing.T) {
	const p = "p:k/"
	own := kvAt(p+"aa-dlock0", 9)
	mine := &mvccpb.KeyValue{Key: own.Key, CreateRevision: 6, Value: []byte("text")}
	put := rangeOf() // the answer to the put is not read
	many := rangeOf(own, kvAt(p+"bb-dlock0", 5))
	many.Count = 40
	for _, tc := range []struct {
		name    string
		kind    kind
		answers []any
		want    position
		fails   bool
		sent    []string
	}{
		{"first", writer, []any{txnAt(9, true, put, rangeOf(own))}, position{phase: driver.Held, rev: 9, asOf: 9}, false, []string{"if 2 put get"}},
		{"behind one", writer, []any{txnAt(9, true, put, rangeOf(own, kvAt(p+"bb-dlock0", 5)))}, position{phase: driver.Queued, rev: 9, before: p + "bb-dlock0", beforeRev: 5, ahead: 1, asOf: 9}, false, []string{"if 2 put get"}},
		{"behind many", writer, []any{txnAt(9, true, put, many)}, position{phase: driver.Queued, rev: 9, before: p + "bb-dlock0", beforeRev: 5, ahead: 39, asOf: 9}, false, []string{"if 2 put get"}},
		{"a reader behind a writer", reader, []any{txnAt(9, true, put, rangeOf(kvAt(p+"bb-dlock0", 5)))}, position{phase: driver.Queued, rev: 9, before: p + "bb-dlock0", beforeRev: 5, ahead: 1, asOf: 9}, false, []string{"if 2 put get"}},
		{"perhaps behind a Mutex", writer, []any{txnAt(9, true, put, rangeOf(own, kvAt(p+"bb", 5))), txnAt(10, true, rangeOf(own))}, position{phase: driver.Held, rev: 9, asOf: 10}, false, []string{"if 2 put get", "get"}},
		{"a tombstone", writer, []any{txnAt(9, false, rangeOf())}, position{phase: driver.Gone}, false, []string{"if 2 put get"}},
		{"the key of another claim", writer, []any{txnAt(9, false, rangeOf(own))}, position{phase: driver.Gone}, false, []string{"if 2 put get"}},
		{"stored before", writer, []any{txnAt(9, false, rangeOf(mine)), txnAt(10, true, rangeOf(mine))}, position{phase: driver.Held, rev: 6, asOf: 10}, false, []string{"if 2 put get", "get"}},
		{"no answer", writer, []any{errors.New("broken")}, position{}, true, []string{"if 2 put get"}},
	} {
		d, s, script := onStore(t, tc.kind, tc.answers...)
		got, err := d.enqueue(t.Context(), s)
		if got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%s: %+v, %v", tc.name, got, err)
		}
		script.wantSent(t, tc.name, tc.sent...)
		if got := script.sent[0].conditions(); !slices.Equal(got, []string{"p:%tombstone/id EQUAL 0", s.own + " EQUAL 0"}) {
			t.Errorf("%s: stored if %q", tc.name, got)
		}
		if len(script.sent[0].otherwise) != 1 || string(script.sent[0].otherwise[0].KeyBytes()) != s.own || len(d.enqueuing) != 0 {
			t.Errorf("%s: reads %v otherwise; %d are being submitted", tc.name, script.sent[0].otherwise, len(d.enqueuing))
		}
	}
	synctest.Test(t, func(t *testing.T) {
		d, s, script := onStore(t, writer, txnAt(9, true, rangeOf(), rangeOf(own)))
		for range maxEnqueuing {
			d.enqueuing <- struct{}{}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := d.enqueue(ctx, s); driver.ClassOf(err) != driver.Transient || len(script.sent) != 0 {
			t.Errorf("%v, %d calls, without room", err, len(script.sent))
		}
		s.hasRoom = true
		ctx = t.Context()
		if got, err := d.enqueue(ctx, s); err != nil || got.phase != driver.Held || len(d.enqueuing) != maxEnqueuing {
			t.Errorf("%+v, %v, and %d are being submitted, with room of its own", got, err, len(d.enqueuing))
		}
	})
}

// How a claim is sent: as if its lock were free, unless it is known not to be. A reader looks only for those that are no readers.
func TestHowAClaimIsSent(t *testing.T) {
	own := kvAt("p:k/aa-dlock0", 9)
	queued := txnAt(9, true, rangeOf(), rangeOf(own))
	for _, tc := range []struct {
		name       string
		kind       kind
		wait, busy bool
		rev        int64
		answers    []any
		phase      driver.Phase
		sent       []string
		conditions []string
	}{
		{"free", writer, false, false, 0, []any{txnAt(9, true)}, driver.Held, []string{"if 2 put"}, []string{"p:%tombstone/id EQUAL 0", "p:k/… EQUAL 0"}},
		{"free for a reader", reader, false, false, 0, []any{txnAt(9, true)}, driver.Held, []string{"if 3 put"}, []string{"p:%tombstone/id EQUAL 0", "p:k/r-aa-dlock0 EQUAL 0", "p:k/… EQUAL 0"}},
		{"taken", writer, false, false, 0, []any{txnAt(9, false), txnAt(10, true, rangeOf(kvAt("p:k/bb-dlock0", 5)), rangeOf(), rangeOf())}, driver.Gone, []string{"if 2 put", "get get get"}, nil},
		{"taken, and it waits", writer, true, false, 0, []any{txnAt(9, false), queued}, driver.Held, []string{"if 2 put", "if 2 put get"}, nil},
		{"known to be taken", writer, false, true, 0, []any{txnAt(9, true)}, driver.Held, []string{"if 2 put"}, nil},
		{"known to be taken, and it waits", writer, true, true, 0, []any{queued}, driver.Held, []string{"if 2 put get"}, nil},
		{"a permit that waits", permit, true, false, 0, []any{txnAt(9, true, rangeOf(), rangeOf(), rangeOf(), rangeOf(kvAt("p:k/p2-aa-dlock0", 9)))}, driver.Held, []string{"if 2 put get get get"}, nil},
		{"a permit", permit, false, false, 0, []any{txnAt(9, true, rangeOf(), rangeOf(), rangeOf(), rangeOf(), rangeOf()), txnAt(10, true)}, driver.Held, []string{"get get get get get", "if 3 put"}, nil},
		{"stored before", writer, true, false, 9, []any{txnAt(10, true, rangeOf(own))}, driver.Held, []string{"get", "get"}, nil},
		{"no answer", writer, false, false, 0, []any{errors.New("broken")}, 0, []string{"if 2 put"}, nil},
	} {
		d, s, script := onStore(t, tc.kind, tc.answers...)
		s.wait, s.busy, s.rev = tc.wait, tc.busy, tc.rev
		s.claim.rev = tc.rev
		got, err := d.send(t.Context(), s)
		if got.phase != tc.phase || (err != nil) != (tc.phase == 0) || got.phase == driver.Held && got.rev < 9 {
			t.Errorf("%s: %+v, %v", tc.name, got, err)
		}
		script.wantSent(t, tc.name, tc.sent...)
		if tc.conditions != nil && !slices.Equal(script.sent[0].conditions(), tc.conditions) {
			t.Errorf("%s: stored if %q", tc.name, script.sent[0].conditions())
		}
	}
}

// A claim that has filled the server is taken back. If that is not confirmed, or its caller does not wait for it, the claim may still be
// there, and its ID is not used again. The delete has a second, whatever its caller does.
func TestClaimIsTakenBack(t *testing.T) {
	refused := classify(rpctypes.ErrNoSpace)
	for _, tc := range []struct {
		name   string
		answer any
		takes  time.Duration
		limit  time.Duration // of the caller
		back   bool
		took   time.Duration
	}{
		{"taken back", txnAt(9, true), 10 * time.Millisecond, time.Hour, true, 10 * time.Millisecond},
		{"no answer", errors.New("broken"), 0, time.Hour, false, 0},
		{"no answer in time", txnAt(9, true), time.Hour, time.Hour, false, withdrawTimeout},
		{"the caller has left", txnAt(9, true), 500 * time.Millisecond, 100 * time.Millisecond, false, 100 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			d, s, script := onStore(t, writer, tc.answer)
			script.takes = tc.takes
			ctx, cancel := context.WithTimeout(t.Context(), tc.limit)
			defer cancel()
			began := time.Now()
			err := d.withdraw(ctx, refused, s, s)
			if class := driver.ClassOf(err); !errors.Is(err, ErrNoSpace) || (class == driver.Ambiguous) == tc.back || d.isRetired(s.claim) == tc.back || time.Since(began) != tc.took {
				t.Errorf("%s: %v, of class %v, after %v", tc.name, err, class, time.Since(began))
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if n := len(script.kinds()); n != 1 && tc.took != withdrawTimeout || n == 1 && len(script.sent[0].then) != 2 {
				t.Errorf("%s: %d calls", tc.name, n)
			}
		})
	}
}

// How a call goes: alone while few are in flight, and otherwise with others; alone and not counted if it could share no batch.
func TestRoutesOfACall(t *testing.T) {
	for _, tc := range []struct {
		name     string
		change   func(b *batcher)
		text     string
		want     route
		inFlight int
		pending  int
		puts     bool // a claim on the lock is pending then
	}{
		{"few in flight", func(b *batcher) { b.inFlight = b.maxInFlight - 1 }, "x", aloneCounted, 4, 0, false},
		{"many in flight", nil, "x", inBatch, 4, 1, true},
		{"a delete", nil, "", inBatch, 4, 1, false},
		{"batches of one call", func(b *batcher) { b.maxCalls = 1 }, "x", alone, 4, 0, false},
		{"another claim on the lock is pending", func(b *batcher) { b.puts["k"] = true }, "x", alone, 4, 0, true},
		{"a delete, and a claim on the lock is pending", func(b *batcher) { b.puts["k"] = true }, "", inBatch, 4, 1, true},
		{"always a batch", func(b *batcher) { b.always, b.inFlight = true, 0 }, "x", inBatch, 1, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			d, _, _ := onStore(t, writer, errors.New("broken"))
			b := &d.batches
			b.inFlight = b.maxInFlight
			if tc.change != nil {
				tc.change(b)
			}
			c := &call{lock: "k", own: "k/own", text: tc.text, op: clientv3.OpDelete("k/own")}
			got := b.enter(c)
			b.mu.Lock()
			inFlight, pending, puts := b.inFlight, len(b.pending), b.puts["k"]
			b.mu.Unlock()
			if got != tc.want || inFlight != tc.inFlight || pending != tc.pending || (c.done != nil) != (got == inBatch) {
				t.Errorf("%s: route %d, %d in flight, %d pending", tc.name, got, inFlight, pending)
			}
			if puts != tc.puts {
				t.Errorf("%s: a claim on the lock is pending: %v", tc.name, puts)
			}
			if timed := pending == 1; (b.timer != nil) != timed {
				t.Errorf("%s: has a timer: %v", tc.name, !timed)
			}
		})
	}
}

// What is pending is sent after a while although nothing was answered, and when something was.
func TestPendingCallsAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, script := onStore(t, writer, txnAt(9, true, rangeOf(), rangeOf()))
		b := &d.batches
		b.inFlight = b.maxInFlight
		add := func(n int) (calls []*call) {
			for range n {
				c := &call{lock: "k", own: "k/own", op: clientv3.OpDelete("k/own")}
				b.enter(c)
				calls = append(calls, c)
			}
			return calls
		}
		calls := add(2)
		time.Sleep(b.pendingTimeout - 1)
		if synctest.Wait(); len(script.kinds()) != 0 {
			t.Error("sent early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		for _, c := range calls {
			<-c.done
		}
		if len(script.kinds()) != 1 || len(script.sent[0].then) != 2 || b.inFlight != b.maxInFlight || len(b.pending) != 0 {
			t.Errorf("%d calls, %d in flight", len(script.kinds()), b.inFlight)
		}
		calls = add(1)
		b.answered()
		<-calls[0].done
		if !calls[0].again || b.inFlight != b.maxInFlight || len(b.pending) != 0 {
			t.Errorf("sent by itself: %v, %d in flight", calls[0].again, b.inFlight)
		}
		before := len(script.kinds())
		calls = add(1)
		time.Sleep(b.pendingTimeout)
		synctest.Wait()
		if <-calls[0].done; len(script.kinds()) != before || !calls[0].again {
			t.Errorf("%d calls, again %v", len(script.kinds())-before, calls[0].again)
		}
		b.mu.Lock()
		b.inFlight = 1
		b.mu.Unlock()
		if b.answered(); b.inFlight != 0 {
			t.Errorf("%d in flight", b.inFlight)
		}
	})
}
