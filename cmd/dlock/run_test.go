//go:build unix

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
)

// onEach runs a test on every kind of backend that the command has.
func onEach(t *testing.T, test func(t *testing.T, backend, name string)) {
	t.Run("file", func(t *testing.T) { t.Parallel(); test(t, files(t), "file") })
	t.Run("redis", func(t *testing.T) { t.Parallel(); test(t, theRedis.backend(t), "redis") })
	t.Run("etcd", func(t *testing.T) { t.Parallel(); test(t, theEtcd.backend(t), "etcd") })
}

func TestRun(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, name string) {
		out, errs, code := dlock(t, backend, "run", "hello", "--", "sh", "-c", `echo "$DLOCK_KEY $DLOCK_BACKEND_NAME"; echo "$DLOCK_TOKEN" >&2; exit 3`)
		if code != 3 || out != "hello "+name+"\n" {
			t.Errorf("exit %d, %q", code, out)
		}
		first, err := strconv.ParseInt(strings.TrimSpace(errs), 10, 64)
		if err != nil || first <= 0 {
			t.Errorf("token %q", errs)
		}
		out, _, _ = dlock(t, backend, "run", "hello", "sh", "-c", "echo $DLOCK_TOKEN") // without the two dashes
		if second, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64); err != nil || second <= first {
			t.Errorf("tokens %d, then %q", first, out)
		}
		if _, errs, code := dlock(t, backend, "run", "hello", "--", "sh", "-c", "kill -9 $$"); code != 128+9 || errs != "" {
			t.Errorf("a command that was killed: exit %d, %q", code, errs)
		}
	})
}

// A command under two locks finds each variable once, and that of the inner lock: of two, a program
// may take the first or the last.
func TestRunNested(t *testing.T) {
	t.Parallel()
	out, errs, code := dlock(t, files(t), "run", "outer", "--", program, "run", "inner", "--", "env")
	found := map[string][]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		found[name] = append(found[name], value)
	}
	if keys := found["DLOCK_KEY"]; code != 0 || len(keys) != 1 || keys[0] != "inner" {
		t.Errorf("exit %d, the keys are %q, %s", code, keys, errs)
	}
	if tokens, names := found["DLOCK_TOKEN"], found["DLOCK_BACKEND_NAME"]; len(tokens) != 1 || len(names) != 1 {
		t.Errorf("the tokens are %q, the names of the backend %q", tokens, names)
	}
}

// Users and files may have names that no lock can show.
func TestRunOddNames(t *testing.T) {
	t.Parallel()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a\xff b", "a\nb", strings.Repeat("\xff", 99), strings.Repeat("\U0001f512", 60)} {
		link := filepath.Join(t.TempDir(), name)
		if err := os.Symlink(sh, link); err != nil {
			t.Fatal(err)
		}
		cmd := command(files(t), "run", "k", "--", link, "-c", "echo ran")
		cmd.Env = append(cmd.Env, "USER="+name)
		if out, errs, code := finish(t, cmd); code != 0 || out != "ran\n" {
			t.Errorf("%q: exit %d, %q, %s", name, code, out, errs)
		}
	}
}

// What cannot be run is told before anybody waits for the lock.
func TestRunCommandNotThere(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("not a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	backend := files(t)
	witness := filepath.Join(t.TempDir(), "w")
	wrap(t, backend, "obedient", witness, "k").says(t, "ready")
	for name, want := range map[string]int{"no-such-command": 127, "./no/such/file": 127, script: 126, directory: 126} {
		if _, errs, code := dlock(t, backend, "run", "k", "--", name); code != want || !strings.Contains(errs, name) {
			t.Errorf("%s: exit %d, %q", name, code, errs)
		}
	}
	if err := os.Chmod(script, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := dlock(t, backend, "run", "other", "--", script); code != 126 || !strings.Contains(errs, "exec format") {
		t.Errorf("a file that is no program: exit %d, %q", code, errs)
	}
}

func TestRunStandardInput(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		cmd := command(backend, "run", "pipe", "--", "tr", "a-z", "A-Z")
		cmd.Stdin = strings.NewReader(strings.Repeat("some text\n", 10_000))
		if out, _, code := finish(t, cmd); code != 0 || out != strings.Repeat("SOME TEXT\n", 10_000) {
			t.Errorf("exit %d, %d bytes", code, len(out))
		}
	})
}

// The command has the descriptors that dlock was given, and not the lock in place of one.
func TestRunDescriptors(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		for range 2 { // what is written to the lock is found by the next
			path := filepath.Join(t.TempDir(), "out")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			cmd := command(backend, "run", "k", "--", "sh", "-c", "echo three >&3; echo four >&4")
			cmd.ExtraFiles = []*os.File{f, f}
			_, errs, code := finish(t, cmd)
			if out, err := os.ReadFile(path); code != 0 || err != nil || string(out) != "three\nfour\n" {
				t.Errorf("exit %d, %q, %v, %s", code, out, err, errs)
			}
		}
	})
}

