package etcdlock

import (
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A release stalls between its decision how to delete and the delete itself. Meanwhile the claim is
// found gone, and the next claim of the process is granted the lock: the delete must not remove
// that claim's key. A delete without a comparison has kept the next claim from using that key; a
// delete with one compares the revision.
func TestStalledReleaseSparesTheNextHolder(t *testing.T) {
	t.Parallel()
	t.Run("without looking", func(t *testing.T) { stallRelease(t, false) })
	t.Run("comparing", func(t *testing.T) { stallRelease(t, true) })
}

func stallRelease(t *testing.T, unanswered bool) {
	d, client := openInternal(t, testenv.Etcd(t).Endpoint())
	first, second := refTo("k", 1, time.Minute), refTo("k", 2, time.Minute)
	first.Unanswered = unanswered
	acquireHeld(t, d, driver.Request{Ref: first})
	warm := refTo("warm", 3, time.Minute)
	warm.Unanswered = true
	// It makes the lease of the tombstones.
	Answered(t, func() error { _, err := d.Release(t.Context(), warm); return err })
	d.tombstones.mu.Lock() // Release takes it after its decision
	released := make(chan error, 1)
	go func() {
		_, err := d.Release(t.Context(), first)
		released <- err
	}()
	testenv.Eventually(t, patience, "the release waits", func() bool {
		return strings.Contains(stacks(), "(*tombstoneLease).current")
	})
	if _, err := client.Delete(t.Context(), d.prefixOf("k"), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if states := renewed(t, d, first); states[0].Phase != driver.Gone {
		t.Fatalf("%v: the claim is deleted", states)
	}
	granted := acquireHeld(t, d, driver.Request{Ref: second})
	d.mu.Lock()
	reused := d.claims[second.ID].number == 0
	d.mu.Unlock()
	if reused != unanswered {
		t.Errorf("the next claim has the key of the first: %v, want %v", reused, unanswered)
	}
	d.tombstones.mu.Unlock()
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(t.Context(), d.prefixOf("k"), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) != 1 || resp.Kvs[0].CreateRevision != granted.Token {
		t.Errorf("a late release deleted the key of the next holder, token %d: left is %v", granted.Token, resp.Kvs)
	}
}
