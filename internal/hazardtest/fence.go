package hazardtest

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// PausedHolderIsFenced pauses a process that holds locks for twice their lease and lets it
// write then: a store that checks the fence refuses it, and one that does not is corrupted.
func PausedHolderIsFenced(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	ttl := s.Traits().DeadTTL
	c, child, data := s.direct(dlock.Config{DefaultTTL: time.Minute}), s.startProcess(), newStore()
	const keys = 20
	corrupted := 0
	for round := range max(1, s.rounds(1, 2, 25)) { // 25 x 20 are 500 stale writes
		var stale [keys]int64
		key := func(i int) string { return fmt.Sprintf("k%d-%d", round, i) }
		for i := range keys {
			child.tell("hold %s %v", key(i), ttl)
			child.read("held", &stale[i])
		}
		child.signal(syscall.SIGSTOP)
		elapse(2 * ttl)
		for i := range keys {
			g := acquire(t, c, key(i))
			defer func() { _ = g.Unlock(t.Context()) }()
			if g.Token() <= stale[i] {
				t.Errorf("token %d after %d", g.Token(), stale[i])
			}
			if !data.write(key(i), g.Token(), "good") {
				t.Fatal("the write of the holder is refused")
			}
		}
		child.tell("write")
		child.signal(syscall.SIGCONT)
		taken, lost := 0, 0
		for range keys {
			var written string
			var token int64
			child.read("write", &written, &token)
			if data.write(written, token, "stale") {
				taken++
			}
		}
		child.read("lost", &lost)
		if taken != 0 || lost != keys {
			t.Errorf("%d stale writes were taken; %d of %d locks are told as lost", taken, lost, keys)
		}
		for i := range keys {
			if value := data.fenced[key(i)]; value != "good" {
				t.Errorf("the fenced value is %q", value)
			}
			if data.plain[key(i)] == "stale" {
				corrupted++
			}
		}
	}
	if corrupted == 0 {
		t.Error("without a fence nothing was corrupted: the scenario does not bite")
	}
	t.Logf("without a fence %d stale writes were taken", corrupted)
}

// A store is something that locks guard: values with a fence, and the same values without.
type store struct {
	fences        map[string]int64
	fenced, plain map[string]string
}

func newStore() *store {
	return &store{map[string]int64{}, map[string]string{}, map[string]string{}}
}

// write reports whether the fenced value was written.
func (s *store) write(key string, token int64, value string) bool {
	s.plain[key] = value
	if token < s.fences[key] {
		return false
	}
	s.fences[key], s.fenced[key] = token, value
	return true
}
