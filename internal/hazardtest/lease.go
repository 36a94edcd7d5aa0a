package hazardtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// ServerPauseIsNoLoss stops the servers for up to half of a lease: no lock is lost.
func ServerPauseIsNoLoss(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	const holders = 20
	ttl := testenv.UnderStress(20*time.Second, 10*time.Second) // leaves two seconds for the renewals that are due, or one
	rng := rand.New(rand.NewPCG(1, 1))
	var clients [holders]*dlock.Client
	var guards [holders]*Hold
	hold := func(i int) *Hold { return Keep(t, acquire(t, clients[i], fmt.Sprintf("k%d", i)), ttl/20) } // half of what the pause leaves
	for i := range holders {
		clients[i] = s.direct(dlock.Config{DefaultTTL: ttl})
		guards[i] = hold(i)
		elapse(ttl / 3 / holders) // so that their renewals are spread
	}
	s.untilShown(testenv.UnderStress(2, 15), func(shown int) bool { // 15 x 20 are 300 runs
		d, isVoid := ttl/10+time.Duration(rng.Int64N(int64(ttl/2-ttl/10))), false
		if shown == 0 {
			d = ttl / 2
		}
		s.Pause(t, d)
		for i, g := range guards {
			if !g.RenewedAgain(t) {
				guards[i], isVoid = hold(i), true
			} else if token := s.token(g.Key()); token != g.Token() {
				t.Errorf("pause %v: the servers have token %d, the guard %d", d, token, g.Token())
			}
		}
		return !isVoid
	})
	for _, g := range guards {
		unlock(t, g.Guard)
	}
}

// DeadOwnerFreesTheLock has the owner of a lock panic, or its context end: the lock does not
// stay.
func DeadOwnerFreesTheLock(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	c, metronome := s.direct(dlock.Config{DefaultTTL: time.Minute}), testenv.StartMetronome(t)
	warm(t, c)
	for i := range s.rounds(20, 20, 200) {
		key, panics := fmt.Sprintf("k%d", i), i%2 == 0
		var at time.Time
		ctx, cancel := context.WithCancel(context.Background())
		recovered := func() (r any) {
			defer func() { r = recover() }()
			expect(t, c.Do(ctx, key, func(inner context.Context) error {
				if s.token(key) == 0 {
					t.Error("the lock is not held: the scenario does not bite")
				}
				at = time.Now()
				if panics {
					panic("work failed")
				}
				cancel()
				<-inner.Done()
				return inner.Err()
			}), context.Canceled)
			return nil
		}()
		cancel()
		if panics != (recovered == "work failed") {
			t.Errorf("recovered %v", recovered)
		}
		testenv.Eventually(t, patience, "the lock is free", func() bool { return len(s.Claims(t, key)) == 0 })
		if took := time.Since(at); took > s.Traits().HandOver+metronome.Lost(at) {
			t.Errorf("the lock was free after %v", took)
		}
	}
}

// A LeaseSharer is an Env in which the locks of a Client share a lease, which keeps all of them.
type LeaseSharer interface {
	// Lease is the lease of a held lock.
	Lease(tb testing.TB, key string) int64
}

// ForgottenLockIsFreed has the owner forget a lock with a longest hold: it is renewed until
// then, and does not stay, whether or not the same Client has another lock with the same TTL.
func ForgottenLockIsFreed(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	s.untilShown(testenv.UnderStress(1, 10), func(int) bool { return s.forgetLocks() })
}

