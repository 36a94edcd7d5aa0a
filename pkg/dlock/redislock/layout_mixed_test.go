package redislock

import "testing"

// Processes of two layouts share the lock, but no queue: each would store a grant in its own form, and the
// waiter of the other layout could not renew it. Layout 1 had the suffixes q and w, layout 2 z and h.
func TestLayoutsDoNotShareAQueue(t *testing.T) {
	n, err := (&redisDriver{}).namesOf("k")
	if err != nil {
		t.Fatal(err)
	}
	for _, old := range []string{"q", "w", "z", "h"} {
		if name := "{k}" + separator + old; n.queue == name || n.waiters == name || n.holders == name {
			t.Errorf("an older layout uses %q", name)
		}
	}
}
