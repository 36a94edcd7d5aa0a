package main

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/test/mutants/internal/judge"
)

// Every repair can still be taken back, the code compiles without it, and its own test exists.
func TestRepairsApply(t *testing.T) {
	all, err := loadRepairs()
	if err != nil {
		t.Fatal(err)
	}
	compiler := compiler{}
	for _, r := range all {
		texts, err := r.apply(root(t))
		if err != nil {
			t.Error(err)
			continue
		}
		compiler.check(t, r.name, texts)
		if !hasTest(t, r.suite, r.test) {
			t.Errorf("%s: there is no %s in %s", r.name, r.test, r.suite)
		}
		for _, by := range r.judges {
			if by != "engine" && by != "redis" {
				t.Errorf("%s: there is no judge %q", r.name, by)
			}
		}
	}
}

// A compiler has what is needed to check the packages that repairs change.
type compiler map[string]*judge.Checker

func (c compiler) check(t *testing.T, name string, texts map[string]string) {
	t.Helper()
	packages := map[string]map[string][]byte{}
	for file, text := range texts {
		pkg := path.Dir(file)
		if path.Ext(file) != ".go" {
			continue
		}
		if packages[pkg] == nil {
			packages[pkg] = map[string][]byte{}
		}
		packages[pkg][file] = []byte(text)
	}
	for pkg, changed := range packages {
		if c[pkg] == nil {
			checker, err := judge.NewChecker(t.Context(), root(t), pkg)
			if err != nil {
				t.Fatal(err)
			}
			c[pkg] = checker
		}
		if err := c[pkg].Check(changed); err != nil {
			t.Errorf("%s does not compile: %v", name, err)
		}
	}
}

// The table of docs/reliability.md has every repair.
func TestRepairsAreListed(t *testing.T) {
	all, err := loadRepairs()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "reliability.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if !strings.Contains(string(text), "| "+r.item+" | "+r.wrong+" |") {
			t.Errorf("docs/reliability.md does not have %s, %s", r.item, r.wrong)
		}
	}
}

func hasTest(t *testing.T, suite, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(t), suite, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), "\nfunc "+test+"(t *testing.T)")
	})
}

func TestParseRepair(t *testing.T) {
	const text = "item: A1\nwrong: something\njudges: engine redis\nlab: -topologies single\ntest: pkg/dlock TestIt\n\n" +
		"--- a/x.go\n+++ b/x.go\n@@ -1,3 +1,3 @@\n one\n-two\n+three\n four\n"
	r, err := parseRepair("a01", text)
	want := edit{"x.go", "one\ntwo\nfour\n", "one\nthree\nfour\n"}
	if err != nil || len(r.edits) != 1 || r.edits[0] != want || r.suite != "pkg/dlock" || r.test != "TestIt" || len(r.lab) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	dir := t.TempDir()
	for content, ok := range map[string]bool{"zero\none\ntwo\nfour\n": true, "one\nfour\n": false, "one\ntwo\nfour\none\ntwo\nfour\n": false} {
		if err := os.WriteFile(filepath.Join(dir, "x.go"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		texts, err := r.apply(dir)
		if (err == nil) != ok || ok && texts["x.go"] != "zero\none\nthree\nfour\n" {
			t.Errorf("%q: %v, %v", content, texts, err)
		}
	}
	for _, bad := range []string{"item: A1\n", "item: A1\n\n@@ x\n", "what: A1\n\n@@ x\n"} {
		if _, err := parseRepair("bad", bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestReason(t *testing.T) {
	for out, want := range map[string]string{
		"x\n    sim_test.go:58: seed 8: overlap: a; token: b\n more": "seed 8: overlap: a; token: b",
		"panic: boom\n\ngoroutine 1":                                 "panic: boom",
		"=== RUN\n    a_test.go:3: bad\nFAIL":                        "a_test.go:3: bad",
	} {
		if got := reason(out); got != want {
			t.Errorf("%q: %q", out, got)
		}
	}
	if got := seedOf("seed 8: overlap"); got != "8 seeds" {
		t.Error(got)
	}
}
