package hazardtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// LostAcquireReplyGrantsOnce loses the replies to a successful acquire, 1 to 5 times in a row:
// the call succeeds once, with one claim and one token.
func LostAcquireReplyGrantsOnce(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	c := s.proxied(dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond})
	warm(t, c)
	last := int64(0)
	for i := range s.rounds(30, 40, 200) {
		key, lose := fmt.Sprintf("k%d", i/2), i%5+1 // each key twice
		grants := s.Grants(t, key)
		lost := s.Lose(Acquire, lose)
		g := acquire(t, c, key)
		if n := lost.Most(); n != lose {
			t.Fatalf("%d replies were lost, want %d", n, lose)
		}
		if claims := s.Claims(t, key); len(claims) != 1 || claims[0].Token != g.Token() {
			t.Fatalf("the guard has token %d, and the servers have %v", g.Token(), claims)
		}
		check(t, grants(g.Token()))
		if i%2 == 1 && g.Token() <= last {
			t.Fatalf("token %d after %d", g.Token(), last)
		}
		last = g.Token()
		s.Heal()
		unlock(t, g)
		s.nothingLeft(s.Traits().Healed)
	}
}

// LostReplyLeavesNoGhost loses everything that comes back, to an acquire and to its cleanup. The
// outcome is unknown, not "busy", and the lock is free soon after the network has
// healed, not when its lease ends.
func LostReplyLeavesNoGhost(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	c := s.proxied(dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond, MaxRetries: 2})
	other := s.direct(dlock.Config{DefaultTTL: time.Minute})
	ctx := context.Background()
	calls := []func(string) error{
		func(key string) error { return c.Lock(ctx, key) },
		func(key string) error { _, err := c.TryLock(ctx, key); return err },
		func(key string) error { _, err := c.Acquire(ctx, key, dlock.WithoutRenewal()); return err },
		func(key string) error { _, err := c.TryAcquire(ctx, key); return err },
	}
	for i := range testenv.UnderStress(8, 60) {
		warm(t, c)
		key := fmt.Sprintf("k%d", i)
		lost := s.Lose(Acquire, 1000)
		cleanup, _ := s.Hold(Release, 1000)
		err := calls[i%len(calls)](key)
		expect(t, err, dlock.ErrUnknownOutcome)
		if err == nil || errors.Is(err, dlock.ErrLockHeldByOther) {
			t.Fatalf("a lost reply is reported as %v", err)
		}
		testenv.Eventually(t, patience, "cleanup is tried", func() bool { return cleanup.Least() > 0 })
		if lost.Least() == 0 || len(s.Claims(t, key)) != 1 {
			t.Fatal("the fault did not happen: nothing was left behind")
		}
		if i%4 < 2 {
			s.Cut() // the cleanup that is on its way is lost
		}
		s.Heal()
		s.nothingLeft(s.Traits().Healed)
		s.tryLock(other, key)
		began := time.Now()
		err = other.Unlock(ctx, key)
		if err != nil && !GaveUp(t, err, began) {
			t.Fatalf("unlock: %v", err)
		}
	}
}

// tryLock locks what is free. TryLock makes one attempt: if the machine delayed that, it is made again when nothing is left
// of it.
func (s *scene) tryLock(c *dlock.Client, key string) {
	t := s.t
	t.Helper()
	for {
		began := time.Now()
		ok, err := c.TryLock(context.Background(), key)
		if ok && err == nil {
			return
		}
		if err == nil || driver.ClassOf(err) == driver.Fatal || !testenv.Stalled(t, began, oneAttempt) {
			t.Fatalf("another Client cannot lock it: %v, %v", ok, err)
		}
		s.nothingLeft(s.Traits().Healed)
	}
}

// CleanupOvertakesAcquire gives calls up, and lets cleanup overtake the attempt, which arrives
// late and must find a tombstone: one on a free lock, with and without waiting and
// with a lease of its own, and one that queues behind others.
func CleanupOvertakesAcquire(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	c := s.proxied(dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond})
	warm(t, c)
	holder := acquire(t, s.direct(dlock.Config{DefaultTTL: time.Hour}), "busy")
	other := s.direct(dlock.Config{})
	s.untilShown(s.rounds(24, 40, 200), func(shown int) bool { return s.overtaken(c, other, shown) })
	elapse(2 * time.Second)
	unlock(t, holder)
	s.nothingLeft(s.Traits().Healed)
}

