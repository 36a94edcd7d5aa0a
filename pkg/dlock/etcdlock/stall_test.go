package etcdlock_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/hazardtest"
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

// eachRenewed waits until each of the guards has been renewed once more. It reports false if one was lost and that is excused.
func eachRenewed(t *testing.T, holds []*hazardtest.Hold) bool {
	t.Helper()
	last, renewed := map[*dlock.Guard]time.Duration{}, map[*dlock.Guard]bool{}
	var lost *hazardtest.Hold
	testenv.Eventually(t, patience, "a renewal", func() bool {
		for _, h := range holds {
			left := h.Remaining()
			if left <= 0 {
				lost = h
				return true
			}
			if before, seen := last[h.Guard]; seen && left > before {
				renewed[h.Guard] = true
			}
			last[h.Guard] = left
		}
		return len(renewed) == len(holds)
	})
	return lost == nil || !lost.Lost(t)
}
