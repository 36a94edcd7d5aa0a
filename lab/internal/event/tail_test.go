package event_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ceyewan/genesis/lab/internal/event"
)

// A line is read once, when it is whole.
func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	log, err := event.Open(path, "w")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	tail, err := event.Follow(path)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Close()
	expect := func(want ...event.Kind) {
		t.Helper()
		got, err := tail.Next()
		if err != nil || len(got) != len(want) {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
		for i, e := range got {
			if e.Kind != want[i] {
				t.Errorf("%v, want %v", e, want[i])
			}
		}
	}
	log.Add(event.Event{Kind: event.Start})
	log.Add(event.Event{Kind: event.Call})
	expect(event.Start, event.Call)
	expect()
	raw, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_, _ = raw.WriteString(`{"at":1,"kind":"en`)
	expect()
	_, _ = raw.WriteString("ter\"}\n")
	expect(event.Enter)
}
