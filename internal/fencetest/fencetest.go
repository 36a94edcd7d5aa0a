// Package fencetest holds a fenced resource against its promise: of two holders of a lock, the one
// with the smaller token can no longer write once the other has written.
//
// The tokens come from a real lock whose holder is evicted without noticing, as after a pause. Every
// scenario also runs without the fence, and must then corrupt the data: a scenario that cannot show
// the fault proves nothing about its absence.
package fencetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// rounds is how often a stale holder tries to write. Each try without the fence must show the fault.
var rounds = testenv.UnderStress(200, 1000)

// A Resource is what is tested. The functions may be called from any goroutine.
type Resource struct {
	// Fenced writes a value as the holder with this token.
	Fenced func(ctx context.Context, name string, token int64, value string) error
	// Plain writes a value without a token.
	Plain func(ctx context.Context, name, value string) error
	// Read returns the value, or "" if there is none.
	Read func(ctx context.Context, name string) (string, error)
	// Temporary reports an error after which the same write can be tried again, such as a deadlock
	// that the database has resolved. Optional.
	Temporary func(error) bool
}

// Run runs all scenarios.
func Run(t *testing.T, r Resource) {
	t.Helper()
	t.Run("late writes", func(t *testing.T) { lateWrites(t, r) })
	t.Run("random tokens", func(t *testing.T) { randomTokens(t, r) })
}

// lateWrites: in each round two holders write at the same time, and the stale one once more.
func lateWrites(t *testing.T, r Resource) {
	l := newLock(t)
	late, concurrent, wrong, control := 0, 0, 0, 0
	for i := range rounds {
		stale, current := l.twoHolders(t)
		name := fmt.Sprint("round:", i)
		var together atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() { together.Store(accepted(t, r, name, stale)) })
		wg.Go(func() {
			if !accepted(t, r, name, current) {
				t.Errorf("round %d: the holder of the lock was refused", i)
			}
		})
		wg.Wait()
		if together.Load() {
			concurrent++ // allowed, if it came first
		}
		wrong += differs(t, r, name, current)
		if accepted(t, r, name, stale) {
			late++
		}
		wrong += differs(t, r, name, current)
		control += uncheckedRound(t, r, name+":plain", stale, current)
	}
	t.Logf("%d rounds: %d late writes accepted, %d values of a stale holder; %d concurrent writes of a stale holder came first and were accepted; without the fence %d values of a stale holder",
		rounds, late, wrong, concurrent, control)
	if late != 0 || wrong != 0 {
		t.Errorf("of %d rounds, %d late writes were accepted, and a stale value was found %d times", rounds, late, wrong)
	}
	if control != rounds {
		t.Errorf("without the fence, %d of %d late writes corrupted the data: the scenario does not show the fault", control, rounds)
	}
}

// uncheckedRound is a round without the fence. It returns 1 if the stale holder has the last word.
func uncheckedRound(t *testing.T, r Resource, name string, stale, current int64) int {
	t.Helper()
	for _, token := range []int64{current, stale} {
		err := again(r, func() error { return r.Plain(t.Context(), name, fmt.Sprint(token)) })
		if err != nil {
			t.Fatal(err)
		}
	}
	return differs(t, r, name, current)
}

// differs returns 1 if the value is not that of the token.
func differs(t *testing.T, r Resource, name string, token int64) int {
	t.Helper()
	value, err := r.Read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if value != fmt.Sprint(token) {
		return 1
	}
	return 0
}

// accepted writes the token as a value. Errors other than ErrStale fail the test.
func accepted(t *testing.T, r Resource, name string, token int64) bool {
	t.Helper()
	err := again(r, func() error { return r.Fenced(t.Context(), name, token, fmt.Sprint(token)) })
	if err != nil && !errors.Is(err, fence.ErrStale) {
		t.Errorf("token %d: %v", token, err)
	}
	return err == nil
}

// again repeats what failed for a moment.
func again(r Resource, write func() error) (err error) {
	for range 100 {
		err = write()
		if err == nil || r.Temporary == nil || !r.Temporary(err) {
			return err
		}
	}
	return err
}

// A write of the random test. Begin and end are times of a logical clock.
type write struct {
	token, begin, end int64
	accepted          bool
}

const writers = 16

var perWriter = testenv.UnderStress(10, 40)

// randomTokens: many holders write at the same time, with tokens that increase by and large. A write that begins after a greater token was
// accepted is refused, and the last value is that of the greatest token.
func randomTokens(t *testing.T, r Resource) {
	var clock atomic.Int64
	all := make([]write, writers*perWriter)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for j := range perWriter {
				w := &all[i*perWriter+j]
				w.begin = clock.Add(1)
				w.token = w.begin*100 + rand.Int64N(100*writers)
				w.accepted = accepted(t, r, "random", w.token)
				w.end = clock.Add(1)
			}
		})
	}
	wg.Wait()
	greatest := slices.MaxFunc(all, func(a, b write) int { return cmp.Compare(a.token, b.token) }).token
	if differs(t, r, "random", greatest) != 0 {
		value, _ := r.Read(t.Context(), "random")
		t.Errorf("the value is %q, the greatest token %d", value, greatest)
	}
	n := 0
	for _, a := range all {
		if a.accepted {
			n++
		}
		for _, b := range all {
			switch {
			case b.end < a.begin && b.accepted && a.accepted && b.token > a.token:
				t.Errorf("token %d was accepted after %d", a.token, b.token)
			case !a.accepted && a.token == greatest:
				t.Fatalf("the greatest token %d was refused", a.token)
			}
		}
	}
	t.Logf("%d of %d writes with random tokens accepted", n, len(all))
}

// CheckHistory fails the test if the tokens of a history, separated by commas in the order in which
// the resource has applied them, ever decrease.
func CheckHistory(t testing.TB, history string) {
	t.Helper()
	last, n := int64(0), 0
	for text := range strings.SplitSeq(strings.Trim(history, ","), ",") {
		token, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatalf("history %q: %v", history, err)
		}
		if token < last {
			t.Errorf("token %d was applied after %d", token, last)
		}
		last, n = token, n+1
	}
	t.Logf("%d writes in the history, in the order of their tokens", n)
}

// A lock gives tokens.
type lock struct {
	client *dlock.Client
	admin  *dlock.Admin
}

func newLock(t *testing.T) *lock {
	t.Helper()
	client, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()), dlock.WithAdmin(), dlock.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	admin, err := client.Admin()
	if err != nil {
		t.Fatal(err)
	}
	return &lock{client, admin}
}

// twoHolders returns the tokens of a holder that was evicted and does not know it, and of the next.
func (l *lock) twoHolders(t *testing.T) (stale, current int64) {
	t.Helper()
	const key = "resource"
	first, err := l.client.Acquire(t.Context(), key, dlock.WithoutRenewal())
	if err != nil {
		t.Fatal(err)
	}
	err = l.admin.Evict(t.Context(), key, first.Token())
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.client.Acquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	stale, current = first.Token(), second.Token()
	if stale <= 0 || current <= stale {
		t.Fatalf("tokens %d and %d", stale, current)
	}
	_ = first.Unlock(t.Context()) // reports that it was lost
	err = second.Unlock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stale, current
}
