package etcdlock

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// ageLease lets so much of the lease of a claim have passed that a claim which joins it keeps it
// alive first.
func ageLease(d *etcdDriver, id string) clientv3.LeaseID {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.claims[id].lease
	l.renewed = l.renewed.Add(-l.ttl / 2)
	return l.id
}

// A claim joins a lease of which much has passed. It holds the lock only when the lease was kept
// alive as well.
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
