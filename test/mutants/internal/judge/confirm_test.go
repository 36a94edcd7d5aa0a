package judge

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A failure counts only next to runs that pass without the mutant. Here the mutant is never
// noticed: the tests fail when they are told to. m is a run with the mutant, c one without it.
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
	dir := t.TempDir()
	overlay, err := w.builder.overlay(m, src, dir)
	if err != nil {
		t.Fatal(err)
	}
	stages, _, err := j.stages(m, smallTarget)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := w.binary(t.Context(), stages[0], dir, overlay) // one for all
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, outcomes string
		company        string // the outcomes of the test after it, which passes by default
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
		{name: "m passes alone, another fails in company", outcomes: "fp", company: "fp", status: Survived},
		{name: "m passes alone and fails in company, c passes there", outcomes: "fpppfp", status: Caught},
		{name: "m passes alone and fails in company, as does c", outcomes: "fpppffp", status: Survived, shaky: true},
		{name: "m passes alone and fails in company, another fails there in c", outcomes: "fpppfp", company: "fp", status: Survived},
		{name: "m fails without a name, c passes twice, m fails without a name", outcomes: "gppgp", status: Caught},
		{name: "m fails without a name, c passes twice, another fails in m", outcomes: "gp", company: "ppfp", status: Survived},
	} {
		t.Run(tc.name, func(t *testing.T) {
			j.suites[small].forgetShaky("TestScripted")
			tell(t, "SMALL_OUTCOMES", tc.outcomes)
			tell(t, "SMALL_OUTCOMES_OF_COMPANY", cmp.Or(tc.company, "p"))
			got, err := w.try(t.Context(), stages[0], binary)
			if got.Status != tc.status || errors.Is(err, ErrBroken) != tc.broken || err != nil && !tc.broken {
				t.Errorf("%+v, %v; want %q, broken %v", got, err, tc.status, tc.broken)
			}
			if got.Test == "TestScriptedCompany" {
				t.Error("caught by the other test")
			}
			if shaky := j.suites[small].record("TestScripted").Shaky; shaky != tc.shaky {
				t.Errorf("shaky: %v, want %v", shaky, tc.shaky)
			}
		})
	}
}

// tell writes the outcomes of a scripted test.
func tell(t *testing.T, variable, outcomes string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "outcomes")
	err := os.WriteFile(file, []byte(outcomes), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(variable, file)
}

// forgetShaky has a test judge as if it had never failed by itself.
func (s *suite) forgetShaky(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.tests[name]
	r.Shaky = false
	s.tests[name] = r
}
