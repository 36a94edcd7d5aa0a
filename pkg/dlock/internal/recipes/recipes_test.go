package recipes

import (
	"testing"
	"time"
)

func TestResults(t *testing.T) {
	for text, want := range map[string]Result{
		"ok in 3.2s":                      {OK: true, Took: 3200 * time.Millisecond},
		"ok in 1m3s":                      {OK: true, Took: 63 * time.Second},
		"failed in 1.5ms: exit status 1":  {Took: 1500 * time.Microsecond, Error: "exit status 1"},
		"failed in 2s: dial: no route: x": {Took: 2 * time.Second, Error: "dial: no route: x"},
		"failed in 2s: ":                  {Took: 2 * time.Second},
	} {
		if got, ok := ParseResult(text); !ok || got != want {
			t.Errorf("%q: %+v, %v", text, got, ok)
		}
		if got := want.String(); got != text {
			t.Errorf("%q is written as %q", text, got)
		}
	}
	for _, text := range []string{"", "ok", "ok in ", "ok in 3", "ok in soon", "failed in 3s", "failed: x", "make deploy"} {
		if got, ok := ParseResult(text); ok {
			t.Errorf("%q: %+v", text, got)
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
