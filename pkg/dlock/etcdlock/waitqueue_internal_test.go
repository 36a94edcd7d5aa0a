package etcdlock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// What is recorded of a place: never that of an earlier claim under the key, nor anything after a grant; what is older than what is
// known only if it is a grant.
func TestRecordedPlaces(t *testing.T) {
	known := position{phase: driver.Queued, rev: 7, before: "b", beforeRev: 5, ahead: 2, asOf: 10}
	held := position{phase: driver.Held, rev: 7, asOf: 10}
	for _, tc := range []struct {
		name       string
		known, new position
		want       bool // the new place counts
	}{
		{"nearer", known, position{phase: driver.Queued, rev: 7, before: "a", ahead: 1, asOf: 11}, true},
		{"as old", known, position{phase: driver.Queued, rev: 7, before: "a", ahead: 1, asOf: 10}, true},
		{"older", known, position{phase: driver.Queued, rev: 7, before: "a", ahead: 3, asOf: 9}, false},
		{"an older grant", known, position{phase: driver.Held, rev: 7, asOf: 9}, true},
		{"of an earlier claim", known, position{phase: driver.Held, rev: 6, asOf: 20}, false},
		{"of a later claim", held, position{phase: driver.Queued, rev: 8, asOf: 20}, true},
		{"after the grant", held, position{phase: driver.Queued, rev: 7, asOf: 20}, false},
		{"the first", position{}, known, true},
	} {
		d, s, _ := onStore(t, writer)
		d.cancel() // nobody serves the queue
		c := s.claim
		c.position, c.text = tc.known, "text"
		other := &claim{key: "k", position: position{phase: driver.Queued, rev: 100}}
		d.queues["k"] = &waitQueue{key: "k", changed: make(chan struct{}, 1), waiting: []*claim{other}}
		d.setPosition(c, tc.new)
		want := tc.known
		if tc.want {
			want = tc.new
		}
		if c.position != want || tc.want && c.text != "" {
			t.Errorf("%s: %+v, text %q", tc.name, c.position, c.text)
		}
		refused := tc.new.rev < tc.known.rev || tc.known.phase == driver.Held && tc.new.rev == tc.known.rev
		waiting, queue := slices.Contains(d.queues["k"].waiting, c), d.queues["k"]
		if waiting != (!refused && c.phase == driver.Queued) {
			t.Errorf("%s: it waits: %v", tc.name, waiting)
		}
		if waiting && (queue.waiting[0] != c || len(queue.changed) != 1) {
			t.Errorf("%s: it is not served as the first", tc.name)
		}
	}
}

// Claims of a driver wait in the order of their creation, each once. Only a change of the first, or a claim that leaves, is one that
// the queue is told of.
func TestOrderOfAQueue(t *testing.T) {
	d, s, _ := onStore(t, writer)
	d.cancel()
	q := &waitQueue{key: "k", changed: make(chan struct{}, 1)}
	d.queues["k"] = q
	told := func() bool {
		select {
		case <-q.changed:
			return true
		default:
			return false
		}
	}
	var all []*claim
	for _, rev := range []int64{5, 9, 7, 3, 7} {
		c := &claim{key: "k", id: "x", lease: s.claim.lease}
		if rev == 7 && len(all) == 4 {
			c = all[2]
		}
		d.setPosition(c, position{phase: driver.Queued, rev: rev, asOf: 20})
		all = append(all, c)
		if first := rev == 5 || rev == 3; told() != first {
			t.Errorf("told of the claim of revision %d: %v", rev, !first)
		}
	}
	if want := []*claim{all[3], all[0], all[2], all[1]}; !slices.Equal(q.waiting, want) {
		t.Errorf("%d wait, in another order", len(q.waiting))
	}
	if !d.waits("k") || d.waits("other") || !d.isFirst(all[3]) || d.isFirst(all[0]) || !d.isFirst(&claim{key: "other"}) {
		t.Error("another one is the first")
	}
	d.leaveQueue(all[0])
	if !told() || len(q.waiting) != 3 || slices.Contains(q.waiting, all[0]) {
		t.Errorf("%d wait after one has left", len(q.waiting))
	}
	d.leaveQueue(&claim{key: "other"})
	for _, c := range slices.Clone(q.waiting) {
		d.leaveQueue(c)
	}
	if told(); len(q.waiting) != 0 || d.waits("k") {
		t.Errorf("%d wait", len(q.waiting))
	}
	if d.leaveQueue(all[0]); told() {
		t.Error("told of an empty queue")
	}
	if !d.isFirst(all[0]) {
		t.Error("nobody waits, and it would not be the first")
	}
}

