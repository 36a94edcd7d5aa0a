package judge

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const small = "test/mutants/testdata/small"

var smallTarget = Target{Package: small, Suites: []string{small}}

// prepare returns a judge of the small package.
func prepare(t *testing.T) *Judge {
	t.Helper()
	root, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	j := &Judge{
		Root: root, Module: "github.com/ceyewan/genesis", State: t.TempDir(), Jobs: 2, Quick: true, Grace: 8 * time.Second,
		Targets: []Target{smallTarget}, Progress: func(text string) { t.Log(text) },
	}
	cleanUp, err := j.Prepare(t.Context(), []string{small})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cleanUp()
		if _, err := os.Stat(j.tmp); !os.IsNotExist(err) {
			t.Errorf("temporary files are left: %v", err)
		}
	})
	return j
}

// mutants are those of the small package, by name.
func mutants(t *testing.T, j *Judge) (src []byte, byName map[string]mutate.Mutant) {
	t.Helper()
	src, err := os.ReadFile(filepath.Join(j.Root, small, "small.go"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := mutate.Generate(small+"/small.go", src)
	if err != nil {
		t.Fatal(err)
	}
	byName = map[string]mutate.Mutant{}
	for _, m := range all {
		byName[m.Func+": "+m.Name()] = m
	}
	return src, byName
}

func TestJudge(t *testing.T) {
	j := prepare(t)
	src, byName := mutants(t, j)
	w, err := j.Worker()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Verdict{
		"Add: sum := a «+ → -» b":            {Status: Caught, Stage: Quickest, Suite: small, Test: "TestAdd", Why: "failure"},
		"Add: if sum «> → >=» Limit {":       {Status: Survived},
		"Limit: const Limit = «100 → 101»":   {Status: Caught, Stage: Quickest, Suite: small, Test: "TestAdd", Why: "failure"},
		"Count: «step(&i) → »":               {Status: Caught, Stage: Quickest, Suite: small, Test: "TestCount", Why: "timeout"},
		"Untested: if «ok → (ok) || true» {": {Status: Survived},
	} {
		m, ok := byName[name]
		if !ok {
			t.Errorf("there is no mutant %q", name)
			continue
		}
		got, err := w.Judge(t.Context(), m, src, smallTarget, false)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
	now, err := os.ReadFile(filepath.Join(j.Root, small, "small.go"))
	if err != nil || string(now) != string(src) {
		t.Error("the working tree has changed")
	}
	t.Run("cancelled", func(t *testing.T) { testCancelled(t, w, byName["Count: «step(&i) → »"], src) })
}

// testCancelled ends in the midst of a mutant that hangs.
func testCancelled(t *testing.T, w *Worker, m mutate.Mutant, src []byte) {
	w.judge.Grace = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := w.Judge(ctx, m, src, smallTarget, false); err == nil {
		t.Error("a mutant that hangs was judged")
	}
	if left, _ := filepath.Glob(filepath.Join(w.judge.tmp, "mutant-*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestCoverageChoosesTests(t *testing.T) {
	j := prepare(t)
	_, byName := mutants(t, j)
	for name, want := range map[string]string{
		"Add: sum := a «+ → -» b":            "TestAdd",
		"Count: «step(&i) → »":               "TestCount",
		"Untested: if «ok → (ok) || true» {": "",
		"Limit: const Limit = «100 → 101»":   "TestAdd TestCount TestNothing TestScripted TestScriptedCompany", // no line that could be followed
	} {
		stages, _, err := j.stages(byName[name], smallTarget)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(stages[0].tests)
		if got := strings.Join(stages[0].tests, " "); got != want {
			t.Errorf("%s is judged by %q, want %q", name, got, want)
		}
	}
}

func TestStages(t *testing.T) {
	s := &suite{pkg: "p", tests: map[string]testRecord{
		"TestSimulation": {Seconds: 1}, "TestA": {Seconds: 3}, "TestB": {Seconds: 2}, "TestC": {Seconds: 20},
		"TestD": {Seconds: 300}, "TestE": {Seconds: 0.1, Failed: true},
	}}
	j := &Judge{suites: map[string]*suite{"p": s}, Simulations: []Simulator{{Suite: "p", Test: "TestSimulation", Few: []string{"FEW=1"}}}}
	stages, whole, err := j.stages(mutate.Mutant{File: "p/lua/script.lua"}, Target{Suites: []string{"p"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range append(stages, whole...) {
		got = append(got, s.name+" "+strings.Join(s.tests, ",")+strings.Join(s.env, ","))
	}
	want := []string{"simulation TestSimulationFEW=1", "quickest TestB", "covering TestA,TestC", "whole TestD", "whole TestSimulation"}
	if !slices.Equal(got, want) {
		t.Errorf("stages %q, want %q", got, want)
	}
}

func TestCompiles(t *testing.T) {
	root, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewChecker(t.Context(), root, small)
	if err != nil {
		t.Fatal(err)
	}
	src, byName := mutants(t, &Judge{Root: root})
	for name, want := range map[string]bool{
		"Add: sum := a «+ → -» b": true,
		"Add: «sum = Limit → »":   true,
	} {
		if got := c.Compiles(byName[name], src); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	unused := mutate.Mutant{File: small + "/small.go", Start: strings.Index(string(src), "step(&i)"), New: "unused := 1; "}
	unused.End = unused.Start
	if c.Compiles(unused, src) {
		t.Error("an unused variable is said to compile")
	}
}

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		name, out string
		timedOut  bool
		want      Verdict
	}{
		{"failure", "=== RUN   TestA\n--- FAIL: TestA (0.00s)\nFAIL\n", false, Verdict{Test: "TestA", Why: "failure"}},
		{"subtest", "    --- FAIL: TestA/inner (0.00s)\n", false, Verdict{Test: "TestA", Why: "failure"}},
		{"panic", "=== RUN   TestA\n--- FAIL: TestA (0.00s)\npanic: oh\n", false, Verdict{Test: "TestA", Why: "panic"}},
		{"a goroutine's panic", "=== RUN   TestA\npanic: oh\n", false, Verdict{Why: "panic"}},
		{"hang", "panic: test timed out after 3s\n\trunning tests:\n\t\tTestA (3s)\n", false, Verdict{Test: "TestA", Why: "timeout"}},
		{"killed", "=== RUN   TestA\n", true, Verdict{Why: "timeout"}},
		{"leak", "PASS\ngoleak: Errors on successful test run: found\n", false, Verdict{Why: "leak"}},
	} {
		if got := explain([]byte(c.out), c.timedOut); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
