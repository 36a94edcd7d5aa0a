package etcdlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// etcd restarts all leases when it has a leader again, so a lock that was lost during an outage
// exists again afterwards, however long the outage was. Close releases it.
func TestLostLockAfterALongOutage(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	c := locksOn(t, dial(t, server.Endpoint()), dlock.Config{})
	g := acquire(t, c, "k", dlock.WithTTL(ttl))
	check(t, server.Kill())
	<-g.Done()
	time.Sleep(2*ttl + time.Second) // by the clock, the lease is over
	check(t, server.Restart(context.Background(), true))
	unlock(t, acquire(t, c, "other")) // the client is connected again
	check(t, c.Close())
	if left := storedClaims(t, direct, "k"); len(left) > 0 {
		t.Errorf("Close left %v", left)
	}
}