// Who is told of a new place: not those that have ended, hold the lock or were swept; and of a place that is still one, nobody.
func TestWhoIsToldOfAPlace(t *testing.T) {
	queued, held, gone := position{phase: driver.Queued, rev: 7, asOf: 20}, position{phase: driver.Held, rev: 7, asOf: 20}, position{phase: driver.Gone}
	for _, tc := range []struct {
		name   string
		change func(d *etcdDriver, c *claim)
		p      position
		told   bool
	}{
		{"granted", nil, held, true},
		{"gone", nil, gone, true},
		{"still queued", nil, queued, false},
		{"ended", func(d *etcdDriver, c *claim) { delete(d.claims, c.id) }, held, false},
		{"another under the ID", func(d *etcdDriver, c *claim) { d.claims[c.id] = &claim{id: c.id} }, held, false},
		{"held before", func(_ *etcdDriver, c *claim) { c.phase = driver.Held }, gone, false},
		{"swept", func(_ *etcdDriver, c *claim) { c.swept = true }, held, false},
	} {
		d, s, _ := onStore(t, writer)
		d.cancel()
		c := s.claim
		c.position = position{phase: driver.Queued, rev: 7, asOf: 10}
		if tc.change != nil {
			tc.change(d, c)
		}
		was := c.phase
		d.notify(c, tc.p)
		if told := len(d.Events()) == 1; told != tc.told {
			t.Errorf("%s: told %v", tc.name, told)
		} else if told {
			want := driver.Event{Key: "k", ID: c.id, State: driver.State{Phase: tc.p.phase, Token: tc.p.rev}}
			if got := <-d.Events(); got != want {
				t.Errorf("%s: told %+v", tc.name, got)
			}
		}
		if !tc.told && tc.p.phase == driver.Held && c.phase != was {
			t.Errorf("%s: it is %v now", tc.name, c.phase)
		}
		if tc.told && tc.p.phase == driver.Gone && d.claims[c.id] != nil {
			t.Error("a claim that is gone is known")
		}
	}
}

// A scriptedLease answers what is left of a lease.
type scriptedLease struct {
	clientv3.Lease
	left  int64
	err   error
	asked int
}

func (l *scriptedLease) TimeToLive(context.Context, clientv3.LeaseID, ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	l.asked++
	return &clientv3.LeaseTimeToLiveResponse{TTL: l.left}, l.err
}

