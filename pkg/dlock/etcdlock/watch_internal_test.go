package etcdlock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A scriptedWatcher returns a channel that the test writes to, and notes what is watched.
type scriptedWatcher struct {
	clientv3.Watcher
	events  chan clientv3.WatchResponse
	watched []string
}

func (w *scriptedWatcher) Watch(_ context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...)
	if len(op.RangeBytes()) > 0 {
		key += "…"
	}
	w.watched = append(w.watched, key)
	return w.events
}

// queuedOn returns the watcher of a queue with one waiting claim.
func queuedOn(t *testing.T, k kind, p position, answers ...any) (*queueWatcher, *claim, *scriptedStore, *scriptedWatcher) {
	t.Helper()
	d, s, store := onStore(t, k, answers...)
	w := &scriptedWatcher{events: make(chan clientv3.WatchResponse, 8)}
	d.client.Watcher = w
	c := s.claim
	c.position = p
	q := &waitQueue{key: "k", prefix: d.prefixOf("k"), changed: make(chan struct{}, 1), waiting: []*claim{c}}
	d.queues["k"] = q
	return &queueWatcher{etcdDriver: d, queue: q}, c, store, w
}

// change ends the wait of a watcher.
func (s *queueWatcher) change() { s.queue.poke() }

// A claim is looked up again once the one before it was deleted after it was last seen, or may have been before the watch began. While
// nothing has happened, nothing is asked. A claim of this driver needs no watch.
func TestStepsForAWriter(t *testing.T) {
	const before, ours = "p:k/bb-dlock0", "p:k/aa-dlock9"
	held := txnAt(20, true, rangeOf(kvAt("p:k/aa-dlock0", 7)))
	still := txnAt(20, true, rangeOf(kvAt(before, 5)))
	for _, tc := range []struct {
		name    string
		before  string
		change  func(s *queueWatcher, d *etcdDriver)
		asked   int
		watched []string
		granted bool
		asOf    int64
	}{
		{"the watch begins", before, nil, 0, []string{before}, false, 10},
		{"nothing has happened", before, func(s *queueWatcher, _ *etcdDriver) { s.watch = watch{key: before, since: 10} }, 0, nil, false, 10},
		{"deleted before that", before, func(s *queueWatcher, _ *etcdDriver) { s.watch = watch{key: before, since: 9, gone: 10} }, 0, nil, false, 10},
		{"deleted", before, func(s *queueWatcher, _ *etcdDriver) { s.watch = watch{key: before, since: 9, gone: 11} }, 1, nil, true, 20},
		{"perhaps deleted", before, func(s *queueWatcher, _ *etcdDriver) { s.watch = watch{key: before, since: 11} }, 1, nil, false, 20},
		{"another is watched", before, func(s *queueWatcher, _ *etcdDriver) { s.watch = watch{key: "p:k/cc-dlock0", since: 9, gone: 11} }, 0, []string{before}, false, 10},
		{"ours, and known", ours, func(_ *queueWatcher, d *etcdDriver) {
			d.owns[ours] = &claim{key: "k", position: position{rev: 5}}
		}, 0, nil, false, 10},
		{"ours, and not known", ours, nil, 1, nil, true, 20},
		{"ours, known at another revision", ours, func(_ *queueWatcher, d *etcdDriver) {
			d.owns[ours] = &claim{key: "k", position: position{rev: 4}}
		}, 1, nil, true, 20},
		{"ours, not known, and looked up before", ours, func(s *queueWatcher, _ *etcdDriver) { s.looked = 5 }, 0, []string{ours}, false, 10},
	} {
		answer := held
		if !tc.granted {
			answer = still
		}
		s, c, store, w := queuedOn(t, writer, position{phase: driver.Queued, rev: 7, before: tc.before, beforeRev: 5, ahead: 1, asOf: 10}, answer)
		if tc.change != nil {
			tc.change(s, s.etcdDriver)
		}
		s.change()
		if err := s.serve(c, c.position); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if len(store.sent) != tc.asked || !slices.Equal(w.watched, tc.watched) || c.asOf != tc.asOf || (c.phase == driver.Held) != tc.granted {
			t.Errorf("%s: %d calls, watches %q, %+v", tc.name, len(store.sent), w.watched, c.position)
		}
		var told []driver.Event
		for len(s.Events()) > 0 {
			told = append(told, <-s.Events())
		}
		if tc.granted != (len(told) == 1 && told[0] == driver.Event{Key: "k", ID: c.id, State: driver.State{Phase: driver.Held, Token: 7}}) {
			t.Errorf("%s: told %v", tc.name, told)
		}
		s.stop()
	}
}

