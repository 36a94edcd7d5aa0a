package hazardtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// LostUnlockReplyUnlocks loses the reply to an unlock. The unlock is a success all the same,
// the next waiter has the lock at once, whether it is of the same Client or of another, and the
// repetition does not touch it.
func LostUnlockReplyUnlocks(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	c := s.proxied(dlock.Config{DefaultTTL: time.Minute, RetryInterval: 50 * time.Millisecond})
	other := s.direct(dlock.Config{DefaultTTL: time.Minute})
	metronome := testenv.StartMetronome(t)
	warm(t, c, other)
	var longest time.Duration
	var confirmed [2]int
	for i := range s.rounds(30, 30, 200) {
		next := []*dlock.Client{c, other}[i%2]
		g := acquire(t, c, "k")
		waiter := s.wait(next, "k")
		lost, started := s.Lose(Release, 1), time.Now()
		err := g.Unlock(context.Background())
		switch {
		case err == nil:
			confirmed[i%2]++
			if lost.Seen() < 2 {
				t.Fatal("an unlock whose reply was lost is confirmed, and was not repeated")
			}
		case !GaveUp(t, err, started):
			t.Fatalf("unlock: %v", err)
		}
		// A majority of several servers is enough for the Unlock. One that gave up is repeated later.
		testenv.Eventually(t, patience, "every server loses a reply, and the unlock is repeated", func() bool {
			return lost.Least() == 1 && lost.Seen() >= 2
		})
		got := s.granted(waiter)
		took := got.at.Sub(lost.First())
		longest = max(longest, took)
		if took > s.Traits().HandOver+metronome.Lost(lost.First()) {
			t.Errorf("the next waiter had the lock %v after the unlock", took)
		}
		s.holds(got.guard, "the unlock was repeated")
		s.Heal()
		unlock(t, got.guard)
	}
	if slices.Min(confirmed[:]) == 0 {
		t.Errorf("%v unlocks were confirmed: this machine is too slow", confirmed)
	}
	t.Logf("the next waiter had the lock after %v at most", longest)
}

// RepeatedUnlockSparesTheNextHold loses the reply to an unlock, and lets its repetition arrive
// when the lock is held again: by the same Client, or, on several servers, by another one, because
// there a Client knows of its own release and waits for its outcome.
func RepeatedUnlockSparesTheNextHold(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	c := s.proxied(dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond})
	warm(t, c)
	next := c
	if s.Traits().Servers > 1 {
		next = s.direct(dlock.Config{DefaultTTL: time.Minute})
	}
	s.untilShown(s.rounds(30, 30, 200), func(int) (confirmed bool) {
		g := acquire(t, c, "k")
		arrived := s.Carried(t, Release)
		lost := s.Lose(Release, 1)
		held, land := s.Hold(Release, 1)
		unlocked, started := make(chan error, 1), time.Now()
		go func() { unlocked <- g.Unlock(context.Background()) }()
		testenv.Eventually(t, patience, "every server loses a reply, and the unlock is repeated", func() bool {
			return held.Most() > 0 && lost.Least() == 1
		})
		again := acquire(t, next, "k")
		before, late := arrived(), isLate(started, giveUpAfter)
		land()
		err := returned(t, "Unlock", unlocked)
		gaveUp := errors.Is(err, dlock.ErrUnknownOutcome) && late
		if err != nil && !gaveUp && !GaveUp(t, err, started) {
			t.Fatalf("unlock: %v", err)
		}
		testenv.Eventually(t, patience, "the repetition arrives", func() bool { return arrived() > before })
		s.holds(again, "the unlock was repeated")
		s.Heal()
		unlock(t, again)
		return err == nil
	})
	s.nothingLeft(s.Traits().Healed)
}

// LateUnlockSparesTheNextHold holds an unlock up until cleanup or an eviction has ended the claim
// and the same Client has acquired again.
func LateUnlockSparesTheNextHold(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	c := s.proxied(dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond})
	admin, err := s.direct(dlock.Config{}).Admin()
	check(t, err)
	warm(t, c)
	s.untilShown(s.rounds(30, 30, 200), func(shown int) bool { return s.unlockLate(c, admin, shown%2 == 1) })
	s.nothingLeft(s.Traits().Healed)
}

