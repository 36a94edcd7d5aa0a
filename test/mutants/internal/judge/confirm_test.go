package judge

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A failure counts only next to runs that pass without the mutant. Here the mutant is never
// noticed: the test fails when it is told to. m is a run with the mutant, c one without it.
func TestConfirm(t *testing.T) {
	j := prepare(t)
	src, byName := mutants(t, j)
	w, err := j.Worker()
	if err != nil {
		t.Fatal(err)
	}
	m, ok := byName["Double: func Double(n int) int { return n «+ → -» n }"]
	if !ok {
		t.Fatal("there is no mutant of Double")
	}
	for _, tc := range []struct {
		name, outcomes string
		status         string
		broken, shaky  bool
	}{
		{name: "m passes", outcomes: "p", status: Survived},
		{name: "m fails, c passes twice, m fails", outcomes: "fppfp", status: Caught},
		{name: "m fails, c passes twice, m passes", outcomes: "fp", status: Survived},
		{name: "all fail", outcomes: "f", broken: true},
		{name: "c fails and passes, c passes and m passes", outcomes: "ffpp", status: Survived, shaky: true},
		{name: "c fails and passes, c passes and m fails, four times", outcomes: "ffppfpfpfpfp", status: Caught, shaky: true},
		{name: "c fails and passes, c passes and m fails, then c fails", outcomes: "ffppff", broken: true, shaky: true},
		{name: "c fails four times and passes, c passes and m passes", outcomes: "fffffppp", status: Survived, shaky: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j.suites[small].forgetShaky("TestScripted")
			file := filepath.Join(t.TempDir(), "outcomes")
			err := os.WriteFile(file, []byte(tc.outcomes), 0o600)
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv("SMALL_OUTCOMES", file)
			got, err := w.Judge(t.Context(), m, src, smallTarget, false)
			if got.Status != tc.status || errors.Is(err, ErrBroken) != tc.broken || err != nil && !tc.broken {
				t.Errorf("%+v, %v; want %q, broken %v", got, err, tc.status, tc.broken)
			}
			if shaky := j.suites[small].record("TestScripted").Shaky; shaky != tc.shaky {
				t.Errorf("shaky: %v, want %v", shaky, tc.shaky)
			}
		})
	}
}

// forgetShaky has a test judge as if it had never failed by itself.
func (s *suite) forgetShaky(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.tests[name]
	r.Shaky = false
	s.tests[name] = r
}
