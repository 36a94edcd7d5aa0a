package filelock_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// A program that locks the file with flock alone, as flock(1) does, excludes this library and is
// excluded by it.
func TestPlainFlock(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	d := newDriver(t, dir)
	held := try("k")
	file(t, d, held, driver.Held)
	f, err := os.Open(filepath.Join(dir, filelock.Name("k")))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	flock := func(how int) error { return unix.Flock(int(f.Fd()), how|unix.LOCK_NB) }
	if err := flock(unix.LOCK_EX); err != unix.EWOULDBLOCK { //nolint:errorlint // a system call
		t.Errorf("flock of a held lock: %v", err)
	}
	release(t, d, held.Ref)
	if err := flock(unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	file(t, d, try("k"), driver.Gone)
	file(t, d, driver.Request{Ref: ref("k"), Mode: driver.Shared}, driver.Gone)
	w := wait("k")
	file(t, d, w, driver.Queued)
	if err := flock(unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	granted(t, d, w.Ref)
	release(t, d, w.Ref)
	if err := flock(unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	file(t, d, try("k"), driver.Gone)
	file(t, d, driver.Request{Ref: ref("k"), Mode: driver.Permit, Limit: 5}, driver.Gone)
	file(t, d, driver.Request{Ref: ref("k"), Mode: driver.Shared}, driver.Held)
}

// An idle waiter is notified when flock(1) ends, although flock(1) opens the file only for reading.
// A holder that unlocks and keeps the file open is noticed a little later.
func TestFlockCommandEnds(t *testing.T) {
	t.Parallel()
	const notified = 100 * time.Millisecond
	for name, tc := range map[string]struct {
		end    func(*os.File) error
		store  *filelock.Store
		within time.Duration
	}{
		"it ends": {func(f *os.File) error { return f.Close() }, filelock.New(mkdir(t, 0o700)).Notified(notified), notified},
		"it unlocks": {
			func(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }, filelock.New(mkdir(t, 0o700)), 450 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n, most = 5, 10 * time.Second
			testenv.StartMetronome(t)
			d := open(t, tc.store, driver.Options{})
			defer func() { _ = d.Close() }()
			var holders []*os.File
			var waits []driver.Request
			for i := range n {
				w := wait(fmt.Sprint("k", i))
				path := filepath.Join(tc.store.Path(), filelock.Name(w.Key))
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				holders, waits = append(holders, flocked(t, path)), append(waits, w)
				file(t, d, w, driver.Queued)
			}
			<-time.After(time.Second) // by now it seldom looks
			took := make([]time.Duration, n)
			for i, f := range holders {
				began := time.Now()
				if err := tc.end(f); err != nil {
					t.Fatal(err)
				}
				granted(t, d, waits[i].Ref)
				took[i] = time.Since(began)
				if took[i] > most && testenv.Stalled(t, began, most) {
					took[i] = most
				}
			}
			if slices.Max(took) > most || slices.Min(took) > testenv.UnderStress(10*tc.within, tc.within) {
				t.Errorf("noticed after %v", took)
			}
		})
	}
}

// A waiter that looks no more is notified when the holder is killed. A slow kernel may report the end of a process long before
// the lock is free: the notification of a single one is enough.
func TestCrashIsNotified(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	d := open(t, filelock.New(dir).Notified(100*time.Millisecond), driver.Options{})
	defer func() { _ = d.Close() }()
	var holders []*exec.Cmd
	for i := range 3 {
		key := fmt.Sprint("crash", i)
		cmd, _ := holder(t, dir, key, driver.Exclusive)
		holders = append(holders, cmd)
		file(t, d, wait(key), driver.Queued)
	}
	<-time.After(500 * time.Millisecond) // by now it looks no more
	for _, cmd := range holders {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	select {
	case ev := <-d.Events():
		if ev.State.Phase != driver.Held {
			t.Errorf("notified that a claim is %v", ev.State.Phase)
		}
	case <-time.After(time.Minute):
		t.Error("no waiter is notified")
	}
}
