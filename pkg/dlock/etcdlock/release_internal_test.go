package etcdlock

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// openInternal returns a driver whose insides a test may look at, and its client.
func openInternal(t *testing.T, endpoint string) (*etcdDriver, *clientv3.Client) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	d, err := New(client).Open(driver.Options{Prefix: "p:", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d.(*etcdDriver), client
}

// refTo names a claim on a key; id is one hexadecimal digit.
func refTo(key, id string, ttl time.Duration) driver.Ref {
	return driver.Ref{Key: key, ID: strings.Repeat(id, 32), TTL: ttl}
}

// acquireHeld files a claim that must be granted at once.
func acquireHeld(t *testing.T, d driver.Driver, r driver.Request) driver.State {
	t.Helper()
	st, err := d.Acquire(t.Context(), r)
	if err != nil || st.Phase != driver.Held {
		t.Fatalf("%v, %v: not granted", st, err)
	}
	return st
}

// A release stalls between its decision to delete without looking and the delete itself.
// Meanwhile the claim is found gone, and the next claim of the process is granted the
// lock: the delete must not hit that one's key.
func TestStalledReleaseSparesTheNextHolder(t *testing.T) {
	t.Parallel()
	d, client := openInternal(t, testenv.Etcd(t).Endpoint())
	first, second := refTo("k", "a", 10*time.Second), refTo("k", "b", 10*time.Second)
	acquireHeld(t, d, driver.Request{Ref: first})
	d.bars.mu.Lock() // Release takes it after its decision
	released := make(chan error, 1)
	go func() {
		_, err := d.Release(t.Context(), first)
		released <- err
	}()
	testenv.Eventually(t, 10*time.Second, "the release waits", func() bool {
		return strings.Contains(stacks(), "(*barLease).current")
	})
	if _, err := client.Delete(t.Context(), d.lineOf("k"), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	states, err := d.Renew(t.Context(), []driver.Ref{first})
	if err != nil || states[0].Phase != driver.Gone {
		t.Fatalf("%v, %v: the claim is deleted", states, err)
	}
	granted := acquireHeld(t, d, driver.Request{Ref: second})
	d.bars.mu.Unlock()
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(t.Context(), d.lineOf("k"), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) != 1 || resp.Kvs[0].CreateRevision != granted.Token {
		t.Errorf("a late release deleted the key of the next holder, token %d: left is %v", granted.Token, resp.Kvs)
	}
}
