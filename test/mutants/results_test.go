package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/test/mutants/internal/judge"
	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

// write makes a file below a folder.
func write(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err != nil {
		t.Fatal(err)
	}
	err = os.WriteFile(file, []byte(text), 0o600)
	if err != nil {
		t.Fatal(err)
	}
}

// tree is a small repository, with a judge that knows its tests.
func tree(t *testing.T) (dir string, newJudge func() *judge.Judge) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"p/p_test.go":           "package p\nfunc TestA(t *testing.T) { check(t) }\n",
		"p/util_test.go":        "package p\nfunc check(t *testing.T) { t.Error() }\n",
		"p/testdata/seeds":      "1\n",
		"helper/h.go":           "package helper\n",
		"helper/inner/inner.go": "package inner\n",
		"other/other_test.go":   "package other\n",
		"p/p.go":                "package p\n",
	} {
		write(t, dir, name, text)
	}
	return dir, func() *judge.Judge {
		return &judge.Judge{Root: dir, State: filepath.Join(dir, "state"), Helpers: []string{"helper"}}
	}
}

// What a test calls decides what it notices, so "caught" does not outlive a change of it.
func TestCaughtHoldsWithItsHelpers(t *testing.T) {
	target := judge.Target{Package: "p", Suites: []string{"p", "other"}}
	for file, want := range map[string]bool{
		"p/p_test.go": false, "p/util_test.go": false, "p/testdata/seeds": false, "p/new_test.go": false,
		"helper/h.go": false, "helper/inner/inner.go": false,
		"other/other_test.go": true, "p/p.go": true, // the mutated file has a hash of its own
	} {
		dir, newJudge := tree(t)
		before, err := newJudge().TestHash(target, "p", "TestA")
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, file, "package weaker\n")
		after, err := newJudge().TestHash(target, "p", "TestA")
		if err != nil {
			t.Fatal(err)
		}
		if (before == after) != want || before == "" {
			t.Errorf("after a change of %s: %q and %q, want the same: %v", file, before, after, want)
		}
	}
}

// A report knows also what was found out about tests before.
func TestCaughtByShakyTest(t *testing.T) {
	dir, newJudge := tree(t)
	target := judge.Target{Package: "p", Suites: []string{"p"}}
	before, err := newJudge().TestHash(target, "p", "TestA")
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "state/coverage/p.json", `{"TestA": {"shaky": true}}`)
	after, err := newJudge().TestHash(target, "p", "TestA")
	if err != nil || before == after {
		t.Errorf("%q and %q, %v", before, after, err)
	}
}

// A report of results that are missing or stale fails, and says how many there are.
func TestReportIsComplete(t *testing.T) {
	dir, newJudge := tree(t)
	target := judge.Target{Package: "p", Suites: []string{"p"}}
	j := newJudge()
	tests, err := j.TestHash(target, "p", "TestA")
	if err != nil {
		t.Fatal(err)
	}
	some := []mutate.Mutant{{File: "p/p.go", Text: "a"}, {File: "p/p.go", Text: "b"}}
	s := source{file: "p/p.go", text: []byte("text"), target: target, mutants: some}
	r := &run{judge: j, sources: []source{s, {file: "p/q.go", target: target}}, progress: &progress{}, options: options{goal: 90}}
	r.results, err = loadResults(filepath.Join(dir, "results.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	report := func(want string, fails bool) {
		t.Helper()
		var out bytes.Buffer
		err := r.conclude(&out)
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) || (err != nil) != fails {
			t.Errorf("%v, want %q and an error %v:\n%s", err, want, fails, out.String())
		}
	}
	add := func(m mutate.Mutant) {
		t.Helper()
		err := r.results.add(result{
			ID: m.ID(), Mutant: m, FileHash: textHash(s.text), TestHash: tests,
			Verdict: judge.Verdict{Status: judge.Caught, Suite: "p", Test: "TestA"},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	report("0 of 2 0 0 - ", true)
	add(some[0])
	report("1 of 2 1 0 100 %", true)
	add(some[1])
	report("2 of 2 2 0 100 %", false)
	write(t, dir, "helper/h.go", "package weaker\n")
	r.judge = newJudge()
	report("0 of 2 0 0 - ", true)
}

// Everything of ours that the tests call is a target or a helper.
func TestHelpers(t *testing.T) {
	product := []string{"pkg/clog", "pkg/connector", "pkg/xerrors", "pkg/dlock/internal/suspend", "pkg/dlock/internal/cursor", "pkg/internal/durations"}
	args := []string{"list", "-deps", "-test", "-f", `{{with .Module}}{{if .Main}}{{$.ImportPath}}{{end}}{{end}}`}
	for _, target := range targets {
		product = append(product, target.Package)
		for _, suite := range target.Suites {
			args = append(args, "./"+suite)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		pkg, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, module+"/")), " ")
		pkg = strings.TrimSuffix(strings.TrimSuffix(pkg, ".test"), "_test")
		isHelper := slices.ContainsFunc(helpers, func(h string) bool { return pkg == h || strings.HasPrefix(pkg, h+"/") })
		if pkg != "" && !isHelper && !slices.Contains(product, pkg) {
			t.Errorf("tests call %s, which is not a helper", pkg)
		}
	}
}
