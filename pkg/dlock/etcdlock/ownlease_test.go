package etcdlock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Keys on the lease of a lock live as long as the lock is renewed, and end with it. Other locks keep theirs.
func TestKeysOnTheLeaseOfALock(t *testing.T) {
	t.Parallel()
	client := dial(t, testenv.Etcd(t).Endpoint())
	locks := locksOn(t, client, dlock.Config{DefaultTTL: 10 * time.Second}) // much is left when it is renewed
	ctx := t.Context()
	attach := func(key string) *dlock.Guard {
		t.Helper()
		g, err := locks.Acquire(ctx, key, dlock.WithOwnLease())
		check(t, err)
		lease, err := etcdlock.LeaseOf(g)
		check(t, err)
		_, err = client.Put(ctx, "address of "+key, "10.0.0.7", clientv3.WithLease(lease))
		check(t, err)
		return g
	}
	stored := func(key string) bool {
		resp, err := client.Get(ctx, "address of "+key)
		check(t, err)
		return resp.Count == 1
	}
	first, second := attach("first"), attach("second")
	outlive(t, first, second)
	if !stored("first") || !stored("second") {
		t.Fatal("a key ended before its lock")
	}
	check(t, first.Extend(ctx, first.TTL()))
	expect(t, first.Extend(ctx, time.Minute), dlock.ErrUnsupported)
	unlock(t, first)
	testenv.Eventually(t, patience, "the key ends with its lock", func() bool { return !stored("first") })
	if !stored("second") || second.Err() != nil {
		t.Errorf("the key of another lock ended: %v", second.Err())
	}
	_, err := etcdlock.LeaseOf(first)
	expect(t, err, dlock.ErrLockNotHeld)
	unlock(t, second)
}

// A lock without a lease of its own does not show the one that it shares.
func TestSharedLeaseIsNotShown(t *testing.T) {
	t.Parallel()
	locks := locksOn(t, dial(t, testenv.Etcd(t).Endpoint()), dlock.Config{})
	g := acquire(t, locks, "k")
	_, err := etcdlock.LeaseOf(g)
	expect(t, err, dlock.ErrUnsupported)
	unlock(t, g)
	check(t, locks.Lock(t.Context(), "k"))
	expect(t, locks.Lock(t.Context(), "k", dlock.WithOwnLease()), dlock.ErrLockAlreadyHeld)
	check(t, locks.Unlock(t.Context(), "k"))
	memory, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()))
	check(t, err)
	_, err = locks.Acquire(t.Context(), "k", dlock.WithOwnLease(), dlock.WithoutRenewal())
	expect(t, err, dlock.ErrInvalidConfig)
	_, err = memory.Acquire(t.Context(), "k", dlock.WithOwnLease())
	expect(t, err, dlock.ErrUnsupported)
	check(t, memory.Close())
}

// namedHolder tries to acquire a lock that another holds, and returns an error that names the holder. A call looks for the
// holder for 250 ms only, so it is repeated if it took half of that.
func namedHolder(t *testing.T, c *dlock.Client, key string) (e *dlock.Error) {
	t.Helper()
	for tries := 0; ; {
		began := time.Now()
		_, err := c.TryAcquire(t.Context(), key)
		if hazardtest.GaveUp(t, err, began) {
			continue
		}
		wantError(t, err, dlock.ErrLockHeldByOther)
		if errors.As(err, &e) && e.Holder != nil {
			return e
		}
		if tries++; time.Since(began) < testenv.UnderStress(125*time.Millisecond, time.Hour) || tries > 5 {
			t.Fatalf("no holder is named: %v", err)
		}
	}
}

// The holder is found among other data below the name of its lock.
func TestHolderAmongOtherData(t *testing.T) {
	t.Parallel()
	client := dial(t, testenv.Etcd(t).Endpoint())
	locks := locksOn(t, client, dlock.Config{})
	for i := range 40 {
		_, err := client.Put(t.Context(), fmt.Sprintf("k/data-%d", i), "x")
		check(t, err)
	}
	g := acquire(t, locks, "k")
	if e := namedHolder(t, locks, "k"); e.Holder.Token != g.Token() || e.Waiters != 0 {
		t.Errorf("another holder is named: %v", e)
	}
	unlock(t, g)
}
