package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// wantRefused expects the error of a server that refuses connections.
func wantRefused(t *testing.T, err error) {
	t.Helper()
	wantUnavailable(t, err)
	if err != nil && !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the cause is lost: %v", err)
	}
}

// wantUnavailable expects the error of calls that were not sent.
func wantUnavailable(t *testing.T, err error) {
	t.Helper()
	switch {
	case !errors.Is(err, dlock.ErrUnavailable), errors.Is(err, dlock.ErrUnknownOutcome):
		t.Errorf("error is %v, want only %v", err, dlock.ErrUnavailable)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		t.Errorf("%v is taken for the end of the caller's context", err)
	}
}

// awaitRefusal waits until a client is refused: a connection that was cut, or was opened while the
// server ended, has another error.
func awaitRefusal(t *testing.T, client *clientv3.Client) {
	t.Helper()
	kv := pb.NewKVClient(client.ActiveConnection())
	testenv.Eventually(t, patience, "the client is refused", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("k")}, grpc.WaitForReady(false))
		return err != nil && strings.Contains(err.Error(), "connection refused")
	})
}

// allRefused expects that error of a call. If the machine stalled, so that none of its attempts had the time to learn the cause,
// the error is only unavailable, and the call is repeated. The shortest has 300 ms.
func allRefused(t *testing.T, call func() error) {
	t.Helper()
	for {
		began := time.Now()
		err := call()
		starved := err != nil && strings.Contains(err.Error(), "context deadline exceeded") && !strings.Contains(err.Error(), "connection")
		if !starved || !testenv.Stalled(t, began, 150*time.Millisecond) {
			wantRefused(t, err)
			return
		}
		wantUnavailable(t, err)
	}
}

// A server that refuses connections is reported as such at once and each time, with or without a
// lease, and there is nothing to clean up.
func TestRefusedIsUnavailable(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	client := dial(t, urlOf(proxy))
	withLease := locksOn(t, client, dlock.Config{DefaultTTL: time.Minute})
	warm(t, withLease)
	check(t, proxy.Shut()) // nothing listens from then on
	awaitRefusal(t, client)
	for name, c := range map[string]*dlock.Client{
		"no lease":   clientAt(t, "http://127.0.0.1:1", dlock.Config{DefaultTTL: time.Minute}),
		"with lease": withLease,
	} {
		t.Run(name, func(t *testing.T) {
			testenv.StartMetronome(t)
			quickest := time.Hour
			for range 4 {
				allRefused(t, func() error {
					began := time.Now()
					_, err := c.TryLock(context.Background(), "k")
					quickest = min(quickest, time.Since(began))
					return err
				})
				allRefused(t, func() error {
					_, err := c.TryAcquire(context.Background(), "k")
					return err
				})
				allRefused(t, func() error {
					_, err := c.Acquire(context.Background(), "k", dlock.WithWait(300*time.Millisecond))
					return err
				})
			}
			if quickest > time.Second { // each takes two if the client repeats itself
				t.Errorf("TryLock took %v at least", quickest)
			}
			began := time.Now()
			err := c.Close()
			took := time.Since(began)
			if err != nil || took > testenv.UnderStress(beforeLease, time.Second) { // with something to clean up it is an error
				t.Errorf("Close: %v after %v", err, took)
			}
		})
	}
}