// Nobody may read what dlock says. The command runs all the same, and a pipe of its own ends it as
// ever.
func TestRunUnheard(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"echo ran": 0, "kill -PIPE $$": 128 + int(syscall.SIGPIPE)} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		cmd := command(files(t), "run", "--json", "k", "--", "sh", "-c", script)
		cmd.Stderr = w
		_ = cmd.Run()
		_ = w.Close()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("%s: %v, want exit %d", script, cmd.ProcessState, want)
		}
	}
}

// A pager that does not read on keeps dlock neither from ending the command nor from releasing the
// lock.
func TestRunBlocked(t *testing.T) {
	t.Parallel()
	r, w := fullPipe(t)
	backend, witness := files(t), filepath.Join(t.TempDir(), "w")
	cmd := command(backend, "run", "--max-hold", "10s", "--grace", "300ms", "k", "--", os.Args[0], witness)
	cmd.Env = append(cmd.Env, childMode+"=stubborn")
	cmd.Stderr = w
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		killChild(witness)
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the command says %q, %v", line, err)
	}
	if _, errs, code := dlock(t, backend, "run", "--wait", "1m", "k", "--", "true"); code != 0 {
		t.Errorf("the lock is not released: exit %d, %s", code, errs)
	}
	if !isFree(t, witness) {
		t.Error("the command was not ended")
	}
	said, _ := io.ReadAll(r)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 76 || !strings.Contains(string(said), "--max-hold") {
		t.Errorf("exit %d, %q", code, bytes.Trim(said, "\x00"))
	}
}

// fullPipe is a pipe that is not read until the test reads it.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if err := w.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = w.Write(make([]byte, 4096))
	}
	return r, w
}

// Nor does it keep the command from starting after a wait that dlock reports.
func TestRunBlockedWait(t *testing.T) {
	t.Parallel()
	backend, dir := files(t), t.TempDir()
	holder := wrap(t, backend, "obedient", filepath.Join(dir, "holder"), "k")
	holder.says(t, "ready")
	long := reportsAfter(t, backend)
	r, w := fullPipe(t)
	cmd := command(backend, "run", "k", "--", "echo", "ran")
	cmd.Env = append(cmd.Env, impatient)
	cmd.Stderr = w
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(3*long + 5*time.Second) // no event shows that it reports into a full pipe
	_ = holder.Process.Signal(syscall.SIGTERM)
	stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ran\n" {
		t.Errorf("the command says %q, %v", line, err)
	}
	said, _ := io.ReadAll(r)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(string(said), "waiting for") {
		t.Errorf("exit %d, %q", code, bytes.Trim(said, "\x00"))
	}
}

// reportsAfter returns how long it takes on this machine until dlock reports that it waits for the key "k".
func reportsAfter(t *testing.T, backend string) time.Duration {
	t.Helper()
	cmd := command(backend, "run", "k", "--", "true")
	cmd.Env = append(cmd.Env, impatient)
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	line, err := bufio.NewReader(errs).ReadString('\n')
	took := time.Since(begun)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || !strings.Contains(line, "waiting for") {
		t.Fatalf("it says %q, %v", line, err)
	}
	return took
}

func TestRunBusy(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		witness := filepath.Join(t.TempDir(), "w")
		holder := wrap(t, backend, "obedient", witness, "k")
		holder.says(t, "ready")
		for _, flags := range [][]string{{"--try"}, {"-n"}, {"--wait", "5s"}, {"--wait", "0"}} {
			args := append(append([]string{"run"}, flags...), "k", "--", "echo", "ran")
			out, errs, code := dlock(t, backend, args...)
			if code != 75 || out != "" || !strings.Contains(errs, "held by") || !strings.Contains(errs, strconv.Itoa(holder.Process.Pid)) {
				t.Errorf("%v: exit %d, %q, %q", flags, code, out, errs)
			}
		}
		waiter := wrap(t, backend, "brief", witness, "k")
		if err := holder.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		holder.says(t, "caught terminated")
		waiter.says(t, "alone")
		if code := holder.ends(t); code != 7 {
			t.Errorf("the holder's exit is %d", code)
		}
		if code := waiter.ends(t); code != 0 {
			t.Errorf("the waiter's exit is %d", code)
		}
	})
}

