package filelock_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

func init() {
	roles["count"], roles["modes"], roles["contend"], roles["read"] = count, modes, contend, read
	roles["hold"] = hold
}

// monotonic is a clock that all processes share.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// run starts n processes of a role and returns what they print, once they have ended. If one fails, it kills the
// others, which may wait for it.
func run(t *testing.T, dir, role string, n int) [][]string {
	t.Helper()
	cmds, outs := make([]*exec.Cmd, n), make([]strings.Builder, n)
	for i := range cmds {
		cmds[i] = process(t, dir, role)
		cmds[i].Stdout = &outs[i]
		if err := cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	var first sync.Once
	var ended sync.WaitGroup
	for i, cmd := range cmds {
		ended.Go(func() {
			err := cmd.Wait()
			if err == nil {
				return
			}
			first.Do(func() {
				t.Errorf("process %d: %v", i, err)
				for _, other := range cmds {
					_ = other.Process.Kill()
				}
			})
		})
	}
	ended.Wait()
	if t.Failed() {
		t.FailNow()
	}
	lines := make([][]string, n)
	for i := range outs {
		lines[i] = strings.Fields(outs[i].String())
	}
	return lines
}

const increments = 150

// count adds to a number in a file, protected only by the lock.
func count(d driver.Driver) {
	path := os.Getenv(childDir) + ".count"
	for range increments {
		r := ref("count")
		fmt.Println(take(d, driver.Request{Ref: r}).Token)
		text, _ := os.ReadFile(path)
		n, _ := strconv.Atoi(string(text))
		if err := os.WriteFile(path, strconv.AppendInt(nil, int64(n+1), 10), 0o600); err != nil {
			panic(err)
		}
		if _, err := d.Release(ctx, r); err != nil {
			panic(err)
		}
	}
}

// Eight processes lose no update, and no two get the same token.
func TestCounter(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	tokens := slices.Concat(run(t, dir, "count", 8)...)
	text, err := os.ReadFile(dir + ".count")
	if err != nil || string(text) != strconv.Itoa(8*increments) {
		t.Errorf("%s of %d increments, %v", text, 8*increments, err)
	}
	slices.Sort(tokens)
	if n := len(slices.Compact(tokens)); n != 8*increments {
		t.Errorf("%d different tokens of %d", n, 8*increments)
	}
}

// modes enters in all modes, and prints when it was inside.
func modes(d driver.Driver) {
	rng := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	for range 150 {
		r := driver.Request{Ref: ref("modes"), Mode: driver.Mode(rng.IntN(3))}
		if r.Mode == driver.Permit {
			r.Limit = 2 + rng.IntN(2)
		}
		st := take(d, r)
		entered := monotonic()
		<-time.After(time.Duration(rng.IntN(300)) * time.Microsecond)
		left := monotonic()
		if _, err := d.Release(ctx, r.Ref); err != nil {
			panic(err)
		}
		fmt.Printf("%d,%d,%d,%d,%d\n", r.Mode, r.Limit, entered, left, st.Token)
	}
}

// A visit is one stay inside.
type visit struct {
	mode          driver.Mode
	limit         int
	entered, left int64
	token         int64
}

// Readers, writers and permits of several limits in six processes: no claim is inside with one that
// does not fit, and tokens increase.
func TestModesAcrossProcesses(t *testing.T) {
	t.Parallel()
	var visits []visit
	for _, line := range slices.Concat(run(t, filepath.Join(t.TempDir(), "locks"), "modes", 6)...) {
		var v visit
		if _, err := fmt.Sscanf(line, "%d,%d,%d,%d,%d", &v.mode, &v.limit, &v.entered, &v.left, &v.token); err != nil {
			t.Fatal(line, err)
		}
		visits = append(visits, v)
	}
	if len(visits) != 6*150 {
		t.Fatalf("%d visits", len(visits))
	}
	slices.SortFunc(visits, func(a, b visit) int { return int(a.token - b.token) })
	for i, a := range visits {
		for _, b := range visits[i+1:] {
			fit := a.mode == b.mode && a.limit == b.limit && a.mode != driver.Exclusive
			if a.token == b.token || (!fit && b.entered < a.left) {
				t.Fatalf("%+v came before %+v had left", b, a)
			}
		}
	}
	most := checkPermits(t, visits)
	if most[driver.Shared] < 2 || most[driver.Permit] < 2 {
		t.Errorf("at most %v were together: nothing was shared", most)
	}
}

// checkPermits returns how many claims were inside together in each mode.
func checkPermits(t *testing.T, visits []visit) map[driver.Mode]int {
	t.Helper()
	slices.SortFunc(visits, func(a, b visit) int { return int(a.entered - b.entered) })
	most := map[driver.Mode]int{}
	var inside []visit
	for _, v := range visits {
		inside = append(slices.DeleteFunc(inside, func(o visit) bool { return o.left <= v.entered }), v)
		most[v.mode] = max(most[v.mode], len(inside))
		if v.mode == driver.Permit && len(inside) > v.limit {
			t.Errorf("%d permits of %d", len(inside), v.limit)
		}
	}
	return most
}

// A killed process frees its lock, and a waiter has it within milliseconds.
func TestCrashRelease(t *testing.T) {
	t.Parallel()
	const rounds = 20
	dir := filepath.Join(t.TempDir(), "locks")
	d := newDriver(t, dir)
	var took []time.Duration
	metronome := testenv.StartMetronome(t)
	for round := range rounds {
		r := driver.Request{Ref: ref("crash"), Wait: true, Mode: driver.Mode(round % 3)}
		if r.Mode == driver.Permit {
			r.Limit = 1
		}
		cmd, _ := holder(t, dir, "crash", r.Mode)
		w := wait("crash")
		file(t, d, w, driver.Queued)
		<-time.After(20 * time.Millisecond) // it is at rest then
		began := time.Now()
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		granted(t, d, w.Ref)
		took = append(took, time.Since(began)-testenv.UnderStress(metronome.Lost(began), 0))
		_ = cmd.Wait()
		release(t, d, w.Ref)
	}
	slices.Sort(took)
	t.Logf("crash release: p50 %v, max %v", took[rounds/2], took[rounds-1])
	// Only the end of the process frees the lock, so there is no time at which it is too late.
	longest, median := testenv.UnderStress(time.Minute, time.Second), testenv.UnderStress(time.Second, 100*time.Millisecond)
	if took[rounds-1] > longest || took[rounds/2] > median {
		t.Errorf("it took %v, and up to %v", took[rounds/2], took[rounds-1])
	}
}

const (
	holdKey  = "FILELOCK_TEST_KEY"
	holdMode = "FILELOCK_TEST_MODE"
)

// hold takes a lock, reports it, and releases it on request.
func hold(d driver.Driver) {
	mode, _ := strconv.Atoi(os.Getenv(holdMode))
	r := driver.Request{Ref: ref(os.Getenv(holdKey)), Mode: driver.Mode(mode), Info: driver.Info{Owner: "child", PID: os.Getpid()}}
	if r.Mode == driver.Permit {
		r.Limit = 1
	}
	fmt.Println(take(d, r).Token)
	_, _ = os.Stdin.Read(make([]byte, 1))
	if _, err := d.Release(ctx, r.Ref); err != nil {
		panic(err)
	}
}

// holder starts a process that has a lock, and returns what it prints.
func holder(t testing.TB, dir, key string, mode driver.Mode) (*exec.Cmd, string) {
	t.Helper()
	cmd := process(t, dir, "hold")
	cmd.Env = append(cmd.Env, holdKey+"="+key, holdMode+"="+strconv.Itoa(int(mode)))
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(said)
}

const contenders = 4

// contend keeps taking a lock in several rounds, and prints how often it had it. A round begins when all processes are
// there, so that one that is stopped misses a single round. It ends when one has had the lock often: a single process
// has it much more often.
func contend(d driver.Driver) {
	dir := filepath.Dir(os.Getenv(childDir))
	total := 0
	for round := range 8 {
		over := filepath.Join(dir, fmt.Sprint("over", round))
		must(os.WriteFile(filepath.Join(dir, fmt.Sprintf("there%d.%d", round, os.Getpid())), nil, 0o600))
		began := time.Now()
		for all := 0; all < contenders; <-time.After(5 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				panic(fmt.Sprintf("%d processes are in round %d", all, round))
			}
			names, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("there%d.*", round)))
			must(err)
			all = len(names)
		}
		for range 200 {
			if _, err := os.Stat(over); err == nil {
				break
			}
			r := ref("contend")
			take(d, driver.Request{Ref: r})
			if _, err := d.Release(ctx, r); err != nil {
				panic(err)
			}
			total++
		}
		must(os.WriteFile(over, nil, 0o600))
	}
	fmt.Println(total)
}

