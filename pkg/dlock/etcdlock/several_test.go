package etcdlock_test

import (
	"testing"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// Several keys without renewal have a lease each, as single ones have.
func TestAcquireAllWithoutRenewal(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	c := locksAt(t, server.Endpoint())
	keys := []string{"a", "b", "c"}
	all, err := c.AcquireAll(t.Context(), keys, dlock.WithoutRenewal())
	check(t, err)
	if n := countLeases(t, direct); n != len(keys) {
		t.Errorf("%d leases for %d locks", n, len(keys))
	}
	for _, key := range keys {
		if n := len(storedClaims(t, direct, key)); n != 1 {
			t.Errorf("%d claims on %s", n, key)
		}
	}
	check(t, all.Unlock(t.Context()))
	testenv.Eventually(t, patience, "the leases are revoked", func() bool { return countLeases(t, direct) == 0 })
}
