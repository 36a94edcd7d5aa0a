package etcdlock

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// The caller's own claim is not counted among the waiters, and nothing is subtracted for one that is deleted already.
func TestLookCountsOtherWaiters(t *testing.T) {
	t.Parallel()
	endpoint := testenv.Etcd(t).Endpoint()
	d, _ := openInternal(t, endpoint)
	other, _ := openInternal(t, endpoint)
	own := refTo("k", 3, time.Minute)
	acquireHeld(t, d, driver.Request{Ref: refTo("k", 1, time.Minute)})
	for _, r := range []struct {
		*etcdDriver
		driver.Ref
	}{{other, refTo("k", 2, time.Minute)}, {d, own}} {
		if st, err := r.Acquire(t.Context(), driver.Request{Ref: r.Ref, Wait: true}); err != nil || st.Phase != driver.Queued {
			t.Fatalf("%v, %v", st, err)
		}
	}
	released := refTo("k", 4, time.Minute) // as it is known here until its release is answered
	d.mu.Lock()
	d.claims[released.ID] = &claim{id: released.ID, key: "k", position: position{phase: driver.Queued}}
	d.mu.Unlock()
	for id, want := range map[string]int{own.ID: 1, released.ID: 2, "": 2} {
		if _, n, err := d.Look(t.Context(), "k", id); n != want || err != nil {
			t.Errorf("except %q: %d waiters, want %d, %v", id, n, want, err)
		}
	}
	d.mu.Lock()
	delete(d.claims, released.ID)
	d.mu.Unlock()
}

// Other data among the first keys, and after them, is not counted.
func TestLookOmitsOtherData(t *testing.T) {
	t.Parallel()
	d, client := openInternal(t, testenv.Etcd(t).Endpoint())
	acquireHeld(t, d, driver.Request{Ref: refTo("k", 1000, time.Minute)})
	note := func(name string) {
		t.Helper()
		if _, err := client.Put(t.Context(), d.prefixOf("k")+name, ""); err != nil {
			t.Fatal(err)
		}
	}
	note("note")
	enqueued(t, d, 0, near)
	note("another note")
	if _, n, err := d.Look(t.Context(), "k", ""); n != near || err != nil {
		t.Errorf("%d waiters, want %d, %v", n, near, err)
	}
}
