package hazardtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// PatientWaitersAreServed has waiters wait for many heartbeats: none is taken for dead, or
// loses its place.
func PatientWaitersAreServed(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	s.untilShown(1, func(int) bool {
		void := s.waitPatiently("k")
		s.nothingLeft(s.Traits().Healed)
		if void != "" {
			t.Logf("the machine stalled: %s", void)
		}
		return void == ""
	})
}

// waitPatiently is one trial of PatientWaitersAreServed. It is void if a waiter has lost its place because the machine stalled.
func (s *scene) waitPatiently(key string) (void string) {
	t, ttl := s.t, s.Traits().WaiterTTL
	metronome, began := testenv.StartMetronome(t), time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g := acquire(t, s.direct(dlock.Config{}), key, dlock.WithTTL(time.Minute))
	var clients []*dlock.Client
	for range 3 {
		clients = append(clients, s.direct(dlock.Config{}))
	}
	var waiters []<-chan outcome
	for i := range 6 {
		waiters = append(waiters, s.waitWith(ctx, clients[i%3], key, dlock.WithTTL(ttl), dlock.WithInfo(dlock.Info{Purpose: fmt.Sprint(i)})))
	}
	before := s.claimsBehind(g)
	elapse(testenv.UnderStress[time.Duration](4, 10) * ttl)
	after := s.claimsBehind(g)
	s.alive(g)
	if lost := lostPlace(before, after, len(waiters)); lost != "" {
		heartbeat := driver.Heartbeat(ttl)
		if !metronome.MayMiss(began, heartbeat, heartbeat/3) { // a third has passed before it is renewed
			t.Fatal(lost)
		}
		// What was stored of a lost place ends, and no waiter stays without a place, or with two.
		testenv.Eventually(t, patience, "each waiter has one claim again", func() bool { return haveOneEach(s.claimsBehind(g), len(waiters)) })
		cancel()
		unlock(t, g)
		s.leave(waiters)
		return lost
	}
	last := g.Token()
	unlock(t, g)
	for i, ch := range waiters { // each in its turn, since each unlocks only then
		next := s.granted(ch).guard
		if next.Token() <= last || before[i+1].Token != 0 && before[i+1].Token != next.Token() {
			t.Errorf("token %d after %d, for %v", next.Token(), last, before[i+1])
		}
		last = next.Token()
		unlock(t, next)
	}
	return ""
}

// claimsBehind returns the claims on the lock of a guard, which must be the holder.
func (s *scene) claimsBehind(g *dlock.Guard) []Claim {
	s.t.Helper()
	claims := s.Claims(s.t, g.Key())
	if len(claims) == 0 || claims[0].Token != g.Token() {
		s.t.Fatalf("the holder has token %d, and the servers have %v", g.Token(), claims)
	}
	return claims
}

// leave waits until waits that were cancelled have ended. A lock that was granted meanwhile is unlocked.
func (s *scene) leave(waiters []<-chan outcome) {
	s.t.Helper()
	for _, ch := range waiters {
		select {
		case got := <-ch:
			if got.err == nil {
				unlock(s.t, got.guard)
				continue
			}
			expect(s.t, got.err, context.Canceled)
		case <-time.After(patience):
			s.t.Fatal("a wait outlives its context")
		}
	}
}

// lostPlace says which waiter was submitted again, if one was. Each waiter's purpose is its place.
func lostPlace(before, after []Claim, waiters int) string {
	if len(before) != 1+waiters || len(after) != 1+waiters {
		return fmt.Sprintf("%d claims, then %d, of a holder and %d waiters: %v", len(before), len(after), waiters, after)
	}
	for i := range before {
		if before[i].ID != after[i].ID || before[i].Since != after[i].Since {
			return fmt.Sprintf("claim %d was submitted again: %v, and then %v", i, before[i], after[i])
		}
		if i > 0 && before[i].Purpose != fmt.Sprint(i-1) {
			return fmt.Sprintf("claim %d is that of waiter %s: it was submitted again before", i, before[i].Purpose)
		}
	}
	return ""
}

// haveOneEach reports whether each waiter has one claim behind the holder, in any order.
func haveOneEach(claims []Claim, waiters int) bool {
	purposes := map[string]bool{}
	for _, c := range claims[1:] {
		purposes[c.Purpose] = true
	}
	return len(claims) == 1+waiters && len(purposes) == waiters
}
