package etcdlock

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// ageLease makes the lease of a claim so old that a claim that joins it must keep it alive first.
func ageLease(d *etcdDriver, id string) clientv3.LeaseID {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.claims[id].lease
	l.renewed = l.renewed.Add(-l.ttl / 2)
	return l.id
}

// A claim joins an old lease. It holds the lock only after the lease was kept alive as well.
func TestClaimOnAnAgedLeaseKeepsItAlive(t *testing.T) {
	t.Parallel()
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint())
	const ttl = time.Minute
	first := refTo("first", 1, ttl)
	acquireHeld(t, d, driver.Request{Ref: first})
	ageLease(d, first.ID)
	began := time.Now()
	st := acquireHeld(t, d, driver.Request{Ref: refTo("k", 2, ttl)})
	if st.Until.Before(began.Add(ttl)) {
		t.Errorf("valid for %v from the start of the call", st.Until.Sub(began))
	}
}

// The lease of a claim is revoked after the claim was stored and before the lease was kept alive.
// The claim is deleted with it. It is stored once more on another lease, and the caller does not
// notice.
func TestLeaseGoneWhileAcquiring(t *testing.T) {
	t.Parallel()
	d, client := openInternal(t, testenv.Etcd(t).Endpoint())
	const ttl = time.Minute
	for i := 1; ; i += 2 {
		first, second := refTo("first", i, ttl), refTo("k", i+1, ttl)
		acquireHeld(t, d, driver.Request{Ref: first})
		lease, began := ageLease(d, first.ID), time.Now()
		st, err := acquireWhile(t, d, second, func() {
			testenv.Eventually(t, patience, "the claim is stored", func() bool { return len(keysOn(t, d, client, "k", lease)) == 1 })
			if _, err := client.Revoke(t.Context(), lease); err != nil {
				t.Fatal(err)
			}
		})
		if errors.Is(err, context.DeadlineExceeded) && testenv.Stalled(t, began, time.Second) { // a keep-alive has two seconds
			t.Log("the machine stalled, once more")
			_, _ = d.Release(t.Context(), second)
			_, _ = d.Release(t.Context(), first)
			continue
		}
		if err != nil || st.Phase != driver.Held {
			t.Fatalf("%v, %v: not granted", st.Phase, err)
		}
		if n := len(keysOn(t, d, client, "k", lease)); n != 0 {
			t.Errorf("%d keys on the lease that is gone", n)
		}
		if states := renewed(t, d, second); states[0].Phase != driver.Held || states[0].Token != st.Token {
			t.Errorf("%v: want it held with token %d", states, st.Token)
		}
		return
	}
}

// acquireWhile acquires a claim, and calls happens before its keep-alive is sent.
func acquireWhile(t *testing.T, d *etcdDriver, r driver.Ref, happens func()) (driver.State, error) {
	t.Helper()
	type result struct {
		st  driver.State
		err error
	}
	got := make(chan result, 1)
	d.alive.mu.Lock() // keep-alives wait for it
	go func() {
		st, err := d.Acquire(t.Context(), driver.Request{Ref: r})
		got <- result{st, err}
	}()
	func() {
		defer d.alive.mu.Unlock()
		happens()
	}()
	one := <-got
	return one.st, one.err
}

// keysOn returns the keys of a lock that are attached to a lease.
func keysOn(t *testing.T, d *etcdDriver, client *clientv3.Client, key string, lease clientv3.LeaseID) (keys []string) {
	t.Helper()
	resp, err := client.Get(t.Context(), d.prefixOf(key), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		if kv.Lease == int64(lease) {
			keys = append(keys, string(kv.Key))
		}
	}
	return keys
}

// A claim for a queue waits in the process while as many as are allowed are being submitted. If its caller leaves, nothing
// was sent.
func TestEnqueueingIsLimited(t *testing.T) {
	t.Parallel()
	d, _ := openInternal(t, testenv.Etcd(t).Endpoint())
	acquireHeld(t, d, driver.Request{Ref: refTo("k", 1, time.Minute)})
	if st, err := d.Acquire(t.Context(), driver.Request{Ref: refTo("k", 3, time.Minute), Wait: true}); err != nil || st.Phase != driver.Queued {
		t.Fatal(st, err) // from now on the key is known to be busy
	}
	for range maxEnqueuing {
		d.enqueuing <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiter := driver.Request{Ref: refTo("k", 2, time.Minute), Wait: true}
	ended := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, waiter)
		ended <- err
	}()
	known := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.claims)
	}
	testenv.Eventually(t, patience, "it is to be submitted", func() bool { return known() == 3 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || driver.ClassOf(err) != driver.Transient {
		t.Errorf("the error is %v", err)
	}
	if n := known(); n != 2 {
		t.Errorf("%d claims are known, want the first two", n)
	}
	<-d.enqueuing
	st, err := d.Acquire(t.Context(), waiter)
	if err != nil || st.Phase != driver.Queued || len(d.enqueuing) != maxEnqueuing-1 {
		t.Errorf("%v, %v, and %d are being submitted", st, err, len(d.enqueuing))
	}
}

// A claim with a lease of its own asks for that lease when there is room for the claim, not before.
func TestNoLeaseWithoutRoom(t *testing.T) {
	t.Parallel()
	d, client := openInternal(t, testenv.Etcd(t).Endpoint())
	acquireHeld(t, d, driver.Request{Ref: refTo("k", 1, time.Minute)})
	for range maxEnqueuing {
		d.enqueuing <- struct{}{}
	}
	leases := func() int {
		all, err := client.Leases(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all.Leases)
	}
	before, waiter := leases(), driver.Request{Ref: refTo("k", 2, time.Minute), Wait: true, Fixed: true}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if st, err := d.Acquire(ctx, waiter); !errors.Is(err, sharedtimeout.ErrNoRoom) || driver.ClassOf(err) != driver.Transient {
		t.Errorf("%v, %v", st, err)
	}
	if n := leases(); n != before {
		t.Errorf("%d leases, before it was %d", n, before)
	}
	<-d.enqueuing
	st, err := d.Acquire(t.Context(), waiter)
	if err != nil || st.Phase != driver.Queued || len(d.enqueuing) != maxEnqueuing-1 || leases() != before+1 {
		t.Errorf("%v, %v, %d are being submitted, %d leases", st, err, len(d.enqueuing), leases())
	}
}
