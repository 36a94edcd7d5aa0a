package hazardtest

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

const (
	// patience is for what must happen, and whose time says nothing.
	patience = time.Minute
	// beforeLease is for what must happen before a lease of a minute ends: on a machine ten
	// times slower it does, and what only the end of the lease brings does not.
	beforeLease = 30 * time.Second
)

// A scene is a scenario under way.
type scene struct {
	Env
	t *testing.T
}

func begin(t *testing.T, open Open) *scene {
	t.Helper()
	return &scene{open(t), t}
}

// rounds is how often a scenario repeats its fault: on a backend that is slow, on another,
// and under stress. Several servers do half as much.
func (s *scene) rounds(slow, quick, stress int) int {
	traits := s.Traits()
	switch {
	case traits.Servers > 1:
		quick = slow / 2
	case traits.Slow:
		quick = slow
	}
	return testenv.UnderStress(quick, stress)
}

// proxied returns a Client behind the faults, which the end of the test closes.
func (s *scene) proxied(cfg dlock.Config, opts ...dlock.Option) *dlock.Client {
	s.t.Helper()
	return newClient(s.t, s.Proxied(s.t), cfg, opts...)
}

// direct returns a Client that meets no fault.
func (s *scene) direct(cfg dlock.Config, opts ...dlock.Option) *dlock.Client {
	s.t.Helper()
	return newClient(s.t, s.Direct(s.t), cfg, opts...)
}

func newClient(tb testing.TB, backend driver.Opener, cfg dlock.Config, opts ...dlock.Option) *dlock.Client {
	tb.Helper()
	cfg.DefaultTTL = cmp.Or(cfg.DefaultTTL, testenv.Lease)
	c, err := dlock.New(&cfg, append([]dlock.Option{dlock.WithBackend(backend), dlock.WithAdmin()}, opts...)...)
	check(tb, err)
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// token is the token of the stored holder, 0 if the lock is free.
func (s *scene) token(key string) int64 {
	s.t.Helper()
	claims := s.Claims(s.t, key)
	if len(claims) == 0 {
		return 0
	}
	return claims[0].Token
}

// holds asserts that what the servers store of a lock is this guard's.
func (s *scene) holds(g *dlock.Guard, what string) {
	s.t.Helper()
	claims := s.Claims(s.t, g.Key())
	if len(claims) == 0 || claims[0].Token != g.Token() {
		s.t.Fatalf("%s: the guard has token %d, the servers have %v", what, g.Token(), claims)
	}
	s.alive(g)
}

func (s *scene) alive(g *dlock.Guard) {
	s.t.Helper()
	if g.Context().Err() != nil || g.Remaining() <= 0 {
		s.t.Errorf("%q is lost: %v", g.Key(), context.Cause(g.Context()))
	}
}

// awaitClaims waits until so many claims on a lock are stored.
func (s *scene) awaitClaims(key string, n int) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, "the claims are stored", func() bool { return len(s.Claims(s.t, key)) == n })
}

// maxVoid is how many trials of a scenario the machine may void.
const maxVoid = 5

// untilShown makes trials until n of them have shown something. A trial is told how many have, and shows nothing if the
// machine stalled, or was slow.
func (s *scene) untilShown(n int, trial func(shown int) bool) {
	s.t.Helper()
	for shown, void := 0, 0; shown < n; {
		if trial(shown) {
			shown++
			continue
		}
		void++
		if void > maxVoid {
			s.t.Fatalf("%d trials are void, and %d of %d have shown something: this machine is too slow", void, shown, n)
		}
	}
}

// isLate reports whether a trial has held a call up for longer than that call may take. Then the call may have given up, and the
// trial is void. This is not a measured stall: the time is also that of the code under test, which may be slow itself. So it may
// only void a trial, of which untilShown allows few, and never excuse a failure. Under stress it does not even do that.
func isLate(began time.Time, limit time.Duration) bool {
	return time.Since(began) > testenv.UnderStress(limit, time.Hour)
}

// nothingLeft asserts that within some time nothing is stored for claims.
func (s *scene) nothingLeft(within time.Duration) {
	s.t.Helper()
	end := time.Now().Add(within)
	for {
		now := time.Now() // before the look: what it shows is not newer
		left := s.Leftovers(s.t)
		if len(left) == 0 {
			return
		}
		if now.After(end) {
			s.t.Fatalf("%d are left after %v, such as %q", len(left), within, left[0])
		}
		elapse(5 * time.Millisecond)
	}
}

