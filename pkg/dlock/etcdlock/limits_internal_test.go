package etcdlock

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Check reports how full the fullest member is, in percent of its quota.
func TestSpaceOfTheFullestMember(t *testing.T) {
	member := func(size, quota int64) *clientv3.StatusResponse {
		return (*clientv3.StatusResponse)(&pb.StatusResponse{DbSize: size, DbSizeQuota: quota})
	}
	for _, tc := range []struct {
		members []*clientv3.StatusResponse
		detail  string
		level   driver.Level
	}{
		{[]*clientv3.StatusResponse{member(500, 0)}, "the quota is not known", driver.OK},
		{[]*clientv3.StatusResponse{member(500, 1000), member(100, 1000)}, "50% of the quota in use", driver.OK},
		{[]*clientv3.StatusResponse{member(800, 1000), member(100, 1000)}, "80% of the quota in use", driver.OK},
		{[]*clientv3.StatusResponse{member(500, 1000), member(801, 1000)}, "80% of the quota in use", driver.Warning},
	} {
		if f := space(tc.members); f.Detail != tc.detail || f.Level != tc.level {
			t.Errorf("%+v, want %q", f, tc.detail)
		}
	}
}

// Attempts to reconnect follow each other quickly at first, then ever more slowly. The pauses are random, by up to a quarter.
func TestReconnectPause(t *testing.T) {
	for attempts, want := range map[int]time.Duration{
		0: reconnectEvery, 11: reconnectEvery, 12: 2 * reconnectEvery, 13: 4 * reconnectEvery, 100: maxReconnectPause,
	} {
		shortest, longest := time.Hour, time.Duration(0)
		for range 1000 {
			pause := reconnectPause(attempts)
			shortest, longest = min(shortest, pause), max(longest, pause)
		}
		if shortest < want*3/4 || longest > want*5/4 || longest-shortest < want/4 {
			t.Errorf("after %d attempts, pauses of %v to %v, want about %v", attempts, shortest, longest, want)
		}
	}
}

// Many readers of one process that wait for a writer are granted the lock with a few calls, and not with one for each.
func TestReadersAreGrantedTogether(t *testing.T) {
	t.Parallel()
	const readers = 40
	endpoint := testenv.Etcd(t).Endpoint()
	other, _ := openInternal(t, endpoint)
	writer := refTo("k", 1000, time.Minute)
	acquireHeld(t, other, driver.Request{Ref: writer})
	ops, counting := opsCounter()
	d, _ := openInternal(t, endpoint, counting)
	for i := range readers {
		ref := refTo("k", i, time.Minute)
		ref.QueueTTL = time.Minute
		if st, err := d.Acquire(t.Context(), driver.Request{Ref: ref, Wait: true, Mode: driver.Shared}); err != nil || st.Phase != driver.Queued {
			t.Fatalf("%v, %v", st, err)
		}
	}
	before := ops.Load()
	if _, err := other.Release(t.Context(), writer); err != nil {
		t.Fatal(err)
	}
	granted := map[string]bool{}
	late := time.After(time.Minute)
	for len(granted) < readers {
		select {
		case e := <-d.Events():
			if e.State.Phase == driver.Held {
				granted[e.ID] = true
			}
		case <-late:
			t.Fatalf("%d of %d readers have the lock", len(granted), readers)
		}
	}
	if n := ops.Load() - before; n >= readers {
		t.Errorf("%d operations for %d readers", n, readers)
	}
}

// A waiter whose turn comes nearer watches another key, and no longer the one before.
func TestWaiterEndsItsLastWatch(t *testing.T) {
	t.Parallel()
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint())
	d.cancel() // so that the wait for an event ends at once
	prefix := d.prefixOf("k")
	for name, c := range map[string]*claim{
		"the next claim": {position: position{before: prefix + "another"}},
		"any permit":     {kind: kind{mode: driver.Permit, limit: 1}},
	} {
		ended := false
		s := &queueWatcher{etcdDriver: d, served: c, queue: &waitQueue{key: "k", prefix: prefix, changed: make(chan struct{})}}
		s.watch = watch{key: prefix + "one", cancel: func() { ended = true }}
		if err := s.serve(c, c.position); !ended {
			t.Errorf("%s: the last watch has ended: %v, %v", name, ended, err)
		}
		s.stop()
	}
}
