package hazardtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// PatientWaitersAreServed has waiters wait for many heartbeats: none is taken for dead, or
// loses its place.
func PatientWaitersAreServed(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	const trials = 5
	for i := range trials {
		void := s.waitPatiently(fmt.Sprint("k", i)) // a void trial may leave claims
		if void == "" {
			return
		}
		t.Logf("trial %d is void: %s", i, void)
	}
	t.Fatalf("nothing was shown in %d trials", trials)
}

// waitPatiently is one trial of PatientWaitersAreServed. It is void if a waiter has lost its place, and there was a time in
// which no waiter could be renewed.
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
	before := s.Claims(t, key)
	after, silence := s.watchClaims(key, testenv.UnderStress[time.Duration](4, 10)*ttl)
	s.alive(g)
	if wrong := samePlaces(before, after, len(waiters)); wrong != "" {
		if max(silence, metronome.Longest(began)) < testenv.UnderStress(starved, time.Hour) {
			t.Fatal(wrong)
		}
		unlock(t, g)
		return wrong
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

// watchClaims reads the claims on a lock for some time. It returns them, and the longest time between two answers: for so
// long the servers, or this machine, may have stopped.
func (s *scene) watchClaims(key string, d time.Duration) (claims []Claim, silence time.Duration) {
	s.t.Helper()
	last := time.Now()
	for end := last.Add(d); last.Before(end); {
		elapse(100 * time.Millisecond)
		claims = s.Claims(s.t, key)
		silence = max(silence, time.Since(last))
		last = time.Now()
	}
	return claims, silence
}

// samePlaces returns what is wrong unless a holder and so many waiters are stored as before, and each waiter's purpose is its
// place.
func samePlaces(before, after []Claim, waiters int) (wrong string) {
	if len(before) != 1+waiters || len(after) != 1+waiters {
		return fmt.Sprintf("%d claims, then %d", len(before), len(after))
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