// A permit that waits for permits counts their deletions. It is looked up again when enough are gone, when another claim was served
// before, and when deletions may have been missed.
func TestStepsForAPermit(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(s *queueWatcher, c *claim)
		asked  bool
	}{
		{"the watch has not begun", func(s *queueWatcher, _ *claim) { s.watch.since = 0 }, false},
		{"another was served", func(s *queueWatcher, _ *claim) { s.served = &claim{} }, true},
		{"nothing has happened", func(*queueWatcher, *claim) {}, false},
		{"the watch began later", func(s *queueWatcher, _ *claim) { s.watch.since = 11 }, true},
		{"the claim itself was deleted", func(s *queueWatcher, _ *claim) { s.watch.deleted = []deletion{{7, 12}} }, true},
		{"one of three is gone", func(s *queueWatcher, _ *claim) { s.watch.deleted = []deletion{{4, 12}} }, false},
		{"two of three are gone", func(s *queueWatcher, _ *claim) { s.watch.deleted = []deletion{{4, 12}, {5, 13}} }, true},
		{"one is gone since, and one was before", func(s *queueWatcher, _ *claim) { s.watch.deleted = []deletion{{4, 10}, {5, 13}} }, false},
		{"one is gone, and one behind it", func(s *queueWatcher, _ *claim) { s.watch.deleted = []deletion{{4, 12}, {8, 13}} }, false},
	} {
		p := position{phase: driver.Queued, rev: 7, ahead: 3, asOf: 10}
		// What a look at a permit reads: others below, others above, the permits, itself.
		full := rangeOf(kvAt("p:k/p2-bb-dlock0", 3), kvAt("p:k/p2-bb-dlock1", 4), kvAt("p:k/p2-bb-dlock2", 5), kvAt("p:k/p2-aa-dlock0", 7))
		slices.Reverse(full.Kvs)
		s, c, store, w := queuedOn(t, permit, p, txnAt(20, true, rangeOf(), rangeOf(), full, rangeOf(kvAt("p:k/p2-aa-dlock0", 7))))
		s.served, s.watch = c, watch{key: s.queue.prefix, since: 10}
		tc.change(s, c)
		s.change()
		if err := s.serve(c, p); err != nil || (len(store.sent) > 0) != tc.asked || len(w.watched) > 0 || s.served != c {
			t.Errorf("%s: %v, %d calls, watches %q", tc.name, err, len(store.sent), w.watched)
		}
		if tc.asked && (c.phase != driver.Queued || c.ahead != 3 || c.asOf != 20) {
			t.Errorf("%s: %+v", tc.name, c.position)
		}
	}
	s, c, store, w := queuedOn(t, permit, position{phase: driver.Queued, rev: 7, ahead: 2, asOf: 10}, errors.New("broken"))
	s.watch = watch{key: "p:k/bb-dlock0", since: 10}
	if err := s.serve(c, c.position); err == nil || len(store.sent) == 0 || !slices.Equal(w.watched, []string{"p:k/…"}) || s.served != c {
		t.Errorf("after another watch: %v, watches %q", err, w.watched)
	}
}

