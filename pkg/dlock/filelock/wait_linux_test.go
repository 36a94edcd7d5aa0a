package filelock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// entries counts the entries of a directory of /proc/self: threads, or descriptors.
func entries(t testing.TB, name string) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// watches counts the inotify watches of this process.
func watches(t testing.TB) int {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, info := range infos {
		text, _ := os.ReadFile(info) // some are closed by now
		n += strings.Count(string(text), "inotify wd:")
	}
	return n
}

// A thousand waits, on one key and on as many keys, take few threads, and nothing of them remains
// after they are cancelled.
func TestCancelledWaits(t *testing.T) {
	const n = 1000
	dir := filepath.Join(t.TempDir(), "locks")
	holder, d := newDriver(t, dir), newDriver(t, dir)
	first := try("k0")
	file(t, holder, first, driver.Held)
	probe := wait("k0")
	file(t, d, probe, driver.Queued) // from here on there is a watch
	release(t, d, probe.Ref)
	for i := 1; i < n; i++ {
		file(t, holder, try(fmt.Sprint("k", i)), driver.Held)
	}
	threads, files, goroutines := entries(t, "task"), entries(t, "fd"), runtime.NumGoroutine()
	for _, keys := range []int{1, n} {
		waits := make([]driver.Ref, n)
		for i := range waits {
			w := wait(fmt.Sprint("k", i%keys))
			file(t, d, w, driver.Queued)
			waits[i] = w.Ref
		}
		if more := entries(t, "task") - threads; more > 8 {
			t.Errorf("%d more threads for %d waits", more, n)
		}
		if more := runtime.NumGoroutine() - goroutines; more > 1 {
			t.Errorf("%d more goroutines for %d waits", more, n)
		}
		if more := entries(t, "fd") - files; more > keys+2 {
			t.Errorf("%d more descriptors for waits on %d keys", more, keys)
		}
		for _, r := range waits {
			release(t, d, r)
		}
		testenv.Eventually(t, time.Minute, "no goroutine waits", func() bool { return !filelock.Waits(d) })
		if more := entries(t, "fd") - files; more > 0 {
			t.Errorf("%d more descriptors after %d cancelled waits", more, n)
		}
	}
	if n := watches(t); n > 0 {
		t.Errorf("%d watches are left", n)
	}
	file(t, holder, driver.Request{Ref: first.Ref}, driver.Held) // as it was
	if lines := filelock.Queues(d); lines > filelock.IdleQueues {
		t.Errorf("%d keys are remembered", lines)
	}
}

// A thousand waiters of one process get the lock in the order in which they came.
func TestManyWaiters(t *testing.T) {
	t.Parallel()
	const n = 1000
	dir := filepath.Join(t.TempDir(), "locks")
	other, d := newDriver(t, dir), newDriver(t, dir)
	blocker := try("k")
	file(t, other, blocker, driver.Held)
	waits := make([]driver.Ref, n)
	for i := range waits {
		w := wait("k")
		file(t, d, w, driver.Queued)
		waits[i] = w.Ref
	}
	release(t, other, blocker.Ref)
	last := int64(0)
	for i, r := range waits {
		st := granted(t, d, r)
		if st.Token <= last {
			t.Fatalf("waiter %d has token %d after %d", i, st.Token, last)
		}
		last = st.Token
		release(t, d, r)
	}
}

// Cycles and names leave nothing behind.
func TestCyclesLeakNothing(t *testing.T) {
	cycles := testenv.UnderStress(4000, 100_000)
	dir := filepath.Join(t.TempDir(), "locks")
	d := newDriver(t, dir)
	file(t, d, try("warm"), driver.Held)
	files, goroutines := entries(t, "fd"), runtime.NumGoroutine()
	info := driver.Info{Owner: "owner"}
	for i := range cycles {
		r := driver.Request{Ref: ref("k"), Mode: driver.Exclusive, Info: info}
		switch i % 100 {
		case 1:
			r.Mode = driver.Shared
		case 2:
			r.Mode, r.Limit = driver.Permit, 3
		case 3:
			r.Key = fmt.Sprint("name", i/100)
		}
		file(t, d, r, driver.Held)
		release(t, d, r.Ref)
	}
	if more := entries(t, "fd") - files; more > filelock.IdleQueues {
		t.Errorf("%d more descriptors", more)
	}
	if lines := filelock.Queues(d); lines > filelock.IdleQueues+1 {
		t.Errorf("%d keys are remembered", lines)
	}
	if more := runtime.NumGoroutine() - goroutines; more > 0 {
		t.Errorf("%d more goroutines", more)
	}
	before := entries(t, "fd")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if left := entries(t, "fd"); left >= before || left > files-2 { // its directory and the lock "warm"
		t.Errorf("%d descriptors after Close, %d before, %d in the beginning", left, before, files)
	}
}

