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
)

// giveUpAfter is half of the time after which an unlock gives up, and a server has not granted a lease in time.
const giveUpAfter = time.Second

// A sharedStall excuses calls that are made at the same time. A stall that delays several of them counts as one.
type sharedStall struct {
	mu   sync.Mutex
	seen time.Time // when the last stall was counted
}

// excuses reports whether a stall has delayed a call that began then for longer than a limit.
func (s *sharedStall) excuses(t testing.TB, began time.Time, limit time.Duration) bool {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if began.Before(s.seen) {
		return testenv.StartMetronome(t).Stalled(began, limit)
	}
	if !testenv.Stalled(t, began, limit) {
		return false
	}
	s.seen = time.Now()
	return true
}

// untilValid repeats a round that a stall has made void, with servers and Clients of its own.
func untilValid(t *testing.T, round func(t *testing.T) (valid bool)) {
	t.Helper()
	const most = 6
	for i := range most {
		valid := false
		t.Run(fmt.Sprint("round ", i), func(t *testing.T) { valid = round(t) })
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
// lease for as long as the test has to spare. Under stress nothing is excused.
func keep(t testing.TB, g *dlock.Guard, spare time.Duration) hold {
	t.Helper()
	h, metronome := hold{g, make(chan bool, 1)}, testenv.StartMetronome(t)
	context.AfterFunc(g.Context(), func() {
		late := strings.Contains(context.Cause(g.Context()).Error(), "not renewed in time")
		h.excused <- late && metronome.Longest(time.Now().Add(-g.TTL())) >= testenv.UnderStress(spare, time.Hour)
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
	excused := false
	select {
	case excused = <-h.excused:
	case <-time.After(patience):
	}
	if !excused {
		t.Fatalf("%q is lost: %v", h.Key(), context.Cause(h.Context()))
	}
	return false
}
