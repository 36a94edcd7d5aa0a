package judge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/test/mutants/internal/mutate"
)

// A Worker judges one mutant at a time.
type Worker struct {
	judge   *Judge
	builder *builder
}

// Worker returns a new worker.
func (j *Judge) Worker() (*Worker, error) {
	dir, err := os.MkdirTemp(j.tmp, "worker-")
	if err != nil {
		return nil, err
	}
	b, err := j.builder.clone(filepath.Join(dir, "cache"))
	return &Worker{j, b}, err
}

// Judge runs the quick stages on a mutant until one catches it, or those of the whole suites.
func (w *Worker) Judge(ctx context.Context, m mutate.Mutant, src []byte, t Target, whole bool) (v Verdict, err error) {
	dir, err := os.MkdirTemp(w.judge.tmp, "mutant-")
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, w.builder.prune(), os.RemoveAll(dir)) }()
	overlay, err := w.builder.overlay(m, src, dir)
	if err != nil {
		return v, err
	}
	stages, rest, err := w.judge.stages(m, t)
	if err != nil {
		return v, err
	}
	if whole {
		stages = rest
	}
	for _, s := range stages {
		if len(s.tests) == 0 {
			continue
		}
		binary, err := w.binary(ctx, s, dir, overlay)
		if errors.Is(err, errNoProgram) {
			return Verdict{Status: Invalid}, nil
		}
		if err != nil {
			return v, err
		}
		v, err = w.try(ctx, s, binary)
		if err != nil || v.Status == Caught {
			return v, err
		}
	}
	return Verdict{Status: Survived}, nil
}

// binary builds the tests of a stage, unless an earlier stage has.
func (w *Worker) binary(ctx context.Context, s stage, dir, overlay string) (string, error) {
	binary := filepath.Join(dir, binaryName(s.suite.pkg, s.race))
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	flags := []string{"-overlay", overlay}
	if s.race {
		flags = append(flags, "-race")
	}
	return binary, w.builder.build(ctx, s.suite.pkg, binary, flags...)
}

// try runs one stage. A test whose failure is not confirmed is left out, and the others run
// without it.
func (w *Worker) try(ctx context.Context, s stage, binary string) (Verdict, error) {
	for len(s.tests) > 0 {
		first, err := w.run(ctx, s, binary)
		if err != nil || first.Status != Caught {
			return first, err
		}
		guilty, err := w.confirm(ctx, s, binary, first.Test)
		if err != nil {
			return Verdict{}, err
		}
		if guilty {
			return first, nil
		}
		if first.Test == "" {
			break
		}
		s.tests = slices.DeleteFunc(slices.Clone(s.tests), func(name string) bool { return name == first.Test })
	}
	return Verdict{Status: Survived}, nil
}

// ErrBroken is returned when a test fails also without the mutant. Nothing can be judged where
// that happens: a server may be missing, or the machine may be too busy.
var ErrBroken = errors.New("fails without a mutant")

const (
	shakyRuns   = 4 // how often a test that now and then fails by itself must fail in a row
	maxControls = 5 // runs without the mutant, of which one must pass
)

// confirm finds out whether it was the mutant that failed a test, and not a busy machine. The
// test must pass without the mutant, and fail once more with it: alone, or else in the company
// in which it failed. Without the name of a test, all of the stage are tried again, and must fail
// without a name again.
func (w *Worker) confirm(ctx context.Context, s stage, binary, test string) (guilty bool, err error) {
	alone := s
	if test != "" {
		alone.tests = []string{test}
	}
	shaky, took, err := w.isShaky(ctx, alone, test)
	if err != nil {
		return false, err
	}
	// How long the test takes now is known better than before.
	alone.most = min(w.judge.limit(alone), max(w.judge.Grace/3, 10*took))
	if shaky {
		return w.failsBetweenControls(ctx, alone, binary)
	}
	again, err := w.run(ctx, alone, binary)
	if err != nil || again.Status == Caught && (test != "" || again.Test == "") {
		return err == nil, err
	}
	return w.failsInCompany(ctx, s, binary, test)
}