// A lock passes to the next waiter within milliseconds, whether the waiter has just come or has
// been idle for long, although the file is closed only if a claim waits.
func TestHandOver(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	a, b := newDriver(t, dir), open(t, filelock.New(dir).Notified(0), driver.Options{})
	defer func() { _ = b.Close() }()
	for name, rest := range map[string]time.Duration{"at once": 0, "soon": 300 * time.Microsecond, "late": 600 * time.Millisecond} {
		const n = 40
		holds, waits := make([]driver.Request, n), make([]driver.Request, n)
		for i := range n {
			holds[i], waits[i] = try(fmt.Sprint(name, i)), wait(fmt.Sprint(name, i))
			file(t, a, holds[i], driver.Held)
			file(t, b, waits[i], driver.Queued)
		}
		<-time.After(rest)
		var took []time.Duration
		for i := range n {
			began := time.Now()
			release(t, a, holds[i].Ref)
			granted(t, b, waits[i].Ref)
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		t.Logf("%s: p50 %v, max %v", name, took[n/2], took[n-1])
		// A waiter that is not notified would never be granted the lock.
		if took[n/2] > testenv.UnderStress(time.Minute, 50*time.Millisecond) {
			t.Errorf("%s: half of them took more than %v", name, took[n/2])
		}
	}
}

// A writer that has given up does not keep readers out.
func TestCancelledWriter(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	a, b := newDriver(t, dir), newDriver(t, dir)
	reader := func() driver.Request { return driver.Request{Ref: ref("k"), Mode: driver.Shared} }
	file(t, a, reader(), driver.Held)
	w := wait("k")
	file(t, b, w, driver.Queued)
	file(t, a, reader(), driver.Gone) // it would come before the writer
	release(t, b, w.Ref)
	file(t, a, reader(), driver.Held)
}

// Processes that come first are served first, as far as that can be determined.
func TestFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	ds := []driver.Driver{newDriver(t, dir), newDriver(t, dir), newDriver(t, dir), newDriver(t, dir)}
	inversions := 0
	testenv.StartMetronome(t)
	start := time.Now()
	for range 30 {
		h := try("k")
		file(t, ds[3], h, driver.Held)
		order := make(chan int, len(ds))
		var wg sync.WaitGroup
		for i, d := range ds {
			if i == 3 {
				release(t, d, h.Ref) // a new claim now leaves the lock to those before it
			}
			w := wait("k")
			st, err := d.Acquire(ctx, w)
			if err != nil || st.Phase != driver.Queued && i < 3 {
				t.Fatalf("waiter %d: %v, %v", i, st.Phase, err)
			}
			wg.Go(func() {
				if st.Phase == driver.Held { // the last, if the others were woken late or were quick
					order <- i
					_, _ = d.Release(ctx, w.Ref)
					return
				}
				if _, ok := await(d, w.ID, time.Minute); !ok {
					t.Error("not granted")
				}
				order <- i
				<-time.After(2 * time.Millisecond)
				_, _ = d.Release(ctx, w.Ref)
			})
		}
		wg.Wait()
		if <-order != 0 || <-order != 1 || <-order != 2 {
			inversions++
		}
	}
	t.Logf("%d inversions in 30 rounds", inversions)
	// A waiter that was not woken in time has lost its turn. Without any order, 29 are inversions.
	if inversions > testenv.UnderStress(24, 15) && !testenv.Stalled(t, start, 3*time.Second) {
		t.Errorf("%d inversions in 30 rounds", inversions)
	}
}

// A later claim leaves a free lock to an earlier waiter. If that waiter is dead, the later claim
// still has the lock soon.
func TestGhostWaiter(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			testenv.StartMetronome(t)
			start, took := time.Now(), make([]time.Duration, 3)
			for i := range took {
				took[i] = behindGhost(t, mode)
			}
			// A busy machine takes the ghost for old, after a second each time.
			if slices.Max(took) < 50*time.Millisecond && !testenv.Stalled(t, start, 3*time.Second) {
				t.Errorf("nothing was left to the first: %v", took)
			}
			if slices.Min(took) > testenv.UnderStress(10*time.Second, time.Second) { // nothing else ends a ghost
				t.Errorf("it took %v", took)
			}
		})
	}
}

// behindGhost returns how long a free lock is left to a dead waiter.
func behindGhost(t *testing.T, mode driver.Mode) time.Duration {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "locks")
	a, b := newDriver(t, dir), newDriver(t, dir)
	dead := open(t, filelock.New(dir), driver.Options{})
	h, w := try("k"), driver.Request{Ref: ref("k"), Wait: true, Mode: mode}
	file(t, a, h, driver.Held)
	file(t, dead, wait("k"), driver.Queued)
	if err := dead.Close(); err != nil { // as a crash: it takes nothing back
		t.Fatal(err)
	}
	file(t, b, w, driver.Queued)
	began := time.Now()
	release(t, a, h.Ref)
	granted(t, b, w.Ref)
	return time.Since(began)
}