// unlockLate is one trial of LateUnlockSparesTheNextHold. It shows nothing if it took so long that the unlock was repeated, or
// gave up, before the claim was evicted or cleaned up.
func (s *scene) unlockLate(c *dlock.Client, admin *dlock.Admin, evicts bool) (shown bool) {
	t := s.t
	g := acquire(t, c, "k")
	held, land := s.Hold(Release, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	unlocked, started := make(chan error, 1), time.Now()
	late := func() bool { return isLate(started, oneAttempt) }
	go func() { unlocked <- g.Unlock(ctx) }()
	testenv.Eventually(t, patience, "the unlock is under way", func() bool { return held.Least() > 0 })
	isRepeated := s.token("k") != g.Token()
	if isRepeated && !late() {
		t.Fatal("the unlock was not held up: the fault did not happen")
	}
	if evicts {
		again, err := evict(t, admin, g)
		isGone := errors.Is(err, dlock.ErrLockNotHeld) && (isRepeated || again || late())
		if err != nil && !isGone {
			t.Fatal(err)
		}
		shown = err == nil
	} else { // cleanup takes over
		cancel()
		err := returned(t, "Unlock", unlocked)
		isUnknown := errors.Is(err, dlock.ErrUnknownOutcome)
		shown = isUnknown && errors.Is(err, context.Canceled)
		hasEnded := (err == nil || isUnknown) && (shown || isRepeated || late())
		if !hasEnded {
			t.Fatalf("unlock: %v", err)
		}
	}
	testenv.Eventually(t, beforeLease, "the claim has ended", func() bool { return s.token("k") == 0 })
	again := acquire(t, c, "k")
	arrived := s.Carried(t, Release)
	land()
	testenv.Eventually(t, patience, "the unlock arrives", func() bool { return arrived() > 0 })
	s.holds(again, "a late unlock has come")
	cancel()
	unlock(t, again)
	return shown && !isRepeated
}

// evict evicts a holder. It reports whether it had to be repeated because the machine delayed it: an attempt that was not
// answered may have been carried out.
func evict(t *testing.T, admin *dlock.Admin, g *dlock.Guard) (again bool, err error) {
	t.Helper()
	for {
		began := time.Now()
		err = admin.Evict(context.Background(), g.Key(), g.Token())
		isAnswer := err == nil || errors.Is(err, dlock.ErrLockNotHeld)
		if isAnswer || driver.ClassOf(err) == driver.Fatal || !testenv.Stalled(t, began, oneAttempt) {
			return again, err
		}
		again = true
	}
}

// UnlockAfterExpirySparesTheNextHolder unlocks what has ended and is held by another Client: the
// caller gets the error, and the other lock and its lease stay as they are.
func UnlockAfterExpirySparesTheNextHolder(t *testing.T, open Open) {
	t.Parallel()
	hour := dlock.WithTTL(time.Hour) // no renewal shows the holder what has happened, however slow the machine is
	for name, end := range map[string]expiry{
		// The holder's own clock knows.
		"Known": {opts: []dlock.LockOption{dlock.WithoutRenewal()}},
		// Only the servers know.
		"Expired": {opts: []dlock.LockOption{hour, dlock.WithoutRenewal()}, by: Env.Expire},
		"Deleted": {opts: []dlock.LockOption{hour}, by: Env.Delete},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t, open)
			if end.by == nil {
				end.opts = append(end.opts, dlock.WithTTL(s.Traits().ShortTTL))
			}
			s.unlockAfter(end)
		})
	}
}

// An expiry is how a lock ends behind its holder's back.
type expiry struct {
	opts []dlock.LockOption
	by   func(Env, testing.TB, string) // nil: by itself
}

func (s *scene) unlockAfter(end expiry) {
	t := s.t
	s.DropPushes() // else the holder knows of it before it unlocks
	a, b := s.proxied(dlock.Config{}), s.direct(dlock.Config{})
	warm(t, a, b)
	n := s.rounds(30, 50, 1000)
	stale, fresh, before := make([]*dlock.Guard, n), make([]*dlock.Guard, n), make([]Claim, n)
	key := func(i int) string { return fmt.Sprintf("k%d", i) }
	arrived := s.Carried(t, Release)
	for i := range n {
		g, err := a.Acquire(context.Background(), key(i), end.opts...)
		check(t, err)
		stale[i] = g
		if end.by != nil {
			end.by(s.Env, t, key(i))
		}
	}
	s.nothingLeft(patience)
	for i := range n { // each with a lease of its own, which nothing of B moves
		fresh[i] = acquire(t, b, key(i), dlock.WithTTL(time.Hour), dlock.WithoutRenewal())
		claims := s.Claims(t, key(i))
		if len(claims) != 1 {
			t.Fatalf("%d claims on %q", len(claims), key(i))
		}
		before[i] = claims[0]
	}
	already := 0 // a Client also releases by itself, a lease later, what its own clock has ended
	if end.by != nil {
		already = arrived()
	}
	for i := range n {
		expect(t, stale[i].Unlock(context.Background()), dlock.ErrOwnershipLost)
	}
	testenv.Eventually(t, patience, "every unlock has reached the servers", func() bool { return arrived()-already >= n })
	s.closeWithin(a, nil) // whatever it still wanted to do is done, and was answered unless the machine took the time
	for i := range n {
		now := s.Claims(t, key(i))
		if len(now) != 1 || now[0].Text != before[i].Text || now[0].movedSince(before[i]) != 0 {
			t.Fatalf("what is stored of another's lock is %v, and was %v", now, before[i])
		}
		s.alive(fresh[i])
		unlock(t, fresh[i])
	}
}
