package etcdlock

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// The renewal of a claim whose lease was revoked says that the claim is gone, and not that it is unknown.
func TestRenewalOfARevokedLease(t *testing.T) {
	t.Parallel()
	d, client := openInternal(t, testenv.Etcd(t).Endpoint())
	for i := range 50 {
		ref := refTo("k", i, time.Minute)
		acquireHeld(t, d, driver.Request{Ref: ref, Fixed: true})
		d.mu.Lock()
		lease := d.claims[ref.ID].lease.id
		d.mu.Unlock()
		_, err := client.Revoke(t.Context(), lease)
		if err != nil {
			t.Fatal(err)
		}
		states, err := d.Renew(t.Context(), []driver.Ref{ref})
		if err != nil || states[0].Phase != driver.Gone {
			t.Fatalf("round %d: %v, %v", i, states, err)
		}
	}
}