// When the kernel has dropped signals, all files may have been closed.
func TestLostSignals(t *testing.T) {
	for _, mask := range []uint32{unix.IN_CLOSE_WRITE, unix.IN_Q_OVERFLOW} {
		event := binary.NativeEndian.AppendUint32(nil, 7)
		event = binary.NativeEndian.AppendUint32(event, mask)
		event = append(event, make([]byte, 8)...) // no cookie and no name
		watches, lost := filelock.ParseEvents(slices.Concat(event, event))
		if !slices.Equal(watches, []int{7, 7}) || lost != (mask == unix.IN_Q_OVERFLOW) {
			t.Errorf("%#x: %v, lost %v", mask, watches, lost)
		}
	}
}

// A process that was stopped in the middle of its work does not block the others.
func TestStoppedInGuard(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	d := newDriver(t, dir)
	reader := driver.Request{Ref: ref("k"), Mode: driver.Shared}
	file(t, d, reader, driver.Held)
	guard, err := os.OpenFile(filepath.Join(dir, filelock.GuardName(filelock.BaseOf("k"))), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(guard.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	second := driver.Request{Ref: ref("k"), Mode: driver.Shared, Wait: true}
	if st, err := d.Acquire(ctx, second); driver.ClassOf(err) != driver.Transient || err == nil {
		t.Errorf("Acquire = %v, %v", st.Phase, err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if st, err := d.Acquire(short, second); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Acquire = %v, %v", st.Phase, err)
	}
	if phase(t, d, reader.Ref) != driver.Held {
		t.Error("the reader has lost its lock")
	}
	release(t, d, reader.Ref)
	writer := wait("k")
	file(t, d, writer, driver.Held) // needs no guard
	file(t, newDriver(t, dir), try("k"), driver.Gone)
	file(t, d, second, driver.Queued)
	release(t, d, writer.Ref)
	if phase(t, d, second.Ref) != driver.Queued {
		t.Error("a reader came in past the guard")
	}
	file(t, d, try("k"), driver.Gone) // it does not pass a waiter of its own process
	if err := guard.Close(); err != nil {
		t.Fatal(err)
	}
	granted(t, d, second.Ref)
}

// A claim is not refused only because another process examines the lock.
func TestInspectionDisturbsNoHolder(t *testing.T) {
	t.Parallel()
	testenv.StartMetronome(t)
	dir := filepath.Join(t.TempDir(), "locks")
	d, other := newDriver(t, dir), newDriver(t, dir)
	file(t, d, try("else"), driver.Held)
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			began := time.Now()
			_, err := other.(driver.Admin).Inspect(ctx, "k")
			if err = unlessStopped(t, began, err); err != nil {
				done <- err
				return
			}
		}
	}()
	for i := range testenv.UnderStress(600, 3000) {
		r := try("k")
		if i%3 == 1 {
			r.Mode = driver.Shared
		}
		freeLock(t, d, r)
		release(t, d, r.Ref)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Every waiter of a process knows how many claims come before it: the holder, and the earlier
// waiters. When one of them leaves, it moves up.
func TestWaitersKnowTheirPlace(t *testing.T) {
	t.Parallel()
	d := newDriver(t, filepath.Join(t.TempDir(), "locks"))
	file(t, d, try("k"), driver.Held)
	var waiters []driver.Request
	for i := range 3 {
		waiters = append(waiters, wait("k"))
		if st := file(t, d, waiters[i], driver.Queued); st.Ahead != i+1 {
			t.Errorf("waiter %d is told of %d ahead", i, st.Ahead)
		}
	}
	release(t, d, waiters[0].Ref)
	for i, w := range waiters[1:] {
		states, err := d.Renew(ctx, []driver.Ref{w.Ref})
		if err != nil || states[0].Phase != driver.Queued || states[0].Ahead != i+1 {
			t.Errorf("waiter %d after the first has gone: %+v, %v", i+1, states, err)
		}
	}
}

// A lock that is taken again is no longer idle: its release finds it, however many others come and
// go.
func TestHeldLockOutlivesIdleOnes(t *testing.T) {
	t.Parallel()
	d := newDriver(t, filepath.Join(t.TempDir(), "locks"))
	use := func(key string) {
		r := try(key)
		file(t, d, r, driver.Held)
		release(t, d, r.Ref)
	}
	use("k")
	held := try("k")
	file(t, d, held, driver.Held)
	for i := range 2 * filelock.IdleQueues {
		use(fmt.Sprint("other", i))
	}
	release(t, d, held.Ref)
	use("k")
}
