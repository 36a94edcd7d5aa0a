package hazardtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A Hold is a guard that must not be lost.
type Hold struct {
	*dlock.Guard
	excuse chan bool // when it is lost
}

// Keep returns the Hold of a guard. Its loss is excused if it was not renewed in time, and stalls of the machine during its last
// lease took what the test has to spare: see Metronome.MayMiss. Under stress nothing is excused.
func Keep(tb testing.TB, g *dlock.Guard, spare time.Duration) *Hold {
	tb.Helper()
	h, metronome := &Hold{g, make(chan bool, 1)}, testenv.StartMetronome(tb)
	context.AfterFunc(g.Context(), func() {
		h.excuse <- isUnrenewed(context.Cause(g.Context())) && metronome.MayMiss(time.Now().Add(-g.TTL()), g.TTL(), spare)
	})
	return h
}

// isUnrenewed reports whether a lock was lost because it was not renewed in time.
func isUnrenewed(cause error) bool { return strings.Contains(cause.Error(), "not renewed in time") }

// Lost reports whether the guard is lost. If that is not excused, the test fails. Otherwise the trial is void: see UntilValid.
func (h *Hold) Lost(tb testing.TB) bool {
	tb.Helper()
	if h.Context().Err() == nil && h.Remaining() > 0 {
		return false
	}
	select {
	case excused := <-h.excuse:
		h.excuse <- excused // for the next call
		cause := context.Cause(h.Context())
		if !excused {
			tb.Fatalf("%q is lost, and no stall of the machine explains it: %v", h.Key(), cause)
		}
		tb.Logf("%q is lost because the machine stalled: %v", h.Key(), cause)
	case <-time.After(patience):
		tb.Fatalf("the loss of %q is not reported", h.Key())
	}
	return true
}

// RenewedAgain waits until the guard has been renewed recently. It reports false if the guard is Lost.
func (h *Hold) RenewedAgain(tb testing.TB) bool {
	tb.Helper()
	left := time.Duration(0)
	testenv.Eventually(tb, patience, "the lock is renewed again", func() bool {
		left = h.Remaining()
		return left == 0 || left > h.TTL()*3/4
	})
	return !h.Lost(tb)
}

// UntilValid repeats a round that a stall has made void, as a test of its own: it has other servers and Clients. A round without
// a server skips the test.
func UntilValid(t *testing.T, round func(t *testing.T) (valid bool)) {
	t.Helper()
	for i := range maxVoid + 1 {
		valid, skipped := false, false
		t.Run(fmt.Sprint("round ", i), func(t *testing.T) {
			defer func() { skipped = t.Skipped() }() // which ends the round
			valid = round(t)
		})
		if skipped {
			t.SkipNow()
		}
		if valid || t.Failed() {
			return
		}
		t.Log("the machine stalled, so the round is repeated")
	}
	t.Fatalf("%d rounds are void: this machine is too slow", maxVoid+1)
}
