package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A failure is that of the defect only if the same test passes as often without it. The test
// fails when it is told to: first with the patch, then without it.
func TestRepairsNeedAControl(t *testing.T) {
	const small = "test/mutants/testdata/small"
	b := bench{root: root(t), dir: t.TempDir()}
	b.overlay = filepath.Join(b.dir, "overlay.json")
	err := os.WriteFile(b.overlay, []byte("{}"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, outcomes string
		found, broken  bool
	}{
		{name: "passes with the patch", outcomes: "p"},
		{name: "fails at once, and never without the patch", outcomes: "fp", found: true},
		{name: "fails late, and never without the patch", outcomes: "ppfp", found: true},
		{name: "fails always", outcomes: "f", broken: true},
		{name: "fails in the last run without the patch", outcomes: "fppf", broken: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "outcomes")
			err := os.WriteFile(file, []byte(tc.outcomes), 0o600)
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv("SMALL_OUTCOMES", file)
			_, found, err := b.test(t.Context(), small, "TestScripted", nil, time.Minute, "-test.count=3", "-test.failfast")
			if found != tc.found || errors.Is(err, errBroken) != tc.broken || err != nil && !tc.broken {
				t.Errorf("found %v, %v; want found %v, broken %v", found, err, tc.found, tc.broken)
			}
		})
	}
}