// Two keys on a lease that are deleted at one revision have probably gone with it: it is asked for, once, and the locks on it are lost if
// it is gone. An answer that it is about to end, or none, shows nothing.
func TestLeaseIsCheckedAfterTwoLosses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		revs   []int64
		change func(d *etcdDriver, c *claim)
		left   int64
		err    error
		asked  int
		dead   bool
		told   int
	}{
		{"two at one revision", []int64{9, 9}, nil, -1, nil, 1, true, 3},
		{"three at one revision", []int64{9, 9, 9}, nil, -1, nil, 1, true, 3},
		{"two apart", []int64{9, 10}, nil, -1, nil, 0, false, 2},
		{"at an unknown revision", []int64{0, 0}, nil, -1, nil, 0, false, 2},
		{"it lives", []int64{9, 9}, nil, 30, nil, 1, false, 2},
		{"it is about to end", []int64{9, 9}, nil, 0, nil, 1, false, 2},
		{"no answer", []int64{9, 9}, nil, -1, errors.New("broken"), 1, false, 2},
		{"being released", []int64{9}, func(_ *etcdDriver, c *claim) { c.ending = true }, -1, nil, 0, false, 0},
		{"not known", []int64{9}, func(d *etcdDriver, c *claim) { delete(d.claims, c.id) }, -1, nil, 0, false, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			d, s, _ := onStore(t, writer)
			lease := &scriptedLease{left: tc.left, err: tc.err}
			d.client.Lease = lease
			l := s.claim.lease
			var all []*claim
			for i := range 3 {
				ref := refTo("k", i, time.Minute)
				c := &claim{key: "k", id: ref.ID, own: ref.ID, lease: l, number: d.number("k")}
				c.phase = driver.Held
				d.claims[c.id], l.claims[c.id] = c, c
				all = append(all, c)
			}
			d.mu.Lock()
			d.forget(s.claim)
			if tc.change != nil {
				tc.change(d, all[0])
			}
			for i, rev := range tc.revs {
				d.lose(all[i], rev)
			}
			d.mu.Unlock()
			synctest.Wait()
			if lease.asked != tc.asked || l.dead != tc.dead || l.verifying {
				t.Errorf("%s: asked %d times, dead %v", tc.name, lease.asked, l.dead)
			}
			if told := d.losses.take(); len(told) != tc.told {
				t.Errorf("%s: told of %d losses", tc.name, len(told))
			}
			if inUse := d.leases[l.seconds] == l; inUse == l.dead {
				t.Errorf("%s: claims join it: %v", tc.name, inUse)
			}
		})
	}
}

// Claims that were not renewed for too long are released, though others keep their lease alive: after a third of their time more, and a
// second at most. If that fails, it is tried again.
func TestSilentClaimsOfALease(t *testing.T) {
	for _, tc := range []struct {
		span, silent time.Duration
		swept        bool
	}{
		{time.Minute, 61 * time.Second, false},
		{time.Minute, 61*time.Second + 1, true},
		{600 * time.Millisecond, 800 * time.Millisecond, false},
		{600 * time.Millisecond, 800*time.Millisecond + 1, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			d, s, store := onStore(t, writer, rpctypes.ErrNoLeader)
			d.tombstones.id, d.tombstones.end = 5, time.Now().Add(24*time.Hour)
			c := s.claim
			c.phase, c.span, c.seen = driver.Held, tc.span, time.Now()
			d.queues["k"] = &waitQueue{key: "k", changed: make(chan struct{}, 1), waiting: []*claim{c}}
			time.Sleep(tc.silent)
			d.sweep(c.lease)
			d.mu.Lock()
			swept, waits := c.swept, d.waits("k")
			d.mu.Unlock()
			if swept != tc.swept || waits == tc.swept {
				t.Errorf("%v after %v: swept %v, waits %v", tc.silent, tc.span, swept, waits)
			}
			synctest.Wait()
			calls := len(store.sent)
			if c.sweeping || (calls > 0) != tc.swept || d.claims[c.id] != c {
				t.Errorf("%v after %v: sweeping %v, after %d calls", tc.silent, tc.span, c.sweeping, calls)
			}
			if !tc.swept {
				return
			}
			store.mu.Lock()
			store.answers = []any{txnAt(30, true, &pb.RangeResponse{Kvs: rangeOf(kvAt(c.own, 7)).Kvs})}
			store.mu.Unlock()
			c.seen = time.Now() // it has come back, and is gone all the same
			d.sweep(c.lease)
			d.sweep(c.lease)
			synctest.Wait()
			if n := len(store.sent) - calls; d.claims[c.id] != nil || n != 1 {
				t.Errorf("released with %d calls; known: %v", n, d.claims[c.id] != nil)
			}
		})
	}
}
