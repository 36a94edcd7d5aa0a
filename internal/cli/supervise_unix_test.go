//go:build unix

package cli

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
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

// A command that cannot be killed, as that of sudo, is not said to be ended.
func TestUnkilled(t *testing.T) {
	t.Parallel()
	for want, refusal := range map[string]error{"was ended": syscall.ESRCH, "could not be killed": syscall.EPERM} {
		said := new(bytes.Buffer)
		s := &supervisor{
			run: newRun(t, memlock.New(), clog.Logger{}), why: errors.New("it took too long"), killAt: time.Now(),
			child: &child{pid: 1 << 30, send: func(int, syscall.Signal) error { return refusal }},
		}
		if err := s.acquire(nil); err != nil {
			t.Fatal(err)
		}
		s.reporter.events, s.reporter.quiet = said, false
		s.look()
		_, err := s.result(0)
		if told := strings.Contains(said.String(), "cannot be killed"); codeOf(err) != ExitLost || !strings.Contains(err.Error(), want) || told != errors.Is(refusal, syscall.EPERM) {
			t.Errorf("%v: %v, and it says %q", refusal, err, said)
		}
	}
}
