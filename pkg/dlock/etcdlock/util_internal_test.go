package etcdlock

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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

// Writes records how long a server takes for the writes of a plain client, which shows whether the server is slow, or its disk.
type Writes struct {
	mu    sync.Mutex
	spans []*writeSpan
}

// A writeSpan is when a write was under way. One that is not answered has no end.
type writeSpan struct{ began, ended time.Time }

// Record makes a write, and records how long it takes, whether it fails or not.
func (w *Writes) Record(write func() error) error {
	span := &writeSpan{began: time.Now()}
	w.mu.Lock()
	w.spans = append(w.spans, span)
	w.mu.Unlock()
	err := write()
	w.mu.Lock()
	defer w.mu.Unlock()
	span.ended = time.Now()
	return err
}

// Slowest returns how long the slowest write took that had not ended before a time.
func (w *Writes) Slowest(since time.Time) (slowest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, span := range w.spans {
		switch {
		case span.ended.IsZero():
			slowest = max(slowest, time.Since(span.began))
		case span.ended.After(since):
			slowest = max(slowest, span.ended.Sub(span.began))
		}
	}
	return slowest
}

const (
	writeTimeout = 30 * time.Second      // a server that hangs must not hang the test
	writePause   = 15 * time.Millisecond // the writes must not slow down the disk that they measure
)

// KeepWriting records writes until stop is called, which waits for the last one.
func (w *Writes) KeepWriting(t testing.TB, client *clientv3.Client) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var writing sync.WaitGroup
	write := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), writeTimeout)
		defer cancel()
		_, err := client.Put(ctx, "slowest write", "")
		return err
	}
	writing.Go(func() {
		for {
			err := w.Record(write)
			if err != nil { // a server that is slow enough says so
				t.Logf("a write that measures the server: %v", err)
			}
			select {
			case <-done:
				return
			case <-time.After(writePause):
			}
		}
	})
	return func() {
		close(done)
		writing.Wait()
	}
}

// SlowestWrite returns how long the slowest write took that a server had to carry out during a call.
func SlowestWrite(t testing.TB, client *clientv3.Client, call func()) time.Duration {
	t.Helper()
	var writes Writes
	stop := writes.KeepWriting(t, client)
	func() { // which may end the test
		defer stop()
		call()
	}()
	return writes.Slowest(time.Time{})
}

// A server that is too slow to answer a write fails no test: it is slow for as long as that takes.
func TestSlowestWriteOfAServerThatTimesOut(t *testing.T) {
	t.Parallel()
	const timeout = 50 * time.Millisecond
	failed := make(chan struct{}, 1)
	answer := func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
		<-time.After(timeout)
		select {
		case failed <- struct{}{}:
		default:
		}
		return rpctypes.ErrGRPCTimeout
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://127.0.0.1:1"}, Logger: zap.NewNop(), // it is not reached
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(answer)},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	slowest := SlowestWrite(t, client, func() { <-failed })
	if slowest < timeout {
		t.Errorf("the slowest write took %v, and none was answered within %v", slowest, timeout)
	}
}

// stacks returns the stacks of all goroutines.
func stacks() string {
	text := make([]byte, 1<<20)
	return string(text[:runtime.Stack(text, true)])
}
