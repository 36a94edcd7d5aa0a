package redlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// limit sets maxmemory on all nodes.
func (s *set) limit(tb testing.TB, bytes string) {
	tb.Helper()
	for _, d := range s.direct {
		check(tb, d.ConfigSet(tb.Context(), "maxmemory", bytes).Err())
	}
}

// Renewals and releases work on servers at maxmemory; nothing new is stored, and the error says
// why.
func TestAtMaxmemoryHeldLocksWork(t *testing.T) {
	s := start(t, 3)
	c := s.locks(t, dlock.Config{DefaultTTL: time.Minute})
	g := acquire(t, c, "k")
	s.limit(t, "1")
	_, err := c.TryLock(t.Context(), "other")
	want(t, err, redlock.ErrOutOfMemory)
	if !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("a new lock: %v", err)
	}
	check(t, g.Extend(t.Context(), 2*time.Minute))
	unlock(t, g)
	soon(t, "nothing is left", func() bool { return len(s.left(t)) == 0 })
}

// A release at maxmemory leaves a tombstone for a claim of which an attempt may still arrive.
func TestTombstoneAtMaxmemory(t *testing.T) {
	s := start(t, 3)
	d := s.open(t, patient)
	late := claim(1)
	late.Unanswered = true
	s.limit(t, "1")
	release(t, d, late, driver.Gone)
	s.limit(t, "0")
	late.Unanswered = false
	submit(t, d, driver.Request{Ref: late}, driver.Gone)
	submit(t, d, driver.Request{Ref: claim(2)}, driver.Held)
}