// forgetLocks is one trial of ForgottenLockIsFreed. It shows nothing if a lock was lost because the machine stalled.
func (s *scene) forgetLocks() (shown bool) {
	t, ttl, metronome := s.t, s.Traits().WaiterTTL, testenv.StartMetronome(s.t)
	longest := 2 * ttl // what is not renewed ends before
	shown = true
	var forgotten, others []*Hold
	at := time.Now()
	for i := range 10 {
		c, key := s.direct(dlock.Config{DefaultTTL: ttl}), fmt.Sprintf("k%d", i)
		forgotten = append(forgotten, Keep(t, acquire(t, c, key, dlock.WithMaxHold(longest)), ttl/2))
		if i%2 == 0 {
			others = append(others, Keep(t, acquire(t, c, key+"-other"), ttl/2))
			e, shares := s.Env.(LeaseSharer)
			if shares && e.Lease(t, key) != e.Lease(t, key+"-other") {
				t.Error("the other lock does not keep the lease: the scenario does not bite")
			}
		}
	}
	done := time.Now()
	for len(forgotten) > 0 {
		forgotten = slices.DeleteFunc(forgotten, func(g *Hold) bool {
			lost, free := g.Context().Err() != nil, len(s.Claims(t, g.Key())) == 0
			if left := g.Remaining(); free && left > 0 && g.Context().Err() == nil { // whatever stalls
				t.Fatalf("%q is free, and its holder believes in it for %v more", g.Key(), left)
			}
			if (lost || free) && time.Since(at) < longest && g.Lost(t) {
				shown = false
			}
			if took := time.Since(done); took > longest+s.Traits().Forgotten+metronome.Lost(done) {
				t.Fatalf("%q is still there after %v: lost %v, free %v", g.Key(), took, lost, free)
			}
			return lost && free
		})
		elapse(20 * time.Millisecond)
	}
	for _, g := range others {
		if g.RenewedAgain(t) {
			unlock(t, g.Guard)
		} else {
			shown = false
		}
	}
	return shown
}

// RenewalDoesNotResurrect renews what has ended behind the holder's back: it does not come
// back, whether it is free, was taken meanwhile, or is held by another Client.
func RenewalDoesNotResurrect(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	s.DropPushes() // else the holder knows of it before it asks
	a, b := s.proxied(dlock.Config{DefaultTTL: time.Minute}), s.direct(dlock.Config{})
	for i := range s.rounds(60, 150, 1000) {
		key := fmt.Sprintf("k%d", i)
		var g *dlock.Guard
		if i%2 == 0 {
			g = acquire(t, a, key, dlock.WithoutRenewal())
			s.Expire(t, key)
		} else {
			g = acquire(t, a, key)
			s.Delete(t, key)
		}
		var other *dlock.Guard
		switch i % 3 { // 0: it is free
		case 1:
			unlock(t, acquire(t, b, key))
		case 2:
			other = acquire(t, b, key)
		}
		expect(t, g.Extend(context.Background(), time.Minute), dlock.ErrOwnershipLost)
		expect(t, context.Cause(g.Context()), dlock.ErrOwnershipLost)
		if g.Remaining() != 0 {
			t.Error("a lost guard has time remaining")
		}
		if other == nil && s.token(key) != 0 {
			t.Fatal("the renewal brought the lock back")
		}
		expect(t, g.Unlock(context.Background()), dlock.ErrOwnershipLost)
		if other != nil {
			s.holds(other, "the renewal took the lock of another")
			unlock(t, other)
		}
	}
	s.untilShown(1, func(int) bool { return s.lostByRenewal(b) })
	s.nothingLeft(s.Traits().Healed)
}

// lostByRenewal is the same with the renewals that the caller does not ask for. It shows nothing if the machine stalled
// instead of renewing.
func (s *scene) lostByRenewal(b *dlock.Client) (shown bool) {
	const ttl = 6 * time.Second
	t := s.t
	a := s.proxied(dlock.Config{DefaultTTL: ttl})
	shown = true
	var guards [3]*Hold
	var others [3]*dlock.Guard
	for i := range guards {
		key := fmt.Sprintf("auto%d", i)
		guards[i] = Keep(t, acquire(t, a, key), ttl/2)
		s.Delete(t, key)
		switch i { // 0: it is free
		case 1:
			unlock(t, acquire(t, b, key))
		case 2:
			others[i] = acquire(t, b, key)
		}
	}
	for i, g := range guards {
		select {
		case <-g.Done():
		case <-time.After(beforeLease):
			t.Fatalf("the loss of %q is not reported", g.Key())
		}
		cause := context.Cause(g.Context())
		expect(t, cause, dlock.ErrOwnershipLost)
		if isUnrenewed(cause) && g.Lost(t) { // no renewal has noticed
			shown = false
		}
		if other := others[i]; other != nil {
			s.holds(other, "the renewal took the lock of another")
			unlock(t, other)
		} else if s.token(g.Key()) != 0 {
			t.Fatal("the renewal brought the lock back")
		}
		expect(t, g.Unlock(context.Background()), dlock.ErrOwnershipLost)
	}
	return shown
}