// What a watch says: when it has begun, what was deleted, that it has ended. A wait also ends with a change of the queue, after its
// time, and with the driver.
func TestEventsOfAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, _, w := queuedOn(t, permit, position{})
		deleted := func(created, at int64) *clientv3.Event {
			return &clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{ModRevision: at}, PrevKv: &mvccpb.KeyValue{CreateRevision: created}}
		}
		s.watch = watch{key: s.queue.prefix, events: w.events}
		step := func(resp clientv3.WatchResponse) error {
			w.events <- resp
			return s.next(0)
		}
		if err := step(clientv3.WatchResponse{Created: true, Header: &pb.ResponseHeader{Revision: 9}}); err != nil || s.watch.since != 9 {
			t.Errorf("%v, since %d", err, s.watch.since)
		}
		two := clientv3.WatchResponse{Header: &pb.ResponseHeader{Revision: 12}, Events: []*clientv3.Event{deleted(3, 12), deleted(4, 11)}}
		if err := step(two); err != nil || s.watch.gone != 12 || s.watch.since != 9 || len(s.watch.deleted) != 0 {
			t.Errorf("%v, %+v, and nobody counts", err, s.watch)
		}
		s.served = c
		if err := step(two); err != nil || !slices.Equal(s.watch.deleted, []deletion{{3, 12}, {4, 11}}) {
			t.Errorf("%v, %v", err, s.watch.deleted)
		}
		s.watch.deleted = make([]deletion, maxDeletions-2)
		if err := step(two); err != nil || len(s.watch.deleted) != maxDeletions || s.served != c {
			t.Errorf("%v, %d are kept", err, len(s.watch.deleted))
		}
		if err := step(two); err != nil || s.watch.deleted != nil || s.served != nil {
			t.Errorf("%v, %d are kept", err, len(s.watch.deleted))
		}
		s.served, s.watch.key = c, "p:k/bb-dlock0"
		if err := step(two); err != nil || len(s.watch.deleted) != 0 {
			t.Errorf("%v, deletions of one key are counted: %v", err, s.watch.deleted)
		}
		if err := step(clientv3.WatchResponse{Header: &pb.ResponseHeader{}, Canceled: true, CompactRevision: 3}); err == nil {
			t.Error("a watch that is over")
		}
		began := time.Now()
		if err := s.next(time.Second); err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		s.change()
		if err := s.next(time.Second); err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after a change, %v", err, time.Since(began))
		}
		close(w.events)
		if err := s.next(0); !errors.Is(err, errWatchEnded) {
			t.Errorf("%v", err)
		}
		s.watch = watch{}
		s.cancel()
		if err := s.next(0); err != nil {
			t.Errorf("after the end of the driver: %v", err)
		}
	})
}

// A queue is left after it has been empty for a while, and not while a claim waits.
func TestQueueThatStaysEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, _, _ := queuedOn(t, writer, position{phase: driver.Queued})
		if first, _ := s.first(); first != c || s.over() {
			t.Error("the claim that waits is not served")
		}
		s.queue.waiting = nil
		if first, _ := s.first(); first != nil || s.over() || s.empty.IsZero() {
			t.Error("it is over at once")
		}
		time.Sleep(queueStays - 1)
		if first, _ := s.first(); first != nil || s.over() {
			t.Error("it is over early")
		}
		s.queue.waiting = []*claim{c}
		time.Sleep(time.Second)
		if s.over() || s.queues["k"] != s.queue {
			t.Error("it is over with a claim that waits")
		}
		if first, _ := s.first(); first != c || !s.empty.IsZero() {
			t.Error("it counts as empty")
		}
		s.queue.waiting = nil
		s.run()
		if s.queues["k"] != nil || time.Since(s.empty) != queueStays {
			t.Errorf("it was over after %v", time.Since(s.empty))
		}
	})
}

