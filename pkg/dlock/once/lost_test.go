package once_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
)

func evict(t *testing.T, c *dlock.Client) {
	t.Helper()
	admin, err := c.Admin()
	check(t, err)
	claims, err := admin.Inspect(t.Context(), "report")
	check(t, err)
	check(t, admin.Evict(t.Context(), "report", claims[0].Token))
}

func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// A run whose lock is taken away ends within ten seconds, or a third of its lease, and its record does not hide that of a run
// which began later.
func TestEvictedWhileItRuns(t *testing.T) {
	for lease, limit := range map[time.Duration]time.Duration{0: 10 * time.Second, 3 * time.Second: time.Second, time.Hour: 10 * time.Second} {
		inBubble(t, lease.String(), func(t *testing.T) {
			store := memlock.New()
			silent := faultdriver.New(store, 1, faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush}) // as on Redis
			var opts []once.Option
			if lease > 0 {
				opts = append(opts, once.WithLease(lease))
			}
			j, operator := job(t, client(t, silent), 12*time.Hour, opts...), client(t, store)
			next := job(t, operator, 12*time.Hour)
			ran, err := j.Do(t.Context(), func(ctx context.Context) error {
				time.Sleep(time.Hour)
				evict(t, operator)
				if ran, err := do(t, next, time.Millisecond, nil); !ran || err != nil {
					t.Errorf("the next run: %v, %v", ran, err)
				}
				evicted := time.Now()
				<-ctx.Done()
				if took := time.Since(evicted); took > limit || !errors.Is(context.Cause(ctx), dlock.ErrOwnershipLost) {
					t.Errorf("the context ended after %v: %v", took, context.Cause(ctx))
				}
				return nil
			})
			if !ran || !errors.Is(err, dlock.ErrOwnershipLost) {
				t.Errorf("the result is %v, %v", ran, err)
			}
			runs, err := next.Runs(t.Context())
			check(t, err)
			if len(runs) != 2 || !runs[0].OK || runs[0].Lost || runs[1].OK || !runs[1].Lost {
				t.Errorf("the records are %+v", runs)
			}
		})
	}
}

// A run whose lock is taken away just before it ends does not count as one that held it.
func TestEvictedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		j, operator := job(t, client(t, store), time.Hour), client(t, store)
		ran, err := j.Do(t.Context(), func(context.Context) error {
			time.Sleep(time.Second)
			evict(t, operator)
			return nil
		})
		if !ran || !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("the result is %v, %v", ran, err)
		}
		last, found, err := j.Last(t.Context())
		if err != nil || !found || last.OK {
			t.Errorf("the record is %+v, %v", last, err)
		}
	})
}

// A run that ends in time is not lost because the backend does not answer after it: the key stays locked for the hold.
func TestNoAnswerAfterTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, began := memlock.New(), time.Now()
		faults := faultdriver.New(store, 1)
		j := job(t, client(t, faults), time.Minute, once.WithoutRecord())
		ran, err := j.Do(t.Context(), func(context.Context) error {
			time.Sleep(52500 * time.Millisecond)
			faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Fail})
			return nil
		})
		if !ran || err != nil {
			t.Errorf("the result is %v, %v", ran, err)
		}
		_ = due(t, store, j)
		if got := time.Since(began); got < j.Hold() || got > j.Hold()+30*time.Second {
			t.Errorf("due %v after it began", got)
		}
	})
}
