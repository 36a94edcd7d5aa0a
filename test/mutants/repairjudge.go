package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const repairsUsage = `usage: go run ./test/mutants repairs [flags]

Takes repairs back, one at a time, in copies of the code, and prints what finds the defect: the
simulator of the engine, the simulator over Redis, the lab, or only the repair's own test.

`

type repairOptions struct {
	only          string
	by            string
	engine, redis int
	list          bool
}

func parseRepairs(args []string) (o repairOptions, err error) {
	flags := flag.NewFlagSet("mutants repairs", flag.ContinueOnError)
	flags.StringVar(&o.only, "only", "", "repairs whose name or item contains this")
	flags.StringVar(&o.by, "by", "engine,redis,lab,test", "what judges, in this order, until one has found it")
	flags.IntVar(&o.engine, "engine-seeds", 20_000, "seeds of the engine's simulator")
	flags.IntVar(&o.redis, "redis-seeds", 1_000, "seeds of the simulator over Redis")
	flags.BoolVar(&o.list, "list", false, "print the repairs and run nothing")
	flags.Usage = func() {
		fmt.Fprint(os.Stderr, repairsUsage)
		flags.PrintDefaults()
	}
	return o, flags.Parse(args)
}

// repairsCommand judges repairs that are taken back.
func repairsCommand(ctx context.Context, root string, args []string) error {
	o, err := parseRepairs(args)
	if err != nil {
		return err
	}
	all, err := loadRepairs()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(r repair) bool {
		return !strings.Contains(r.name, o.only) && !strings.EqualFold(r.item, o.only)
	})
	if len(all) == 0 {
		return fmt.Errorf("there is no repair %q", o.only)
	}
	missed := 0
	for _, r := range all {
		if o.list {
			fmt.Printf("| %s | %s | %s %s |\n", r.item, r.wrong, r.suite, r.test)
			continue
		}
		f, err := o.judge(ctx, root, r)
		if err != nil {
			return err
		}
		if f.by == "" {
			missed++
		}
		fmt.Printf("| %s | %s | %s |\n  %s: %s\n", r.item, r.wrong, f, r.name, f.said)
	}
	if missed > 0 {
		return fmt.Errorf("%d repairs can be taken back and no test finds it", missed)
	}
	return nil
}

// A finder is what has found a defect, and after what.
type finder struct {
	by, after, said string
	tried           []string
}

func (f finder) String() string {
	if f.by == "" {
		return "none | " + strings.Join(f.tried, ", ")
	}
	return f.by + " | " + f.after
}

// judge asks one after the other.
func (o repairOptions) judge(ctx context.Context, root string, r repair) (f finder, err error) {
	dir, err := os.MkdirTemp("", "repair")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	overlay, err := r.overlay(root, dir)
	if err != nil {
		return f, err
	}
	b := bench{root: root, dir: dir, overlay: overlay}
	who := strings.Split(o.by, ",")
	for _, by := range []string{"engine", "redis", "lab", "test"} {
		if !slices.Contains(who, by) {
			continue
		}
		asked := by == "test" || slices.Contains(r.judges, by) || by == "lab" && len(r.lab) > 0
		if !asked {
			continue
		}
		after, said, found, err := o.ask(ctx, b, r, by)
		if err != nil {
			return f, fmt.Errorf("%s: %w", r.name, err)
		}
		if found {
			f.by, f.after, f.said = by, after, said
			return f, nil
		}
		f.tried = append(f.tried, by+" "+after)
	}
	return f, nil
}

func (o repairOptions) ask(ctx context.Context, b bench, r repair, by string) (after, said string, found bool, err error) {
	switch by {
	case "engine":
		return b.simulate(ctx, "pkg/dlock", "TestSimulation", []int{300, 2000, 20_000}, o.engine)
	case "redis":
		return b.simulate(ctx, "pkg/dlock/redislock", "TestScriptSimulation", []int{100, 1000}, o.redis)
	case "lab":
		return b.lab(ctx, r.lab)
	}
	// Some defects are races: a test of one does not fail each time.
	said, found, err = b.test(ctx, r.suite, r.test, nil, 20*time.Minute, "-test.count=10", "-test.failfast")
	return r.test, said, found, err
}

// A bench is where one repair is judged.
type bench struct{ root, dir, overlay string }

