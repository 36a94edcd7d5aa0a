package etcdlock_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Claims of a batch that another party has removed, the first, the last or all of them, are stored once when the batch is
// submitted again, with the tokens that the driver reports.
func TestBatchWithRemovedClaimsIsStoredOnce(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	d := openDriver(t, dial(t, server.Endpoint()))
	batcher := d.(driver.Batcher)
	keys := []string{"a", "b", "c"}
	submit(t, d, refOf("other", 0)) // it keeps the lease that they share
	for round, removed := range [][]string{keys[:1], keys[1:], keys} {
		var rs []driver.Request
		var refs []driver.Ref
		for i, key := range keys {
			refs = append(refs, refOf(key, 1+10*round+i))
			rs = append(rs, driver.Request{Ref: refs[i]})
		}
		acquire := func() (states []driver.State) {
			answered(t, func() (err error) { states, err = batcher.AcquireBatch(t.Context(), rs); return err })
			return states
		}
		acquire()
		for _, key := range removed {
			removeClaims(t, direct, key)
		}
		for i, st := range acquire() {
			stored := storedClaims(t, direct, keys[i])
			switch {
			case st.Phase == driver.Held && (len(stored) != 1 || stored[0].CreateRevision != st.Token):
				t.Fatalf("%s is held with token %d, and %v are stored", keys[i], st.Token, stored)
			case st.Phase == driver.Held:
				if now := renew(t, d, refs[i]); now.Phase != driver.Held || now.Token != st.Token {
					t.Fatalf("held %d became %v %d by a renewal", st.Token, now.Phase, now.Token)
				}
			case i == 0 || keys[i] == removed[0]: // those behind a new one need not be Held, and are released all the same
				t.Fatalf("%s is %v, though it was free", keys[i], st.Phase)
			}
		}
		for i, r := range refs {
			answered(t, func() error { _, err := d.Release(t.Context(), r); return err })
			if left := storedClaims(t, direct, keys[i]); len(left) > 0 {
				t.Fatalf("a release leaves %v", left)
			}
		}
	}
}

// removeClaims deletes the claims on a lock, as another party may.
func removeClaims(t *testing.T, direct *clientv3.Client, key string) {
	t.Helper()
	for _, kv := range storedClaims(t, direct, key) {
		_, err := direct.Delete(t.Context(), string(kv.Key))
		check(t, err)
	}
}

// A waiter that another party has removed, and that is submitted again, is granted the lock after those that came
// meanwhile.
func TestRemovedWaiterGoesToTheEnd(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	d := openDriver(t, dial(t, server.Endpoint()))
	holder, removed, next := refOf("k", 1), refOf("k", 2), refOf("k", 3)
	for _, r := range []driver.Ref{holder, removed, next} {
		submit(t, d, r)
	}
	_, err := direct.Delete(t.Context(), string(storedClaims(t, direct, "k")[1].Key))
	check(t, err)
	if st := submit(t, d, removed); st.Phase != driver.Queued {
		t.Fatalf("the removed waiter is %v", st.Phase)
	}
	for _, r := range []driver.Ref{next, removed} { // the holders end without a release, which would tell the next
		first := storedClaims(t, direct, "k")[0]
		_, err := direct.Delete(t.Context(), string(first.Key))
		check(t, err)
		ev := nextEvent(t, d)
		for ev.State.Phase == driver.Gone { // that holder
			ev = nextEvent(t, d)
		}
		if ev.ID != r.ID || ev.State.Phase != driver.Held || ev.State.Token <= first.CreateRevision {
			t.Fatalf("told %v of claim %s, want %s", ev.State.Phase, ev.ID[30:], r.ID[30:])
		}
	}
}
