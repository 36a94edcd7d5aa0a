package store_test

import (
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/lab/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A holder that was stopped between its read and its write spoils the counter that
// does not look at tokens, and not the other.
func TestLateWriteIsRefused(t *testing.T) {
	s, c := start(t)
	old := read(t, c, 1)
	next := read(t, c, 2)
	write(t, c, 2, "next", next)
	write(t, c, 1, "old", old)
	accepted, counts := s.Log()
	if len(accepted) != 1 || accepted[0].Attempt != "next" || counts.Rejected != 1 || counts.FencedLost != 0 || counts.UnfencedLost != 1 {
		t.Errorf("accepted %v, counts %+v", accepted, counts)
	}
	expectLost(t, s, "old", "next")
}

// It is refused even before the next holder has written: that one has read already.
func TestLateWriteBetweenReadAndWriteIsRefused(t *testing.T) {
	s, c := start(t)
	old := read(t, c, 1)
	next := read(t, c, 2)
	write(t, c, 1, "old", old)
	write(t, c, 2, "next", next)
	if accepted, counts := s.Log(); len(accepted) != 1 || counts.Rejected != 1 || counts.FencedLost != 0 {
		t.Errorf("accepted %v, counts %+v", accepted, counts)
	}
	expectLost(t, s, "next", "old")
}

// Tokens that go backwards make even the fenced counter lose updates, and it shows.
func TestTokensThatRepeatAreSeen(t *testing.T) {
	s, c := start(t)
	one, two := read(t, c, 7), read(t, c, 7)
	write(t, c, 7, "one", one)
	write(t, c, 7, "two", two)
	if _, counts := s.Log(); counts.FencedLost != 1 {
		t.Errorf("counts %+v", counts)
	}
}

// expectLost expects one lost update of the unfenced counter, with the times of both writes.
func expectLost(t *testing.T, s *store.Store, attempt, overwritten string) {
	t.Helper()
	lost := s.Lost()
	if len(lost) != 1 || lost[0].Write.Attempt != attempt || lost[0].Overwritten.Attempt != overwritten {
		t.Fatalf("lost %+v", lost)
	}
	for _, w := range []store.Write{lost[0].Write, lost[0].Overwritten} {
		if w.Key != "k" || w.Sent != 10+w.Fence || w.At <= w.Sent {
			t.Errorf("a write is kept as %+v", w)
		}
	}
}

func start(t *testing.T) (*store.Store, *store.Client) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	s, err := store.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := store.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return s, c
}

func read(t *testing.T, c *store.Client, fence int64) store.Values {
	t.Helper()
	v, err := c.Read("k", fence)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func write(t *testing.T, c *store.Client, fence int64, attempt string, v store.Values) {
	t.Helper()
	if err := c.Write(store.Write{Sent: 10 + fence, Key: "k", Attempt: attempt, Fence: fence}, v); err != nil {
		t.Fatal(err)
	}
}