// No process starves among several that constantly want one lock.
func TestFairShares(t *testing.T) {
	var shares []int
	total := 0
	for _, said := range run(t, filepath.Join(t.TempDir(), "locks"), "contend", contenders) {
		n, err := strconv.Atoi(said[0])
		if err != nil {
			t.Fatal(said)
		}
		shares, total = append(shares, n), total+n
	}
	t.Logf("shares %v", shares)
	if least := slices.Min(shares); least < total/contenders/3 {
		t.Errorf("one had the lock %d times, and all together %d", least, total)
	}
}

// read holds a shared lock most of the time, until it is killed or its parent has ended.
func read(d driver.Driver) {
	fmt.Println("reading")
	for parent := os.Getppid(); os.Getppid() == parent; {
		r := ref("starve")
		take(d, driver.Request{Ref: r, Mode: driver.Shared})
		<-time.After(10 * time.Millisecond)
		if _, err := d.Release(ctx, r); err != nil {
			panic(err)
		}
	}
}

// wantAlone fails if others could share a lock that is held exclusively.
func wantAlone(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("a writer has the lock, and a reader could have it too: flock returns %v", err)
	}
}

// Readers that come and go in other processes do not keep a writer out, and the writer does not get
// in among them.
func TestWriterAmongReaders(t *testing.T) {
	t.Parallel()
	testenv.StartMetronome(t)
	dir := filepath.Join(t.TempDir(), "locks")
	for range 4 {
		cmd := process(t, dir, "read")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	d := newDriver(t, dir)
	most, limit := testenv.UnderStress(30*time.Second, 5*time.Second), 5*time.Minute
	for waited, start := 0, time.Now(); waited < 20; { // from time to time there is no reader
		if time.Since(start) > limit {
			if !testenv.Stalled(t, start, limit) {
				t.Fatalf("the writer had to wait for readers %d times in %v, want 20", waited, time.Since(start))
			}
			limit += time.Minute
		}
		w := wait("starve")
		began := time.Now()
		st, err := d.Acquire(ctx, w)
		if err != nil {
			t.Fatal(err)
		}
		if st.Phase == driver.Queued {
			granted(t, d, w.Ref)
			waited++
		}
		if took := time.Since(began); took > most && !testenv.Stalled(t, began, most) { // starved, it waits forever
			t.Errorf("the writer had to wait %v", took)
		}
		wantAlone(t, filepath.Join(dir, filelock.Name("starve")))
		release(t, d, w.Ref)
		<-time.After(5 * time.Millisecond)
	}
}
