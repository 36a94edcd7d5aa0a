package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/test/mutants/internal/judge"
	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// The list of equivalents names mutants that exist: a line that has changed is judged anew.
func TestEquivalentsExist(t *testing.T) {
	known, err := parseEquivalents(equivalentText)
	if err != nil {
		t.Fatal(err)
	}
	exist, generated := map[equivalent]bool{}, map[string]bool{}
	for e := range known {
		if !generated[e.file] {
			generated[e.file] = true
			src, err := os.ReadFile(filepath.Join(root(t), e.file))
			if err != nil {
				t.Error(err)
				continue
			}
			all, err := mutate.Generate(e.file, src)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range all {
				exist[identity(m)] = true
			}
		}
		if !exist[e] {
			t.Errorf("equivalent.txt names a mutant that does not exist: %s", strings.Join([]string{e.file, e.fn, e.text}, separator))
		}
	}
}

func TestParseEquivalents(t *testing.T) {
	known, err := parseEquivalents("# why\n\na.go :: f :: x «> → >=» y :: never equal\n")
	m := mutate.Mutant{File: "a.go", Func: "f", Text: "x «> → >=» y"}
	if err != nil || len(known) != 1 || !known.has(m) {
		t.Errorf("known: %v, %v", known, err)
	}
	m.Twin = 1
	if known.has(m) {
		t.Error("its twin is known as well")
	}
	for _, text := range []string{"a.go :: f :: x", "a.go :: f :: x :: ", "a.go :: f :: x :: y\na.go :: f :: x :: z"} {
		if _, err := parseEquivalents(text); err == nil || !strings.Contains(err.Error(), "equivalent.txt:") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// All packages of the engine and the drivers have mutants.
func TestTargets(t *testing.T) {
	files := map[string]bool{}
	err := sources(t.Context(), root(t), targets, nil, func(s source, c *judge.Checker) error {
		files[s.file] = true
		if (c == nil) != strings.HasSuffix(s.file, ".lua") {
			t.Errorf("%s is checked by %v", s.file, c)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{
		"pkg/dlock/acquire.go", "pkg/dlock/redislock/renew.go", "pkg/dlock/redislock/lua/release.lua",
		"pkg/dlock/redlock/lua/confirm.lua", "pkg/dlock/internal/redisnode/unsent.go", "pkg/dlock/etcdlock/lease.go",
		"pkg/dlock/filelock/driver.go", "pkg/dlock/memlock/memlock.go",
	} {
		if !files[file] {
			t.Errorf("%s has no mutants", file)
		}
	}
	if files["pkg/dlock/acquire_test.go"] {
		t.Error("tests are mutated")
	}
}

func TestPatterns(t *testing.T) {
	lua := "pkg/dlock/redislock/lua/release.lua"
	redis := judge.Target{Package: "pkg/dlock/redislock"}
	for pattern, want := range map[string]bool{
		lua: true, "pkg/dlock/redislock": true, "./pkg/dlock/redislock/": true, "pkg/dlock/redislock/lua": true,
		"pkg/dlock/...": true, "pkg/dlock": false, "pkg/dlock/redlock/...": false,
	} {
		if got := chosen(lua, redis, []string{pattern}, make([]bool, 1)); got != want {
			t.Errorf("%s: %v, want %v", pattern, got, want)
		}
	}
	err := sources(t.Context(), root(t), targets, []string{"pkg/nothing"}, nil)
	if err == nil || !strings.Contains(err.Error(), "pkg/nothing") {
		t.Errorf("a pattern that chooses nothing: %v", err)
	}
}

func TestSample(t *testing.T) {
	target := judge.Target{Package: "test/mutants/testdata/small"}
	choose := func(n int, known equivalents) (some []mutate.Mutant) {
		err := sources(t.Context(), root(t), []judge.Target{target}, nil, func(s source, c *judge.Checker) (err error) {
			some, err = sample(s, c, 1, n, known)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return some
	}
	all, five := choose(0, nil), choose(5, nil)
	if len(five) != 5 || len(all) < 20 {
		t.Fatalf("%d of %d", len(five), len(all))
	}
	without := choose(5, equivalents{identity(five[0]): "because"})
	if len(without) != 5 || without[0].ID() != five[1].ID() {
		t.Errorf("without an equivalent: %v, want what follows it in %v", without, five)
	}
}

// Results hold until the file, the test that caught or any test that did not has changed.
func TestResultsHold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "below", "results.jsonl")
	r, err := loadResults(path)
	if err != nil {
		t.Fatal(err)
	}
	j := &judge.Judge{Root: root(t)}
	s := source{text: []byte("text"), target: judge.Target{Suites: []string{"test/mutants/testdata/small"}}}
	m := mutate.Mutant{File: "a.go", Func: "f", Text: "t"}
	tests, err := j.TestHash(s.target, "", "")
	if err != nil {
		t.Fatal(err)
	}
	holds := func(change func(*result)) bool {
		one := result{
			ID: m.ID(), Mutant: m, Verdict: judge.Verdict{Status: judge.Survived}, FileHash: textHash(s.text), TestHash: tests,
		}
		change(&one)
		if err := r.add(one); err != nil {
			t.Fatal(err)
		}
		again, err := loadResults(path)
		if err != nil {
			t.Fatal(err)
		}
		_, ok, err := again.find(j, s, m)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	for name, c := range map[string]struct {
		change func(*result)
		want   bool
	}{
		"as it was":      {func(*result) {}, true},
		"another file":   {func(r *result) { r.FileHash = "x" }, false},
		"other tests":    {func(r *result) { r.TestHash = "x" }, false},
		"another mutant": {func(r *result) { r.ID = "x" }, true}, // the one before is still there
	} {
		r, _ = loadResults(path)
		holds(func(*result) {})
		if got := holds(c.change); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestTable(t *testing.T) {
	good, bad := &row{file: "good.go", sample: 11}, &row{file: "bad.go", sample: 30}
	for range 9 {
		good.add(result{Verdict: judge.Verdict{Status: judge.Caught, Stage: judge.Quickest}})
	}
	good.add(result{Verdict: judge.Verdict{Status: judge.Survived}})
	good.add(result{Verdict: judge.Verdict{Status: judge.Invalid}})
	bad.add(result{Verdict: judge.Verdict{Status: judge.Caught, Stage: judge.Whole, Why: "timeout"}})
	bad.add(result{Verdict: judge.Verdict{Status: judge.Survived}})
	var out bytes.Buffer
	below, missing := table(&out, []*row{good, bad, {file: "none.go", sample: 5}}, 90)
	if below != 1 || missing != 33 {
		t.Errorf("%d files are below the goal, %d results are missing", below, missing)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"judged caught survived score quickest simulation covering whole timeout file",
		"11 of 11 9 1 90 % 9 0 0 0 0 good.go",
		"2 of 30 1 1 50 % 0 0 0 1 1 bad.go (below the goal)",
		"0 of 5 0 0 - 0 0 0 0 0 none.go",
		"13 of 46 10 2 83 % 9 0 0 1 1 all",
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("table:\n%s", strings.Join(lines, "\n"))
	}
}

func TestFlags(t *testing.T) {
	o, err := parse([]string{"-seed", "3", "-n", "0", "-jobs", "4", "-quick", "-goal", "95", "pkg/dlock"})
	if err != nil || o.seed != 3 || o.n != 0 || o.jobs != 4 || !o.quick || o.goal != 95 || len(o.patterns) != 1 {
		t.Errorf("options %+v, %v", o, err)
	}
	if _, err := parse([]string{"-jobs", "0"}); err == nil {
		t.Error("no jobs are accepted")
	}
}
