package cli

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A command that is not ended though its lock is about to be lost, or that was killed just before,
// is not looked at all the time.
func TestLookPauses(t *testing.T) {
	t.Parallel()
	for _, s := range []*supervisor{{}, {killAt: time.Now(), killed: true}} {
		s.run = newRun(t, memlock.New(), clog.Logger{})
		s.onLost, s.grace = "warn", s.ttl
		var err error
		if s.guard, err = s.client.Acquire(t.Context(), "k", dlock.WithTTL(s.ttl), dlock.WithoutRenewal()); err != nil {
			t.Fatal(err)
		}
		if pause := s.look(); pause < s.ttl/10 {
			t.Errorf("killed %t: the next look is in %v", s.killed, pause)
		}
	}
}
