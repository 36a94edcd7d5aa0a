package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// wantRefused wants the one error of a server that refuses connections.
func wantRefused(t *testing.T, err error) {
	t.Helper()
	switch {
	case !errors.Is(err, dlock.ErrUnavailable), errors.Is(err, dlock.ErrUnknownOutcome):
		t.Errorf("error is %v, want only %v", err, dlock.ErrUnavailable)
	case !strings.Contains(err.Error(), "connection refused"):
		t.Errorf("the cause is lost: %v", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		t.Errorf("%v is taken for the end of the caller's context", err)
	}
}

// A server that refuses connections is told as such at once and each time, before a lease
// could be had as well as with one; and there is nothing to clean up.
func TestRefusedIsUnavailable(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	client := dial(t, urlOf(proxy))
	withLease := locksOn(t, client, dlock.Config{DefaultTTL: time.Minute})
	warm(t, withLease)
	check(t, proxy.Close()) // nothing listens from then on
	testenv.Eventually(t, patience, "the client notices", func() bool { return client.ActiveConnection().GetState() != connectivity.Ready })
	for name, c := range map[string]*dlock.Client{
		"no lease":   clientAt(t, "http://127.0.0.1:1", dlock.Config{DefaultTTL: time.Minute}),
		"with lease": withLease,
	} {
		t.Run(name, func(t *testing.T) {
			quickest := time.Hour
			for range 4 {
				began := time.Now()
				_, err := c.TryLock(context.Background(), "k")
				wantRefused(t, err)
				quickest = min(quickest, time.Since(began))
				_, err = c.TryAcquire(context.Background(), "k")
				wantRefused(t, err)
				_, err = c.Acquire(context.Background(), "k", dlock.WithWait(300*time.Millisecond))
				wantRefused(t, err)
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
