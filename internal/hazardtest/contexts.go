package hazardtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// CancelledCallsLeaveNothing ends the contexts of calls anywhere on the way: nothing is left.
func CancelledCallsLeaveNothing(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	const workers = 10
	var clients [workers]*dlock.Client
	for w := range clients {
		clients[w] = s.proxied(dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond})
		warm(t, clients[w])
	}
	var cut cutOff
	var wg sync.WaitGroup
	for w, c := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(5, uint64(w)))
			for i := range testenv.UnderStress(30, 100) {
				if w == 0 {
					s.Delay(time.Duration(rng.IntN(25))*time.Millisecond, time.Duration(rng.IntN(25))*time.Millisecond)
				}
				key := fmt.Sprintf("k%d", w)
				if i%3 == 0 {
					key = "shared"
				}
				after := time.Duration(rng.IntN(60_000)) * time.Microsecond
				if i%10 == 7 {
					after = patience // some acquire, however slow the machine is
				}
				cut.call(t, c, key, after, i)
			}
		})
	}
	wg.Wait()
	s.Heal()
	s.nothingLeft(s.Traits().Healed)
	elapse(300 * time.Millisecond) // nor does anything come back
	s.nothingLeft(0)
	if cut.cancelled.Load() == 0 || cut.acquired.Load() == 0 {
		t.Errorf("%d calls were cancelled, %d acquired: the fault did not happen", cut.cancelled.Load(), cut.acquired.Load())
	}
	t.Logf("%d calls were cancelled, %d acquired", cut.cancelled.Load(), cut.acquired.Load())
}

// A cutOff counts how calls that are cut off end.
type cutOff struct{ cancelled, acquired atomic.Int64 }

// call acquires and, with a context that is over, unlocks.
func (o *cutOff) call(t *testing.T, c *dlock.Client, key string, after time.Duration, i int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if i%2 == 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, after)
		defer end()
	} else {
		defer time.AfterFunc(after, cancel).Stop()
	}
	var opts []dlock.LockOption
	if i%4 == 3 {
		opts = append(opts, dlock.WithoutRenewal())
	}
	g, err := c.Acquire(ctx, key, opts...)
	switch {
	case err == nil:
		o.acquired.Add(1)
		if after == patience {
			cancel()
		}
		<-ctx.Done()
		_ = g.Unlock(ctx)
	case ctx.Err() != nil:
		o.cancelled.Add(1)
	default:
		t.Error(err)
	}
}

// CallsReturnWithTheirContext calls every public method on a link that is dead, or refused: none
// outlives its context, however that ends.
func CallsReturnWithTheirContext(t *testing.T, open Open) {
	t.Parallel()
	ends := map[string]contextEnd{
		"Deadline": {context.DeadlineExceeded, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), contextLasts)
		}},
		"Cancel": {context.Canceled, func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(contextLasts, cancel)
			return ctx, cancel
		}},
	}
	for name, end := range ends {
		for link, dead := range map[string]bool{"Dead": true, "Refused": false} {
			t.Run(link+name, func(t *testing.T) {
				t.Parallel()
				s := begin(t, open)
				c, calls := s.everyCall()
				s.callWithout(dead, end, c, calls)
			})
		}
	}
}

// contextLasts is how long calls may take.
const contextLasts = 200 * time.Millisecond

// A contextEnd is how the context of a call ends.
type contextEnd struct {
	err   error
	begin func() (context.Context, context.CancelFunc)
}

// A namedCall is a public method.
type namedCall struct {
	name string
	call func(context.Context) error
}

