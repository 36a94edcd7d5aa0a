package etcdlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// giveUpAfter is half of the time after which an unlock gives up, and a server has not granted a lease in time.
const giveUpAfter = time.Second

// slowWrite is how long a write takes on a slow server: a call that gives up after two seconds may make four of them in turn.
const slowWrite = giveUpAfter / 2

// maxSlow is how many delays of a test a slow server excuses: as many as a machine that stalls.
const maxSlow = 5

// A sharedStall excuses calls that are made at the same time. A stall that delays several of them counts as one.
type sharedStall struct {
	writes *etcdlock.Writes // if it is not nil, a slow server is an excuse as well
	mu     sync.Mutex
	seen   time.Time // when the last stall was counted
	slow   int       // how many of them were the server's
}

// excuses reports whether a stall has delayed a call that began then for longer than a limit. Under stress nothing is excused.
func (s *sharedStall) excuses(t testing.TB, began time.Time, limit time.Duration) bool {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	isLate := time.Since(began) > testenv.UnderStress(limit, time.Hour)
	isSlow := isLate && s.writes != nil && s.writes.Slowest(began) >= slowWrite
	if began.Before(s.seen) {
		return isSlow || testenv.StartMetronome(t).Stalled(began, limit)
	}
	if !testenv.Stalled(t, began, limit) {
		if !isSlow || s.slow == maxSlow {
			return false
		}
		s.slow++
	}
	s.seen = time.Now()
	return true
}

// untilValid repeats a round that a stall has made void, with servers and Clients of its own. A round without a server skips the test.
func untilValid(t *testing.T, round func(t *testing.T) (valid bool)) {
	t.Helper()
	const most = 6
	for i := range most {
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
	t.Fatalf("%d rounds are void: this machine is too slow", most)
}

// A hold is a guard that must not be lost.
type hold struct {
	*dlock.Guard
	excused chan bool // when it is lost
}

// keep returns the hold of a guard. Its loss is excused if it was not renewed in time, and the machine stalled during its last
// lease: once for as long as the test has to spare, or in many short stalls for twice as long, which delay a renewal at every step.
// Under stress nothing is excused.
func keep(t testing.TB, g *dlock.Guard, spare time.Duration) hold {
	t.Helper()
	h, metronome := hold{g, make(chan bool, 1)}, testenv.StartMetronome(t)
	context.AfterFunc(g.Context(), func() {
		late := strings.Contains(context.Cause(g.Context()).Error(), "not renewed in time")
		since, least := time.Now().Add(-g.TTL()), testenv.UnderStress(spare, time.Hour)
		h.excused <- late && (metronome.Longest(since) >= least || metronome.Lost(since) >= 2*least)
	})
	return h
}

// renewedAgain waits until a guard has been renewed recently. It reports false if the guard was lost and that is excused.
func renewedAgain(t *testing.T, h hold) bool {
	t.Helper()
	left := time.Duration(0)
	testenv.Eventually(t, patience, "the lock is renewed again", func() bool {
		left = h.Remaining()
		return left == 0 || left > h.TTL()*3/4
	})
	if left > 0 {
		alive(t, h.Guard)
		return true
	}
	wantExcused(t, h)
	return false
}

// eachRenewed waits until each of the guards has been renewed once more. It reports false if one was lost and that is excused.
func eachRenewed(t *testing.T, holds []hold) bool {
	t.Helper()
	last, renewed := map[*dlock.Guard]time.Duration{}, map[*dlock.Guard]bool{}
	var lost *hold
	testenv.Eventually(t, patience, "a renewal", func() bool {
		for _, h := range holds {
			left := h.Remaining()
			if left <= 0 {
				lost = &h
				return true
			}
			if before, seen := last[h.Guard]; seen && left > before {
				renewed[h.Guard] = true
			}
			last[h.Guard] = left
		}
		return len(renewed) == len(holds)
	})
	if lost != nil {
		wantExcused(t, *lost)
	}
	return lost == nil
}

// wantExcused fails the test unless the loss of a guard is excused.
func wantExcused(t *testing.T, h hold) {
	t.Helper()
	excused := false
	select {
	case excused = <-h.excused:
	case <-time.After(patience):
	}
	if !excused {
		t.Fatalf("%q is lost: %v", h.Key(), context.Cause(h.Context()))
	}
}
