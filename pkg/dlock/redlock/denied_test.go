package redlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// deny makes nodes refuse all scripts, and permit makes them accept scripts again.
func deny(tb testing.TB, nodes ...*redis.Client) {
	tb.Helper()
	for _, node := range nodes {
		check(tb, node.Do(tb.Context(), "ACL", "SETUSER", "default", "-eval", "-evalsha").Err())
	}
}

func permit(tb testing.TB, nodes ...*redis.Client) {
	tb.Helper()
	for _, node := range nodes {
		check(tb, node.Do(tb.Context(), "ACL", "SETUSER", "default", "+@all").Err())
	}
}

// denials returns how many calls a node has denied.
func denials(tb testing.TB, node *redis.Client) (sum int) {
	tb.Helper()
	log, err := node.Do(tb.Context(), "ACL", "LOG").Slice()
	check(tb, err)
	for _, entry := range log {
		fields := entry.(map[any]any)
		sum += int(fields["count"].(int64))
	}
	return sum
}

// A user that is denied for a moment, as while a password is changed, costs a waiter nothing: neither if a majority denies it, nor
// if one node does and another has data of another program.
func TestWaiterOutlastsADenial(t *testing.T) {
	t.Parallel()
	for name, foreign := range map[string]int{"by a majority": 0, "beside foreign data": 1} {
		t.Run(name, func(t *testing.T) {
			s := start(t, 3)
			for i, node := range s.direct[:foreign] {
				check(t, node.LPush(t.Context(), "k", "x").Err())
				s.proxies[i].Delay(0, 20*time.Millisecond) // so that its answer is the last one
			}
			held := acquire(t, s.locks(t, dlock.Config{}), "k", dlock.WithTTL(time.Hour), dlock.WithoutRenewal()) // makes no call meanwhile
			got := waitAndUnlock(t, s.locks(t, dlock.Config{}), "k")
			testenv.Eventually(t, patience, "it waits", func() bool {
				return s.direct[1].Exists(t.Context(), "{k}\x01q").Val()+s.direct[2].Exists(t.Context(), "{k}\x01q").Val() == 2 // so a majority has answered
			})
			denying := s.direct[foreign:2]
			deny(t, denying...)
			for _, node := range denying {
				testenv.Eventually(t, patience, "it is denied several times", func() bool { return denials(t, node) > 3 || len(got) > 0 })
			}
			permit(t, denying...)
			unlock(t, held)
			check(t, <-got)
		})
	}
}

// A wait that no majority can end is ended: the cause stays until somebody acts.
func TestWaitEndsForGood(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end  func(t *testing.T, s *set, clients []redis.UniversalClient)
		want error
	}{
		"data of another program": {func(t *testing.T, s *set, _ []redis.UniversalClient) {
			for _, node := range s.direct[:2] {
				_, err := node.TxPipelined(t.Context(), func(tx redis.Pipeliner) error { // the waiter may take what is free
					tx.Del(t.Context(), "k")
					tx.LPush(t.Context(), "k", "x")
					return nil
				})
				check(t, err)
			}
		}, redlock.ErrNotALock},
		"closed clients": {func(t *testing.T, _ *set, clients []redis.UniversalClient) {
			for _, c := range clients[:2] {
				check(t, c.Close())
			}
		}, redis.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, 3)
			_ = acquire(t, s.locks(t, dlock.Config{}), "k", dlock.WithTTL(time.Hour), dlock.WithoutRenewal())
			clients := s.dial(t)
			got := waitAndUnlock(t, locksOn(t, clients, dlock.Config{}, patient), "k")
			s.waits(t, "k")
			tt.end(t, s, clients)
			select {
			case err := <-got:
				want(t, err, tt.want, redlock.ErrNoQuorum)
			case <-time.After(patience):
				t.Error("it waits on")
			}
		})
	}
}

// Data of another program on one node is not the cause if the other nodes are away: an operator would delete it in vain.
func TestForeignDataIsNotTheCauseOfAnOutage(t *testing.T) {
	s := start(t, 3)
	check(t, s.direct[0].LPush(t.Context(), "k", "x").Err())
	for _, p := range s.proxies[1:] {
		p.Refuse(true)
	}
	_, err := s.locks(t, dlock.Config{}).TryLock(t.Context(), "k")
	want(t, err, dlock.ErrUnavailable, redlock.ErrNoQuorum)
	if errors.Is(err, redlock.ErrNotALock) || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("%v, want an outage as the cause, and the foreign data in the text only", err)
	}
}

// The same if they do not answer until the call ends.
func TestForeignDataIsNotTheCauseOfAHang(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	check(t, s.direct[0].LPush(t.Context(), "k", "x").Err())
	for _, p := range s.proxies[1:] {
		p.BlackHole(true)
	}
	ctx, cancel := context.WithTimeout(t.Context(), ample-time.Second)
	defer cancel()
	_, err := s.open(t, patient).Acquire(ctx, driver.Request{Ref: claim(0)})
	want(t, err, driver.ErrUnavailable, redlock.ErrNoQuorum)
	if errors.Is(err, redlock.ErrNotALock) || driver.ClassOf(err) != driver.Transient {
		t.Errorf("%v, class %d", err, driver.ClassOf(err))
	}
	s.heal()
	s.cut()
}

// Of two waiters, one tries and is denied, and the other is known to wait: the error says why the first was not renewed.
func TestRenewTellsWhyOneOfSeveralFailed(t *testing.T) {
	s := start(t, 3)
	holder, waiter := s.open(t, patient), s.open(t, patient)
	submit(t, holder, driver.Request{Ref: claim(0)}, driver.Held)
	s.confirms(t)
	for n := 1; n < 3; n++ {
		submit(t, waiter, driver.Request{Ref: claim(n), Wait: true}, driver.Queued)
	}
	deny(t, s.direct[:2]...)
	states, err := waiter.Renew(context.Background(), []driver.Ref{claim(1), claim(2)})
	permit(t, s.direct[:2]...)
	if len(states) != 2 || states[0].Phase != driver.Unknown || states[1].Phase != driver.Queued {
		t.Errorf("they are %v", states)
	}
	want(t, err, driver.ErrDenied, redlock.ErrNoQuorum)
	if states, err = waiter.Renew(context.Background(), []driver.Ref{claim(1), claim(2)}); err != nil || len(states) != 2 {
		t.Errorf("when all is well again: %v, %v", states, err)
	}
}
