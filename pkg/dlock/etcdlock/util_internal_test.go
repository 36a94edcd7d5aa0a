package etcdlock

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// patience is for events that must happen, at any time.
const patience = time.Minute

// openInternal returns a driver whose internals a test may examine, and its client.
func openInternal(t *testing.T, endpoint string, opts ...grpc.DialOption) (*etcdDriver, *clientv3.Client) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialOptions: opts})
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

// refTo names a claim on a key.
func refTo(key string, id int, ttl time.Duration) driver.Ref {
	return driver.Ref{Key: key, ID: fmt.Sprintf("%032x", id), TTL: ttl}
}

// acquireHeld submits a claim that must be granted at once, again if a server has not granted a lease in time because the
// machine stalled.
func acquireHeld(t *testing.T, d driver.Driver, r driver.Request) driver.State {
	t.Helper()
	began := time.Now()
	st, err := d.Acquire(t.Context(), r)
	for err != nil && driver.ClassOf(err) == driver.Transient && testenv.Stalled(t, began, time.Second) {
		t.Logf("the machine stalled, so the call is repeated: %v", err)
		began = time.Now()
		st, err = d.Acquire(t.Context(), r)
	}
	if err != nil || st.Phase != driver.Held {
		t.Fatalf("%v, %v: not granted", st, err)
	}
	return st
}

// Answered makes a call, and repeats it if it failed while the machine stalled: the driver gives a server two seconds for a
// lease or a keep-alive, and one for the lease of its tombstones.
func Answered(t testing.TB, call func() error) {
	t.Helper()
	for began := time.Now(); ; began = time.Now() {
		err := call()
		if err == nil {
			return
		}
		if driver.ClassOf(err) == driver.Fatal || !testenv.Stalled(t, began, time.Second) {
			t.Fatal(err)
		}
		t.Logf("the machine stalled, so the call is repeated: %v", err)
	}
}

// renewed renews claims, and returns their states.
func renewed(t *testing.T, d driver.Driver, refs ...driver.Ref) (states []driver.State) {
	t.Helper()
	Answered(t, func() (err error) { states, err = d.Renew(t.Context(), refs); return err })
	return states
}

// SlowestWrite returns how long the slowest of the writes took that a server carried out during a call: it shows whether the
// server stalled, or its disk.
func SlowestWrite(t testing.TB, client *clientv3.Client, call func()) (slowest time.Duration) {
	t.Helper()
	done := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for {
			began := time.Now()
			_, err := client.Put(t.Context(), "slowest write", "")
			if err != nil {
				t.Error(err)
			}
			slowest = max(slowest, time.Since(began))
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	func() { // which may end the test
		defer writing.Wait()
		defer close(done)
		call()
	}()
	return slowest
}

// stacks returns the stacks of all goroutines.
func stacks() string {
	text := make([]byte, 1<<20)
	return string(text[:runtime.Stack(text, true)])
}