// everyCall returns a Client that holds locks, and all that can be asked of it.
func (s *scene) everyCall() (*dlock.Client, []namedCall) {
	c := s.proxied(dlock.Config{DefaultTTL: time.Minute})
	admin, err := c.Admin()
	check(s.t, err)
	warm(s.t, c)
	s.awaitWatches(0)
	held := acquire(s.t, c, "held")
	s.awaitWatches(1)
	extended := acquire(s.t, c, "extended")
	s.awaitWatches(2)
	check(s.t, c.Lock(context.Background(), "keyed"))
	s.awaitWatches(3)
	_, err = admin.Inspect(context.Background(), "held")
	check(s.t, err)
	return c, []namedCall{
		{"Lock", func(ctx context.Context) error { return c.Lock(ctx, "k") }},
		{"Guard.Unlock", held.Unlock},
		{"Admin.Inspect", func(ctx context.Context) error { _, err := admin.Inspect(ctx, "held"); return err }},
		{"TryLock", func(ctx context.Context) error { _, err := c.TryLock(ctx, "k"); return err }},
		{"Acquire", func(ctx context.Context) error { _, err := c.Acquire(ctx, "k"); return err }},
		{"Acquire with another TTL", func(ctx context.Context) error { _, err := c.Acquire(ctx, "k", dlock.WithTTL(time.Hour)); return err }},
		{"TryAcquire", func(ctx context.Context) error { _, err := c.TryAcquire(ctx, "k"); return err }},
		{"Do", func(ctx context.Context) error { return c.Do(ctx, "k", func(context.Context) error { return nil }) }},
		{"Extend", func(ctx context.Context) error { return extended.Extend(ctx, 2*time.Minute) }},
		{"Unlock", func(ctx context.Context) error { return c.Unlock(ctx, "keyed") }},
		{"Admin.List", func(ctx context.Context) error { _, _, err := admin.ListPage(ctx, "", "", 10); return err }},
		{"Admin.Evict", func(ctx context.Context) error { return admin.Evict(ctx, "held", held.Token()) }},
		{"Check", func(ctx context.Context) error { _, err := c.Check(ctx); return err }},
	}
}

// awaitWatches waits until a Client watches all locks that it holds, if holders watch on this backend: it then reads what it
// watches, and several locks at once with a call that may count as a write.
func (s *scene) awaitWatches(locks int) {
	s.t.Helper()
	each := s.Traits().HolderWatches
	testenv.Eventually(s.t, patience, "the locks are watched", func() bool {
		return each == 0 || s.Subscriptions(s.t) == locks*each
	})
}

// callWithout makes the calls on a link that is dead, or cut and refused.
func (s *scene) callWithout(dead bool, end contextEnd, c *dlock.Client, calls []namedCall) {
	t := s.t
	metronome := testenv.StartMetronome(t)
	if dead {
		s.BlackHole(true)
	} else {
		s.Refuse(true)
		s.Cut()
	}
	// Everything was answered before the fault: from here on the servers get nothing.
	acquired, released := s.Carried(t, Acquire), s.Carried(t, Release)
	for _, call := range calls {
		ctx, cancel := end.begin()
		started, failed := time.Now(), make(chan error, 1)
		go func() { failed <- call.call(ctx) }()
		err := returned(t, call.name, failed)
		took := time.Since(started)
		over := took - contextLasts - metronome.Lost(started)
		if over > 100*time.Millisecond {
			t.Logf("%s outlived its context by %v; the mark is 100 ms", call.name, over.Round(time.Millisecond))
		}
		if over > testenv.UnderStress(4*time.Second, 100*time.Millisecond) {
			t.Errorf("%s outlived its context by %v", call.name, over.Round(time.Millisecond))
		}
		// Whatever the machine: it was this context, not an attempt timeout.
		if err == nil || dead && (took < contextLasts*3/4 || !errors.Is(err, end.err)) {
			t.Errorf("%s on a dead link: %v after %v, not the end of its context", call.name, err, took)
		}
		cancel()
	}
	if acquired() != 0 || released() != 0 {
		t.Error("the link was not dead")
	}
	s.closeWithin(c, dlock.ErrUnknownOutcome)
}

// closeWithin closes a Client, and reports whether Close gave up. It gives up after two seconds, and must be back in three;
// without a timeout it would wait for servers that do not answer. With nil as what is wanted, it may give up only if the machine
// took the time.
func (s *scene) closeWithin(c *dlock.Client, want error) (gaveUp bool) {
	s.t.Helper()
	metronome := testenv.StartMetronome(s.t)
	started, closed := time.Now(), make(chan error, 1)
	go func() { closed <- c.Close() }()
	err := returned(s.t, "Close", closed)
	took := time.Since(started)
	gaveUp = want == nil && errors.Is(err, dlock.ErrUnknownOutcome) && testenv.Stalled(s.t, started, giveUpAfter)
	if !errors.Is(err, want) && !gaveUp {
		s.t.Errorf("Close returns %v, want %v", err, want)
	}
	if took > s.Traits().Close+metronome.Lost(started) {
		s.t.Errorf("Close took %v", took.Round(time.Millisecond))
	}
	return gaveUp
}