// overtaken is one trial of CleanupOvertakesAcquire. It shows nothing if the call gave up by itself, before it was cancelled.
func (s *scene) overtaken(c, other *dlock.Client, i int) (shown bool) {
	s.t.Helper()
	o := overtaking{scene: s, key: fmt.Sprintf("k%d", i), other: other}
	switch i % 4 {
	case 0:
		o.deadline = i%8 == 0
		return o.run(func(ctx context.Context) error { return c.Lock(ctx, o.key) })
	case 1:
		o.once = true
		return o.run(func(ctx context.Context) error { _, err := c.TryAcquire(ctx, o.key); return err })
	case 2:
		return o.run(func(ctx context.Context) error { _, err := c.Acquire(ctx, o.key, dlock.WithoutRenewal()); return err })
	default:
		o.key = "busy"
		s.waitInVain(c, o.key) // so that the Client knows that it has to wait
		return o.run(func(ctx context.Context) error { return c.Lock(ctx, o.key) })
	}
}

// An overtaking is a call that is given up and arrives after its cleanup.
type overtaking struct {
	*scene
	key      string
	deadline bool          // else the call is cancelled
	once     bool          // it makes one attempt, and gives up by itself
	other    *dlock.Client // meets no fault
}

// run makes a call that is given up, lets cleanup pass, and then lets the call arrive. It shows nothing if the call was held up
// for so long that it gave up by itself.
func (o *overtaking) run(call func(context.Context) error) (shown bool) {
	s, t, key := o.scene, o.t, o.key
	t.Helper()
	if s.Traits().Servers == 1 {
		// Where all writes count, one whose effect was seen may be counted late, but not later than another write. Several
		// servers tell the kinds apart, and an unlock may return before it has reached all of them.
		unlock(t, acquire(t, o.other, "other"))
	}
	stored := len(s.Claims(t, key))
	released, arrived := s.Carried(t, Release), s.Carried(t, Acquire)
	held, land := s.Hold(Acquire, 1000) // it may be tried again
	ctx, cancel := context.WithCancel(context.Background())
	if o.deadline {
		// Long enough for the attempt to be under way.
		ctx, cancel = context.WithTimeout(ctx, testenv.UnderStress(3*time.Second, 50*time.Millisecond))
	}
	defer cancel()
	failed, began := make(chan error, 1), time.Now()
	go func() { failed <- call(ctx) }()
	testenv.Eventually(t, patience, "the attempt is under way", func() bool { return held.Least() > 0 })
	if o.deadline {
		<-ctx.Done()
	}
	late := isLate(began, oneAttempt)
	cancel()
	err := returned(t, "the call", failed)
	expect(t, err, dlock.ErrUnknownOutcome)
	shown = errors.Is(err, ctx.Err())
	gaveUp := o.once && late // before it was cancelled
	if !shown && !gaveUp {
		t.Errorf("error is %v, want %v", err, ctx.Err())
	}
	testenv.Eventually(t, patience, "cleanup is carried out", func() bool { return released() > 0 })
	if len(s.Claims(t, key)) != stored {
		t.Fatal("the attempt was not late: the fault did not happen")
	}
	before := arrived()
	land()
	testenv.Eventually(t, patience, "the attempt arrives", func() bool { return arrived()-before >= held.Least() })
	if claims := s.Claims(t, key); len(claims) != stored {
		t.Errorf("an attempt that came after its cleanup is stored: %v", claims[stored:])
	}
	return shown
}

// waitInVain waits for a lock that is held, and gives up.
func (s *scene) waitInVain(c *dlock.Client, key string) {
	s.t.Helper()
	stored := len(s.Claims(s.t, key))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- c.Lock(ctx, key) }()
	s.awaitClaims(key, stored+1)
	cancel()
	expect(s.t, returned(s.t, "Lock", failed), context.Canceled)
	s.awaitClaims(key, stored)
}
