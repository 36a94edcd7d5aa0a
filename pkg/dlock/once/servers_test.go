//go:build unix

package once_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// After a run whose lease was extended and then shortened, the key stays locked for the rest of the hold, although the Client is
// closed, and the record is kept.
func TestExtendedRun(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"redis", "etcd"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			addr := ""
			if backend == "redis" {
				addr = testenv.Redis(t).Addr()
			} else {
				addr = testenv.Etcd(t).Endpoint()
			}
			open := func() *dlock.Client {
				store, closeConn, err := connect(backend, addr)
				check(t, err)
				t.Cleanup(closeConn)
				return client(t, store)
			}
			first, second := open(), open()
			hold := testenv.UnderStress(18*time.Second, 6*time.Second)
			opts := []once.Option{once.WithHold(hold), once.WithLease(hold * 5 / 6)}
			asked := time.Now()
			ran, err := do(t, job(t, first, hold, opts...), hold*2/3, nil)
			if !ran || err != nil {
				t.Fatalf("it ran: %v, %v", ran, err)
			}
			check(t, first.Close())
			short, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			g, err := second.Acquire(short, "report")
			check(t, err)
			if waited := time.Since(asked); waited < hold {
				t.Errorf("the key was free after %v", waited)
			}
			began := time.Now()
			err = g.Unlock(t.Context())
			if !errors.Is(err, dlock.ErrUnknownOutcome) || !testenv.Stalled(t, began, time.Second) { // half of the time after which it gives up
				check(t, err)
			}
			last, found, err := job(t, second, hold).Last(t.Context())
			if err != nil || !found || !last.OK || last.Took < hold*2/3 || time.Since(last.Ended) > time.Since(asked) {
				t.Errorf("the last run is %+v, %v, %v", last, found, err)
			}
		})
	}
}

// On Redlock a job runs once per interval, without records.
func TestRedlock(t *testing.T) {
	t.Parallel()
	var nodes []redis.UniversalClient
	for range 3 {
		c := redis.NewClient(&redis.Options{Addr: testenv.Redis(t).Addr()})
		t.Cleanup(func() { _ = c.Close() })
		nodes = append(nodes, c)
	}
	open := func() *dlock.Client { return client(t, redlock.New(nodes, redlock.WithNodeTimeout(5*time.Second))) }
	first := open()
	if ran, err := do(t, job(t, first, time.Hour), 0, nil); !ran || err != nil {
		t.Fatalf("it ran: %v, %v", ran, err)
	}
	check(t, first.Close())
	second := job(t, open(), time.Hour)
	if ran, err := do(t, second, 0, nil); ran || err != nil {
		t.Errorf("it ran again: %v, %v", ran, err)
	}
	if runs, err := second.Runs(t.Context()); len(runs) != 0 || err != nil {
		t.Errorf("the records are %+v, %v", runs, err)
	}
}