// warm makes a Client have its connections, and the servers know its scripts.
func warm(tb testing.TB, clients ...*dlock.Client) {
	tb.Helper()
	for _, c := range clients {
		for range 3 {
			g := acquire(tb, c, "warm")
			check(tb, g.Extend(context.Background(), 2*time.Minute))
			unlock(tb, g)
		}
		unlock(tb, acquire(tb, c, "warm")) // with the lease of the Client's own TTL
	}
}

func acquire(tb testing.TB, c *dlock.Client, key string, opts ...dlock.LockOption) *dlock.Guard {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		began := time.Now()
		g, err := c.Acquire(ctx, key, opts...)
		if err != nil && ctx.Err() == nil && GaveUp(tb, err, began) {
			continue // a Client with MaxRetries does not wait until its context ends
		}
		check(tb, err)
		return g
	}
}

func unlock(tb testing.TB, g *dlock.Guard) {
	tb.Helper()
	Unlock(tb, g)
}

// Unlock unlocks a guard. It is for tests of something else: one that the machine has delayed may give up, and goes on
// releasing.
func Unlock(tb testing.TB, g *dlock.Guard) {
	tb.Helper()
	err := unlocked(tb, g)
	if err != nil {
		tb.Fatalf("unlock: %v", err)
	}
}

// release is Unlock for any goroutine of a test.
//
//nolint:contextcheck,nolintlint // the metronome outlasts the caller's context; the linter reports this in the callers
func release(tb testing.TB, g *dlock.Guard) {
	tb.Helper()
	err := unlocked(tb, g)
	if err != nil {
		tb.Errorf("unlock: %v", err)
	}
}

// unlocked unlocks a guard. It returns no error if Unlock gave up because the machine delayed it.
func unlocked(tb testing.TB, g *dlock.Guard) error {
	tb.Helper()
	began := time.Now()
	err := g.Unlock(context.Background())
	if err != nil && GaveUp(tb, err, began) {
		return nil
	}
	return err
}

// GaveUp reports whether a call gave up because the machine delayed it. The test has started a server or a metronome before.
func GaveUp(tb testing.TB, err error, began time.Time) bool {
	tb.Helper()
	return (errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrUnavailable)) && testenv.Stalled(tb, began, giveUpAfter)
}

// giveUpAfter is half of the time after which an unlock and Close give up.
const giveUpAfter = time.Second

// oneAttempt is less than a call waits for its answer on any backend. A call that does not wait for a lock is not repeated.
const oneAttempt = 500 * time.Millisecond

// An outcome is how a call that waited ended.
type outcome struct {
	guard *dlock.Guard
	err   error
	at    time.Time
}

// beginWait starts to wait for a lock.
func beginWait(ctx context.Context, c *dlock.Client, key string, opts ...dlock.LockOption) <-chan outcome {
	ch := make(chan outcome, 1)
	go func() {
		g, err := c.Acquire(ctx, key, opts...)
		ch <- outcome{g, err, time.Now()}
	}()
	return ch
}

// wait starts to wait for a lock, and returns when the servers have the claim.
func (s *scene) wait(c *dlock.Client, key string, opts ...dlock.LockOption) <-chan outcome {
	s.t.Helper()
	return s.waitWith(s.t.Context(), c, key, opts...)
}

// waitWith is wait until a context ends.
func (s *scene) waitWith(ctx context.Context, c *dlock.Client, key string, opts ...dlock.LockOption) <-chan outcome {
	s.t.Helper()
	before := len(s.Claims(s.t, key))
	ch := beginWait(ctx, c, key, opts...)
	testenv.Eventually(s.t, patience, "the claim is queued", func() bool { return len(s.Claims(s.t, key)) > before })
	return ch
}

// granted waits for the end of a wait, which must be a grant.
func (s *scene) granted(ch <-chan outcome) outcome {
	s.t.Helper()
	select {
	case got := <-ch:
		check(s.t, got.err)
		return got
	case <-time.After(patience):
		s.t.Fatalf("not granted within %v", patience)
		return outcome{}
	}
}

// returned waits for the end of a call.
func returned(tb testing.TB, what string, call <-chan error) error {
	tb.Helper()
	select {
	case err := <-call:
		return err
	case <-time.After(patience):
		tb.Fatalf("%s does not return", what)
		return nil
	}
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// expect may be called by any goroutine of a test.
func expect(tb testing.TB, err error, want ...error) {
	tb.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			tb.Errorf("error is %v, want %v", err, w)
		}
	}
}

// elapse lets time pass where time itself is the subject.
func elapse(d time.Duration) { <-time.After(d) }

func isLost(err error) bool { return errors.Is(err, dlock.ErrOwnershipLost) }