// failsInCompany judges with a test that passes alone with the mutant. The same test must fail again
// among the others, and all of them must then pass without the mutant: another test that now and
// then fails by itself says nothing about the mutant.
func (w *Worker) failsInCompany(ctx context.Context, s stage, binary, test string) (bool, error) {
	again, err := w.run(ctx, s, binary)
	if err != nil || again.Status != Caught || again.Test != test {
		return false, err
	}
	control, err := w.run(ctx, s, w.judge.control(s.suite.pkg, s.race))
	if err != nil || control.Status != Caught {
		return err == nil, err
	}
	if control.Test == test && test != "" {
		err = s.suite.markShaky(test)
	}
	return false, err
}

// isShaky runs a test without the mutant until it passes, at least twice if it is quick, and
// returns how long it takes.
func (w *Worker) isShaky(ctx context.Context, alone stage, test string) (shaky bool, took time.Duration, err error) {
	controls := 1
	if alone.suite.seconds(alone.tests...) < 3 {
		controls = 2
	}
	shaky = alone.suite.record(test).Shaky
	for done := 0; done < controls; {
		failed, passing, err := w.control(ctx, alone)
		if err != nil {
			return false, 0, err
		}
		took = max(took, passing)
		shaky = shaky || failed > 0
		done += failed + 1
	}
	if shaky && test != "" {
		err = alone.suite.markShaky(test)
	}
	return shaky, took, err
}

// control runs a stage without the mutant until it passes, and returns how often it failed
// before, and how long it took when it passed.
func (w *Worker) control(ctx context.Context, s stage) (failed int, took time.Duration, err error) {
	binary := w.judge.control(s.suite.pkg, s.race)
	for failed < maxControls {
		begun := time.Now()
		fails, err := w.fails(ctx, s, binary)
		if err != nil || !fails {
			return failed, time.Since(begun), err
		}
		failed++
	}
	name := "a run of several tests"
	if len(s.tests) == 1 {
		name = s.tests[0]
	}
	return failed, 0, fmt.Errorf("%s: %s %w, %d times in a row", s.suite.pkg, name, ErrBroken, failed)
}

// failsBetweenControls judges with a shaky test. Each failure counts only right after a run
// that passed without the mutant.
func (w *Worker) failsBetweenControls(ctx context.Context, s stage, binary string) (bool, error) {
	for range shakyRuns {
		_, _, err := w.control(ctx, s)
		if err != nil {
			return false, err
		}
		fails, err := w.fails(ctx, s, binary)
		if err != nil || !fails {
			return false, err
		}
	}
	return true, nil
}

func (w *Worker) fails(ctx context.Context, s stage, binary string) (bool, error) {
	v, err := w.run(ctx, s, binary)
	return v.Status == Caught, err
}

func (w *Worker) run(ctx context.Context, s stage, binary string) (Verdict, error) {
	tmp, err := os.MkdirTemp(w.judge.tmp, "run-")
	if err != nil {
		return Verdict{}, err
	}
	defer os.RemoveAll(tmp)
	limit := w.judge.limit(s)
	c := command{
		dir: filepath.Join(w.judge.Root, s.suite.pkg), tmp: tmp, env: slices.Concat(testEnv, s.env), limit: limit + 10*time.Second,
		args: []string{
			binary, "-test.v", "-test.failfast", "-test.paniconexit0",
			"-test.run", only(s.tests...), "-test.timeout", fmt.Sprint(limit),
		},
	}
	out, timedOut, err := c.run(ctx)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Verdict{}, err
	}
	if err == nil {
		return Verdict{Status: Survived}, nil
	}
	v := explain(out, timedOut)
	v.Status, v.Stage, v.Suite = Caught, s.name, s.suite.pkg
	return v, nil
}

const timeout = "timeout"

var (
	failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: ([^\s/]+)`)
	hungTest   = regexp.MustCompile(`panic: test timed out after .*\n\s*running tests:\n\s*([^\s/]+)`)
)

// explain finds out which test failed, and how. After a panic in a goroutine of no test it
// does not know the test.
func explain(out []byte, timedOut bool) Verdict {
	text := string(out)
	v := Verdict{Why: "failure"}
	for _, pattern := range []*regexp.Regexp{hungTest, failedTest} {
		if m := pattern.FindStringSubmatch(text); m != nil {
			v.Test = m[1]
			break
		}
	}
	switch {
	case timedOut || strings.Contains(text, "panic: test timed out after"):
		v.Why = timeout
	case strings.Contains(text, "panic:") || strings.Contains(text, "fatal error:"):
		v.Why = "panic"
	case v.Test == "" && strings.Contains(text, "goleak:"):
		v.Why = "leak"
	}
	return v
}