// overlay writes the patched files and what tells the compiler about them.
func (r repair) overlay(root, dir string) (string, error) {
	texts, err := r.apply(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for file, text := range texts {
		patched := filepath.Join(dir, fmt.Sprint(len(replace), filepath.Base(file)))
		replace[filepath.Join(root, filepath.FromSlash(file))] = patched
		if err := os.WriteFile(patched, []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}

// simulate runs a simulator with more and more seeds.
func (b bench) simulate(ctx context.Context, suite, test string, steps []int, most int) (after, said string, found bool, err error) {
	first := 1
	for _, last := range steps {
		last = min(last, most)
		if last < first {
			break
		}
		seeds := fmt.Sprintf("DLOCK_SEEDS=%d-%d", first, last)
		said, found, err = b.attempt(ctx, b.overlay, suite, test, []string{seeds}, time.Hour)
		if err != nil {
			return "", "", false, err
		}
		if found {
			if m := failedRun.FindStringSubmatch(said); m != nil {
				seeds = fmt.Sprintf("DLOCK_SEEDS=%d-%s", first, m[1]) // those that it ran
			}
			err = b.control(ctx, suite, test, []string{seeds}, time.Hour)
			return seedOf(said), said, err == nil, err
		}
		first = last + 1
	}
	return fmt.Sprintf("%d seeds", first-1), "", false, nil
}

// what a simulator prints first of a run that failed.
var failedRun = regexp.MustCompile(`seed (\d+): [^\n]*`)

func seedOf(said string) string {
	if m := failedRun.FindStringSubmatch(said); m != nil {
		return m[1] + " seeds"
	}
	return "a crash"
}

// errBroken is returned when a test fails also without the patch.
var errBroken = errors.New("fails without the patch")

// test runs a test with the patch, and reports whether it fails because of it.
func (b bench) test(ctx context.Context, suite, test string, env []string, limit time.Duration, flags ...string) (said string, found bool, err error) {
	said, found, err = b.attempt(ctx, b.overlay, suite, test, env, limit, flags...)
	if err != nil || !found {
		return "", false, err
	}
	err = b.control(ctx, suite, test, env, limit, flags...)
	return said, err == nil, err
}

// control runs a test without the patch. If it fails, nothing has been found: a server may be
// missing, or the machine may be too busy.
func (b bench) control(ctx context.Context, suite, test string, env []string, limit time.Duration, flags ...string) error {
	said, fails, err := b.attempt(ctx, "", suite, test, env, limit, flags...)
	if err == nil && fails {
		err = fmt.Errorf("%s of %s %w as well: %s", test, suite, errBroken, said)
	}
	return err
}

// attempt runs a test, and reports whether it fails. The overlay has the patch; "": none.
func (b bench) attempt(ctx context.Context, overlay, suite, test string, env []string, limit time.Duration, flags ...string) (said string, fails bool, err error) {
	binary, err := b.binary(ctx, overlay, suite)
	if err != nil {
		return "", false, err
	}
	env = slices.Concat(env, []string{"DLOCK_TEST_REQUIRE=1"})
	args := slices.Concat(flags, []string{"-test.run", "^" + test + "$", "-test.timeout", limit.String()})
	out, err := b.run(ctx, filepath.Join(b.root, suite), env, binary, args...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", false, ctx.Err()
	case !errors.As(err, &exit) || ctx.Err() != nil:
		return "", false, errors.Join(err, ctx.Err())
	}
	return reason(out), true, nil
}

// binary builds the tests of a package, once with the patch and once without it.
func (b bench) binary(ctx context.Context, overlay, suite string) (string, error) {
	name := strings.ReplaceAll(suite, "/", "-")
	args := []string{"test", "-c"}
	if overlay == "" {
		name += "-control"
	} else {
		args = append(args, "-overlay", overlay)
	}
	binary := filepath.Join(b.dir, name+".test")
	_, err := os.Stat(binary)
	if err == nil {
		return binary, nil
	}
	args = append(args, "-o", binary, "./"+suite)
	out, err := b.run(ctx, b.root, nil, "go", args...)
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return binary, nil
}

// reason is the line of a failed test that says what is wrong.
func reason(out string) string {
	if m := failedRun.FindString(out); m != "" {
		return m
	}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, "_test.go:") || strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
			return line
		}
	}
	return strings.TrimSpace(out[max(0, len(out)-200):])
}

// lab runs the lab, built with the defect.
func (b bench) lab(ctx context.Context, args []string) (after, said string, found bool, err error) {
	binary := filepath.Join(b.dir, "lab")
	if out, err := b.run(ctx, filepath.Join(b.root, "lab"), nil, "go", "build", "-overlay", b.overlay, "-o", binary, "."); err != nil {
		return "", "", false, fmt.Errorf("build the lab: %w: %s", err, out)
	}
	begun := time.Now()
	args = append([]string{"run", "-results", filepath.Join(b.dir, "results")}, args...)
	out, err := b.run(ctx, b.root, nil, binary, args...) // whose error may be of figures only
	after = fmt.Sprintf("%.0f s", time.Since(begun).Seconds())
	if ctx.Err() != nil || out == "" {
		return "", "", false, errors.Join(err, ctx.Err(), errors.New("the lab did not run"))
	}
	said = failedTrial.FindString(out)
	return after, strings.Join(strings.Fields(said), " "), said != "", nil
}

// what the lab prints of a trial that failed: its figures, and the first violation.
var failedTrial = regexp.MustCompile(`[^\n]*: FAILED: [^\n]*\n[^\n]*`)

func (b bench) run(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, append(os.Environ(), env...), 5*time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}
