package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// module writes packages, each a test file, and returns how they are run.
func module(t *testing.T, packages map[string]string) *options {
	t.Helper()
	t.Setenv("GOFLAGS", "-ldflags=-s") // links sooner
	dir := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.test/m\n\ngo 1.26\n")
	for folder, body := range packages {
		write(filepath.Join(folder, "a_test.go"), "package a\n\nimport (\n\t\"os\"\n\t\"testing\"\n\t\"time\"\n)\n\nvar _, _, _ = os.Args, testing.Short, time.Now\n\n"+body)
	}
	o, err := parse([]string{"-C", dir, "-race=false", "-at-once", "2"})
	if err != nil {
		t.Fatal(err)
	}
	o.programs = filepath.Join(dir, "programs")
	return o
}

// says runs the tests, and returns what they print and the error.
func says(t *testing.T, o *options) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := o.run(t.Context(), &out)
	return out.String(), err
}

const passes = "func TestA(t *testing.T) { t.Log(\"quiet\") }\n"

func TestAllPackagesAreRun(t *testing.T) {
	o := module(t, map[string]string{"one/a": passes, "two/a": passes, ".": passes, "two/none": "func helper() {}\n"})
	out, err := says(t, o)
	for _, want := range []string{`ok  \texample.test/m\t`, `ok  \texample.test/m/one/a\t`, `ok  \texample.test/m/two/a\t`, `ok  \texample.test/m/two/none\t[0-9.]+s \[no tests to run\]`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %s in %q", want, out)
		}
	}
	if err != nil || strings.Contains(out, "quiet") || strings.Count(out, "\n") != 4 {
		t.Errorf("%v, %q", err, out)
	}
}

// Each way to fail fails the command, says why, and ends no other package.
func TestFailures(t *testing.T) {
	bad := map[string]struct{ body, want string }{
		"wrong":    {"func TestA(t *testing.T) { t.Error(\"it is wrong\") }\n", "it is wrong\nFAIL\nexit status 1\n"},
		"silent":   {"func TestMain(*testing.M) { os.Exit(3) }\n", "exit status 3\n"},
		"signal":   {"func TestA(*testing.T) { p, _ := os.FindProcess(os.Getpid()); _ = p.Kill(); select {} }\n", "signal: killed\n"},
		"early":    {"func TestA(*testing.T) { os.Exit(0) }\n", "exit status 2\n"},
		"unended":  {"func TestA(*testing.T) { os.Stdout.WriteString(\"no end\"); os.Exit(3) }\n", "no end\nexit status 3\n"},
		"panicked": {"func TestA(*testing.T) { panic(\"no\") }\n", "exit status 2\n"},
	}
	packages := map[string]string{"good": passes}
	for name, tt := range bad {
		packages[name] = tt.body
	}
	out, err := says(t, module(t, packages))
	if err == nil || !strings.Contains(err.Error(), "6 of 7 packages failed") || !strings.Contains(out, "ok  \texample.test/m/good\t") {
		t.Errorf("%v, %q", err, out)
	}
	for name, tt := range bad {
		if want := tt.want + "FAIL\texample.test/m/" + name + "\t"; !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
}

// A program that hangs after its tests, where they have no limit themselves, is ended, if it can by a signal that makes it print
// where it hangs.
func TestHangAfterTheTests(t *testing.T) {
	o := module(t, map[string]string{"a": "func TestMain(m *testing.M) { m.Run(); time.Sleep(time.Hour) }\n"})
	o.trace = 100 * time.Millisecond
	if out, err := says(t, o); err == nil || !strings.Contains(out, "quit") || !strings.Contains(out, "FAIL\texample.test/m/a\t") {
		t.Errorf("%v, %q", err, out)
	}
	o.trace, o.kill = time.Hour, 100*time.Millisecond
	if out, err := says(t, o); err == nil || !strings.Contains(out, "signal: killed\nFAIL\texample.test/m/a\t") {
		t.Errorf("%v, %q", err, out)
	}
}

// A flag that selects no test is a mistake of the caller.
func TestNothingSelected(t *testing.T) {
	o := module(t, map[string]string{"a": passes})
	o.flags = []string{"-test.run", "^TestRenamed$"}
	if out, err := says(t, o); err == nil || !strings.Contains(out, "no tests to run") {
		t.Errorf("%v, %q", err, out)
	}
	o.packages = []string{"./elsewhere/..."}
	if out, err := says(t, o); err == nil || out != "" {
		t.Errorf("%v, %q", err, out)
	}
}

// What does not compile fails, and nothing is run, not even what was built before.
func TestBrokenPackage(t *testing.T) {
	o := module(t, map[string]string{"a": passes})
	if out, err := says(t, o); err != nil {
		t.Fatalf("%v, %q", err, out)
	}
	if err := os.WriteFile(filepath.Join(o.module, "a", "b_test.go"), []byte("package a\n\nvar x int = \"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := says(t, o); err == nil || out != "" {
		t.Errorf("%v, %q", err, out)
	}
}

// Other packages of the same name have other programs, whichever packages are asked for.
func TestSameName(t *testing.T) {
	o := module(t, map[string]string{"one/a": "func TestOne(*testing.T) {}\n", "two/a": "func TestTwo(*testing.T) {}\n"})
	o.only = true
	for _, packages := range []string{"./...", "./two/a"} {
		o.packages = []string{packages}
		if out, err := says(t, o); err != nil {
			t.Fatalf("%v, %q", err, out)
		}
	}
	o.only, o.packages, o.flags = false, []string{"./one/a"}, []string{"-test.run", "^TestOne$"}
	if out, err := says(t, o); err != nil {
		t.Errorf("%v, %q", err, out)
	}
}

// A program stays, and is built again if it may be there in part.
func TestProgramsStay(t *testing.T) {
	o := module(t, map[string]string{"a": passes})
	program := filepath.Join(o.programs, "example.test", "m", "a.test")
	build := func() os.FileInfo {
		if out, err := says(t, o); err != nil {
			t.Fatalf("%v, %q", err, out)
		}
		info, err := os.Stat(program)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := build()
	if !os.SameFile(first, build()) {
		t.Error("it was linked again")
	}
	if err := os.Truncate(program, first.Size()-100_000); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.programs+".unfinished", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if after := build(); after.Size() != first.Size() {
		t.Errorf("%d bytes, want %d", after.Size(), first.Size())
	}
}

func TestThoseThatTakeLongBegin(t *testing.T) {
	o := module(t, map[string]string{"a": passes, "b": passes, "c": passes, "d/b": passes})
	o.first = []string{"d/b", "c"}
	all, err := o.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range all {
		got = append(got, strings.TrimPrefix(p.ImportPath, "example.test/m/"))
	}
	if strings.Join(got, " ") != "d/b c a b" {
		t.Error(got)
	}
}

// After a signal no further package begins.
func TestCancelled(t *testing.T) {
	o := module(t, map[string]string{"a": passes})
	all, err := o.list(t.Context())
	if err == nil {
		err = o.build(t.Context(), all)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if err := o.test(ctx, all, &out); err == nil || out.Len() > 0 {
		t.Errorf("%v, %q", err, &out)
	}
}
