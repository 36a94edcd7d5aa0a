package main

import (
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each of five workers finishes before the next one gets the lock.
func TestTurns(t *testing.T) {
	var out transcript
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	turns := regexp.MustCompile(`(?m)worker (\d)  has it, with fencing token (\d)\n.*worker (\d)  is done$`)
	var order string
	for _, m := range turns.FindAllStringSubmatch(out.without("wants the lock"), -1) {
		if m[1] == m[3] {
			order += m[2]
		}
	}
	if order != "12345" {
		t.Errorf("turns are %q:\n%s", order, out.text.String())
	}
}

// A transcript collects what several goroutines write, in order.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (t *transcript) Write(line []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(line)
}

// without returns the transcript without the lines that contain text.
func (t *transcript) without(text string) string {
	var kept strings.Builder
	for line := range strings.Lines(t.text.String()) {
		if !strings.Contains(line, text) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}
