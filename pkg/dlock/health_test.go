package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Health has the least share of a lease that was left when a renewal was confirmed, and forgets it
// after HealthWindow.
func TestHealthShowsSlack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{DefaultTTL: 12 * time.Second})
		if h := c.Health(); h.Renewals != 0 || h.LeastSlackKey != "" || len(h.LastLosses) != 0 || len(h.Losses) != 4 {
			t.Errorf("a new Client has %+v", h)
		}
		unlock(t, acquire(t, c, "short"))
		g := acquire(t, c, "k")
		elapse(time.Minute)
		h := c.Health()
		if h.LeastSlackKey != "k" || h.LeastSlack < 0.55 || h.LeastSlack > 0.65 || h.Renewals < 14 || h.RecentRenewals != h.Renewals || h.FailedRenewals != 0 {
			t.Errorf("a calm minute is %+v", h)
		}
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseRequest, Hang: true, Times: 2}) // 3 s each
		elapse(time.Minute)
		h = c.Health()
		if h.LeastSlack > 0.2 || h.LeastSlack < 0 || h.RecentFailedRenewals != 2 || h.RecentError != "no answer within 3s" {
			t.Errorf("after two failed renewals: %+v", h)
		}
		elapse(dlock.HealthWindow)
		h = c.Health()
		if h.LeastSlack < 0.55 || h.RecentFailedRenewals != 0 || h.RecentError != "" || h.FailedRenewals != 2 || h.RecentRenewals >= h.Renewals {
			t.Errorf("after the window: %+v", h)
		}
		unlock(t, g)
		elapse(dlock.HealthWindow)
		if h = c.Health(); h.LeastSlackKey != "" || h.RecentRenewals != 0 {
			t.Errorf("without a lock: %+v", h)
		}
	})
}

// A lock that its holder extends, or that is renewed with a shorter lease, is not late.
func TestHealthIgnoresWhatIsNotLate(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, faults := faulty()
		c := client(t, faults, dlock.Config{})
		fixed := acquire(t, c, "fixed", dlock.WithTTL(time.Minute), dlock.WithoutRenewal())
		g := acquire(t, c, "k", dlock.WithTTL(time.Minute))
		elapse(25 * time.Second)
		if err := g.Extend(ctx, 2*time.Second); err != nil {
			t.Fatal(err)
		}
		elapse(30 * time.Second)
		if err := fixed.Extend(ctx, time.Minute); err != nil {
			t.Fatal(err)
		}
		if h := c.Health(); h.LeastSlackKey != "k" || h.LeastSlack < 0.5 || h.RecentFailedRenewals != 0 {
			t.Errorf("%+v", h)
		}
	})
}

// If a backend renews some claims and says why it did not renew the others, each of them counts, and Health has the cause.
func TestHealthShowsWhyPartOfABatchFailed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := &scripted{Opener: memlock.New()}
		store.renew = func(ctx context.Context, d driver.Driver, refs []driver.Ref) ([]driver.State, error) {
			states, err := d.Renew(ctx, refs)
			for i, r := range refs {
				if r.Key == "failing" && err == nil {
					states[i], err = driver.State{}, errors.New("denied")
				}
			}
			return states, err
		}
		c := client(t, store, dlock.Config{DefaultTTL: 12 * time.Second})
		failing, renewed := acquire(t, c, "failing"), acquire(t, c, "renewed")
		elapse(time.Minute)
		if failing.Err() == nil || renewed.Err() != nil {
			t.Errorf("%v and %v, want a loss of the first only", failing.Err(), renewed.Err())
		}
		if h := c.Health(); h.RecentError != "denied" || h.RecentFailedRenewals == 0 || h.LeastSlackKey != "renewed" || h.LeastSlack < 0.5 {
			t.Errorf("%+v", h)
		}
	})
}

// Health has the losses with their cause, the newest first.
func TestHealthShowsLosses(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, faults := faulty()
		c := client(t, faults, dlock.Config{DefaultTTL: 12 * time.Second})
		taken := acquire(t, c, "taken", dlock.WithInfo(dlock.Info{Owner: "ann"}))
		elapse(time.Minute)
		admin, err := client(t, store, dlock.Config{}).Admin()
		if err != nil {
			t.Fatal(err)
		}
		if err := admin.Evict(ctx, "taken", taken.Token()); err != nil {
			t.Fatal(err)
		}
		<-taken.Context().Done()
		late := acquire(t, c, "late")
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Fail})
		<-late.Context().Done()
		h := c.Health()
		if len(h.LastLosses) != 2 || h.Losses["taken_away"] != 1 || h.Losses["not_renewed"] != 1 || h.Losses["max_hold"] != 0 {
			t.Fatalf("%+v", h)
		}
		newest, first := h.LastLosses[0], h.LastLosses[1]
		if newest.Key != "late" || newest.Reason != "not_renewed" || newest.Cause == "" || newest.Token != late.Token() || time.Since(newest.At) > time.Second {
			t.Errorf("the newest is %+v", newest)
		}
		if first.Key != "taken" || first.Owner != "ann" || first.Reason != "taken_away" || first.Hold < time.Minute || first.Hold > 2*time.Minute || !first.At.Before(newest.At) {
			t.Errorf("the first is %+v", first)
		}
		h.LastLosses[0].Key, h.Losses["max_hold"] = "changed", 9
		if again := c.Health(); again.LastLosses[0].Key != "late" || again.Losses["max_hold"] != 0 {
			t.Errorf("the caller has changed it: %+v", again)
		}
	})
}

// A Client that loses locks for days keeps the last 100.
func TestHealthKeepsTheLastLosses(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, _ := faulty()
		c := client(t, store, dlock.Config{})
		for i := range 103 {
			g := acquire(t, c, fmt.Sprint(i), dlock.WithMaxHold(time.Second))
			<-g.Context().Done()
			_ = g.Unlock(ctx)
		}
		h := c.Health()
		if len(h.LastLosses) != 100 || h.LastLosses[0].Key != "102" || h.LastLosses[99].Key != "3" || h.Losses["max_hold"] != 103 {
			t.Errorf("%d losses, %v", len(h.LastLosses), h.Losses)
		}
	})
}
