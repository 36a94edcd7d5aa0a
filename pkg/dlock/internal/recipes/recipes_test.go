package recipes

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

func TestResults(t *testing.T) {
	for text, want := range map[string]Result{
		"ok in 3.2s":                      {OK: true, Took: 3200 * time.Millisecond},
		"ok in 1m3s":                      {OK: true, Took: 63 * time.Second},
		"failed in 1.5ms: exit status 1":  {Took: 1500 * time.Microsecond, Error: "exit status 1"},
		"failed in 2s: dial: no route: x": {Took: 2 * time.Second, Error: "dial: no route: x"},
		"failed in 2s: ":                  {Took: 2 * time.Second},
		"lost in 2s: taken away":          {Lost: true, Took: 2 * time.Second, Error: "taken away"},
	} {
		if got, ok := ParseResult(text); !ok || got != want {
			t.Errorf("%q: %+v, %v", text, got, ok)
		}
		if got := want.String(); got != text {
			t.Errorf("%q is written as %q", text, got)
		}
	}
	for _, text := range []string{"", "ok", "ok in ", "ok in 3", "ok in soon", "failed in 3s", "lost in 3s", "lost in x: y", "failed: x", "make deploy"} {
		if got, ok := ParseResult(text); ok {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestTemporaryErrors(t *testing.T) {
	for _, err := range []error{driver.ErrUnavailable, driver.ErrNotReady, driver.ErrUnknownOutcome, driver.Classify(errors.New("loading"), driver.Transient)} {
		if !IsTemporary(fmt.Errorf("acquire: %w", err)) {
			t.Errorf("%v is not temporary", err)
		}
	}
	for _, err := range []error{
		nil, driver.ErrDenied, driver.ErrClosed, driver.ErrInvalidKey, driver.ErrUnsupported, errors.New("other"),
		fmt.Errorf("%w: %w", driver.ErrUnknownOutcome, driver.ErrClosed), driver.Classify(driver.ErrNotReady, driver.Fatal),
	} {
		if IsTemporary(err) {
			t.Errorf("%v is temporary", err)
		}
	}
}

func TestValues(t *testing.T) {
	for _, value := range []string{"10.0.0.7:80", "", "two words", " 7"} {
		if term, got, ok := ParseValue(Value(12, value)); !ok || term != 12 || got != value {
			t.Errorf("%q: %d, %q, %v", value, term, got, ok)
		}
	}
	for _, text := range []string{"", "12", "x y", "-1 y", " 12 y", "99999999999999999999 y"} {
		if term, value, ok := ParseValue(text); ok {
			t.Errorf("%q: %d, %q", text, term, value)
		}
	}
}

// Tokens order runs. Only one that lost its lock is put behind those that began after it.
func TestNewest(t *testing.T) {
	type run struct {
		name  string
		lost  bool
		began int // seconds
	}
	names := func(byToken ...run) (all string) {
		for _, r := range Newest(byToken, func(r run) bool { return r.lost }, func(r run) time.Time { return time.Unix(int64(r.began), 0) }) {
			all += r.name
		}
		return all
	}
	for _, tt := range []struct {
		got, want, why string
	}{
		{names(), "", "no runs"},
		{names(run{"a", false, 10}, run{"b", false, 5}), "ba", "a clock that is ahead does not matter"},
		{names(run{"a", false, 10}, run{"b", false, 20}, run{"c", true, 5}), "bac", "the last one lost its lock before the others began"},
		{names(run{"a", false, 10}, run{"b", false, 20}, run{"c", true, 15}), "bca", "between them"},
		{names(run{"a", false, 20}, run{"b", true, 19}), "ba", "a second is not enough to tell"},
		{names(run{"a", true, 5}, run{"b", false, 4}), "ba", "it lost its lock, and another followed"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %q, want %q", tt.why, tt.got, tt.want)
		}
	}
}
