package hazardtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// PausedHolderIsFenced pauses a process that holds locks for twice their lease and lets it
// write then: a store that checks the fence refuses it, as do servers that check the owner, and
// a store that does neither is corrupted.
func PausedHolderIsFenced(t *testing.T, open Open) {
	t.Parallel()
	s := begin(t, open)
	c, child, data := s.direct(dlock.Config{DefaultTTL: time.Minute}), s.startProcess(), newStore()
	const keys = 20
	corrupted := 0
	for round := range max(1, s.rounds(1, 2, 25)) { // 25 x 20 are 500 stale writes
		var names []string
		for i := range keys {
			names = append(names, fmt.Sprintf("k%d-%d", round, i))
		}
		owned := s.pauseHolder(c, child, data, names)
		s.writeStale(child, data, owned)
		for _, key := range names {
			if value := data.fenced[key]; value != "good" {
				t.Errorf("the fenced value is %q", value)
			}
			if data.plain[key] == "stale" {
				corrupted++
			}
		}
	}
	if corrupted == 0 {
		t.Error("without a fence nothing was corrupted: the scenario does not bite")
	}
	t.Logf("without a fence %d stale writes were taken", corrupted)
}

// pauseHolder has a child acquire locks and pauses it until c holds them and has written. It
// returns what the child may write to while it is the owner, by key.
func (s *scene) pauseHolder(c *dlock.Client, child *process, data *store, names []string) map[string]*OwnedValue {
	s.t.Helper()
	ttl := s.Traits().DeadTTL
	stale, owned := map[string]int64{}, map[string]*OwnedValue{}
	for _, key := range names {
		var token int64
		child.send("hold %s %v", key, ttl)
		child.read("held", &token)
		stale[key], owned[key] = token, s.Owned(s.t, key, token)
	}
	child.signal(stopSignal)
	elapse(2 * ttl)
	for _, key := range names {
		g := acquire(s.t, c, key)
		s.t.Cleanup(func() { _ = g.Unlock(context.Background()) })
		if g.Token() <= stale[key] {
			s.t.Errorf("token %d after %d", g.Token(), stale[key])
		}
		if !data.write(key, g.Token(), "good") {
			s.t.Fatal("the write of the holder is refused")
		}
		mine := s.Owned(s.t, key, g.Token())
		if mine != nil && !mine.Write("good") {
			s.t.Fatal("the servers refuse the write of the owner")
		}
	}
	return owned
}

// writeStale lets the child go on: none of its writes may be taken, and it learns that its
// locks are lost.
func (s *scene) writeStale(child *process, data *store, owned map[string]*OwnedValue) {
	s.t.Helper()
	child.send("write")
	child.signal(resumeSignal)
	taken, lost := 0, 0
	for range owned {
		var key string
		var token int64
		child.read("write", &key, &token)
		if data.write(key, token, "stale") {
			taken++
		}
		value := owned[key]
		if value == nil {
			continue
		}
		if value.Write("stale") || value.Read() != "good" {
			s.t.Errorf("the servers took a write of a former owner: the value is %q", value.Read())
		}
	}
	child.read("lost", &lost)
	if taken != 0 || lost != len(owned) {
		s.t.Errorf("%d stale writes were taken; %d of %d locks are reported as lost", taken, lost, len(owned))
	}
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