// A crowd of processes increments a number in a file, one after the other.
func TestRunCrowd(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, name string) {
		crowd := 100
		switch {
		case stress():
		case name == "file":
			crowd = 40
		default:
			crowd = 15
		}
		// A process that gets no processor for most of its lease rightly loses its lock. The trial is void then, and is
		// repeated with fewer processes at a time.
		metronome, unmeasured := testenv.StartMetronome(t), 0 // it measures this process, and not those of the crowd
		for _, atOnce := range testenv.UnderStress([]int{8, 3, 2}, []int{25, 8, 3, 2}) {
			began := time.Now()
			lost := runCrowd(t, backend, crowd, atOnce)
			if lost == 0 {
				return
			}
			if metronome.MayMiss(began, runTTL, runTTL/4) {
				continue
			}
			if unmeasured++; unmeasured > testenv.UnderStress(1, 0) {
				t.Fatalf("%d processes have lost their locks, %d at a time, and no stall of the machine explains it", lost, atOnce)
			}
		}
		t.Error("each time a process has lost its lock")
	})
}

// runTTL is the lease of a command that asks for none.
const runTTL = 30 * time.Second

// runCrowd runs processes that increment a number under one lock, atOnce of them at a time. It returns how
// many have lost the lock because they did not renew it in time; if none, it asserts the number.
func runCrowd(t *testing.T, backend string, crowd, atOnce int) (lost int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "number")
	if err := os.WriteFile(path, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	limit := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	var late atomic.Int64
	for range crowd {
		limit <- struct{}{}
		all.Go(func() {
			defer func() { <-limit }()
			_, errs, code := dlock(t, backend, "run", "-q", "k", "--", "sh", "-c", `n=$(cat "$0"); : > "$0"; echo $((n+1)) > "$0"; echo "in $DLOCK_TOKEN out $DLOCK_TOKEN" >> "$0.log"`, path)
			switch {
			case code == 76 && strings.Contains(errs, "not renewed in time"):
				late.Add(1)
			case code != 0:
				t.Errorf("exit %d, %s", code, errs)
			}
		})
	}
	all.Wait()
	if late.Load() > 0 {
		return int(late.Load())
	}
	if got, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(got)) != strconv.Itoa(crowd) {
		t.Errorf("%d increments made %q (%v)", crowd, got, err)
	}
	log, err := os.ReadFile(path + ".log")
	if err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	for line := range strings.Lines(string(log)) {
		var in, out int64
		if n, _ := fmt.Sscanf(line, "in %d out %d\n", &in, &out); n != 2 || in != out || in <= last {
			t.Errorf("line %q after token %d", line, last)
		}
		last = in
	}
	return 0
}

func TestRunShared(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, backend, _ string) {
		dir := t.TempDir()
		one := wrap(t, backend, "obedient", filepath.Join(dir, "1"), "--shared", "k")
		two := wrap(t, backend, "obedient", filepath.Join(dir, "2"), "--shared", "k")
		one.says(t, "ready")
		two.says(t, "ready")
		if _, _, code := dlock(t, backend, "run", "--try", "k", "--", "true"); code != 75 {
			t.Errorf("a writer next to readers: exit %d", code)
		}
		if out, _, code := dlock(t, backend, "ls"); code != 0 || !strings.Contains(out, "shared by 2") {
			t.Errorf("the list of locks: exit %d, %s", code, out)
		}
		three := wrap(t, backend, "obedient", filepath.Join(dir, "3"), "--permits", "1", "other")
		three.says(t, "ready")
		if _, _, code := dlock(t, backend, "run", "--try", "--permits", "1", "other", "--", "true"); code != 75 {
			t.Errorf("a second permit of one: exit %d", code)
		}
	})
	redlock := "redlock://" + testenv.Redis(t).Addr() + "," + testenv.Redis(t).Addr() + "," + testenv.Redis(t).Addr()
	if _, errs, code := dlock(t, redlock, "run", "--shared", "k", "--", "true"); code != 64 || !strings.Contains(errs, "shared locks on redlock") {
		t.Errorf("readers on a backend that has none: exit %d, %s", code, errs)
	}
}

// A job that takes too long is ended, and keeps the lock until it and its children have ended, also if the command
// itself obeys and its child does not.
func TestRunMaxHold(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"stubborn", "abandoning"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			onEach(t, func(t *testing.T, backend, _ string) {
				witness := filepath.Join(t.TempDir(), "w")
				holder := wrap(t, backend, mode, witness, "--max-hold", "8s", "--grace", "300ms", "k")
				holder.says(t, "ready")
				next := wrap(t, backend, "brief", witness, "k")
				next.says(t, "alone")
				if code := holder.ends(t); code != 76 || !strings.Contains(holder.stderr.String(), "--max-hold") {
					t.Errorf("exit %d, %s", code, holder.stderr.String())
				}
			})
		})
	}
}

func stress() bool { return os.Getenv("DLOCK_STRESS") != "" }