// A look that any member may answer counts only if it shows the grant, and is not older than the deletion. Otherwise all are asked.
func TestWhoIsAskedForAPlace(t *testing.T) {
	const before = "p:k/bb-dlock0"
	own := kvAt("p:k/aa-dlock0", 7)
	held, queued := rangeOf(own), rangeOf(own, kvAt(before, 5))
	for _, tc := range []struct {
		name    string
		rev     int64
		answers []any
		asked   int
		phase   driver.Phase
	}{
		{"granted", 11, []any{txnAt(11, true, held)}, 1, driver.Held},
		{"granted, as an old member says", 11, []any{txnAt(10, true, held), txnAt(11, true, held)}, 2, driver.Held},
		{"queued, as a member says", 11, []any{txnAt(11, true, queued), txnAt(12, true, held)}, 2, driver.Held},
		{"no answer of a member", 11, []any{errors.New("broken"), txnAt(12, true, held)}, 2, driver.Held},
		{"no deletion is known", 0, []any{txnAt(12, true, held)}, 1, driver.Held},
		{"queued", 0, []any{txnAt(12, true, queued)}, 1, driver.Queued},
		{"gone", 11, []any{txnAt(12, true, rangeOf())}, 2, driver.Gone},
	} {
		s, c, store, _ := queuedOn(t, writer, position{phase: driver.Queued, rev: 7, before: before, beforeRev: 5, ahead: 1, asOf: 10}, tc.answers...)
		if err := s.advance(c, tc.rev); err != nil || len(store.sent) != tc.asked {
			t.Errorf("%s: %v, %d calls", tc.name, err, len(store.sent))
		}
		for i, x := range store.sent {
			if any := x.then[0].IsSerializable(); any != (i == 0 && tc.rev > 0) {
				t.Errorf("%s: any member may answer call %d: %v", tc.name, i, any)
			}
		}
		known := s.claims[c.id] == c
		if known != (tc.phase != driver.Gone) || known && c.phase != tc.phase || (len(s.Events()) == 1) != (tc.phase != driver.Queued) {
			t.Errorf("%s: known %v, %+v, %d events", tc.name, known, c.position, len(s.Events()))
		}
	}
}

// Whether the claim before was deleted while nobody watched: a member that lags behind the watch cannot tell.
func TestConfirmingTheClaimBefore(t *testing.T) {
	const before = "p:k/bb-dlock0"
	there, other, own := rangeOf(kvAt(before, 5)), rangeOf(kvAt(before, 6)), rangeOf(kvAt("p:k/aa-dlock0", 7))
	broken := errors.New("broken")
	for _, tc := range []struct {
		name    string
		answers []any
		asked   int
		held    bool
		asOf    int64
		fails   bool
	}{
		{"there", []any{txnAt(15, true, there)}, 1, false, 15, false},
		{"there, at the revision of the watch", []any{txnAt(12, true, there)}, 1, false, 12, false},
		{"there, as a member says that lags behind", []any{txnAt(11, true, there), txnAt(16, true, there)}, 2, false, 16, false},
		{"no answer of a member", []any{broken, txnAt(16, true, there)}, 2, false, 16, false},
		{"no answer", []any{broken}, 2, false, 10, true},
		{"gone", []any{txnAt(15, true, rangeOf()), txnAt(16, true, own)}, 2, true, 16, false},
		{"another is there", []any{txnAt(15, true, other), txnAt(16, true, own)}, 2, true, 16, false},
	} {
		s, c, store, _ := queuedOn(t, writer, position{phase: driver.Queued, rev: 7, before: before, beforeRev: 5, ahead: 1, asOf: 10}, tc.answers...)
		s.watch.since = 12
		err := s.confirm(c, c.position)
		if (err != nil) != tc.fails || len(store.sent) != tc.asked || (c.phase == driver.Held) != tc.held || c.asOf != tc.asOf {
			t.Errorf("%s: %v, %d calls, %+v", tc.name, err, len(store.sent), c.position)
		}
	}
	s, c, _, _ := queuedOn(t, writer, position{phase: driver.Queued, rev: 7, before: before, beforeRev: 5, asOf: 10}, txnAt(15, true, there))
	p := c.position
	c.before = "p:k/cc-dlock0" // a renewal has found it behind another meanwhile
	if err := s.confirm(c, p); err != nil || c.asOf != 10 {
		t.Errorf("%v, as of %d", err, c.asOf)
	}
}
