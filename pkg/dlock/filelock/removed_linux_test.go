package filelock_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// removals are ways to remove the file of a lock.
var removals = map[string]func(dir, path string) error{
	"removed":               func(_, path string) error { return os.Remove(path) },
	"moved away":            func(_, path string) error { return os.Rename(path, path+".old") },
	"replaced":              func(_, path string) error { _ = os.WriteFile(path+"~", nil, 0o600); return os.Rename(path+"~", path) },
	"with its directory":    func(dir, _ string) error { return os.RemoveAll(dir) },
	"moved with everything": func(dir, _ string) error { return os.Rename(dir, dir+".old") },
}

// A holder whose file is removed loses the lock when it is renewed, the next claim gets a new file,
// and tokens keep increasing.
func TestRemovedWhileHeld(t *testing.T) {
	t.Parallel()
	for name, take := range removals {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			t.Run(name+" "+mode.String(), func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "locks")
				d, other := newDriver(t, dir), newDriver(t, dir)
				h, w := driver.Request{Ref: ref("k"), Mode: mode}, wait("k")
				was := file(t, d, h, driver.Held)
				file(t, d, w, driver.Queued)
				if err := take(dir, filepath.Join(dir, filelock.Name("k"))); err != nil {
					t.Fatal(err)
				}
				if got := phase(t, d, w.Ref); got != driver.Queued {
					t.Errorf("a waiter is %v, though the holder still believes in its lock", got)
				}
				if got := phase(t, d, h.Ref); got != driver.Gone {
					t.Errorf("the holder is %v", got)
				}
				st := granted(t, d, w.Ref)
				if st.Token <= was.Token {
					t.Errorf("token %d after %d", st.Token, was.Token)
				}
				file(t, other, try("k"), driver.Gone) // it is the file that all see
				if got := phase(t, d, w.Ref); got != driver.Held {
					t.Errorf("the new holder is %v", got)
				}
				release(t, d, w.Ref)
				file(t, other, try("k"), driver.Held)
			})
		}
	}
}

// A waiter whose directory is no longer fit gets an error when it is renewed.
func TestDirectoryTurnsBad(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	d, other := newDriver(t, dir), newDriver(t, dir)
	h, w := try("k"), wait("k")
	file(t, other, h, driver.Held)
	file(t, d, w, driver.Queued)
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	release(t, other, h.Ref)
	states, err := d.Renew(ctx, []driver.Ref{w.Ref, try("another").Ref})
	if driver.ClassOf(err) != driver.Fatal || states[0].Phase != driver.Unknown || states[1].Phase != driver.Gone {
		t.Errorf("Renew = %v, %v", states, err)
	}
}

// The file of a free lock can be removed at any time, even if a driver has left it open.
func TestRemovedWhileFree(t *testing.T) {
	t.Parallel()
	for name, take := range removals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "locks")
			d, other := newDriver(t, dir), newDriver(t, dir)
			last := int64(0)
			for range 3 {
				r := try("k")
				if st := file(t, d, r, driver.Held); st.Token <= last {
					t.Errorf("token %d after %d", st.Token, last)
				}
				release(t, d, r.Ref)
				if err := take(dir, filepath.Join(dir, filelock.Name("k"))); err != nil {
					t.Fatal(err)
				}
				if name == "moved away" || name == "moved with everything" {
					<-time.After(1100 * time.Millisecond) // seen within a second only
				}
				o := try("k")
				last = file(t, other, o, driver.Held).Token
				file(t, d, try("k"), driver.Gone)
				release(t, other, o.Ref)
				if name == "moved away" || name == "moved with everything" {
					return
				}
			}
		})
	}
}

// A slot whose file is removed is lost as well.
func TestRemovedSlot(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	d := newDriver(t, dir)
	p := driver.Request{Ref: ref("k"), Mode: driver.Permit, Limit: 1}
	file(t, d, p, driver.Held)
	if err := os.Remove(filepath.Join(dir, filelock.BaseOf("k")+".0")); err != nil {
		t.Fatal(err)
	}
	if got := phase(t, d, p.Ref); got != driver.Gone {
		t.Errorf("the permit is %v", got)
	}
	file(t, d, driver.Request{Ref: ref("k"), Mode: driver.Permit, Limit: 1}, driver.Held)
	file(t, d, driver.Request{Ref: ref("k"), Mode: driver.Permit, Limit: 1}, driver.Gone)
}

// Clean removes only the files of free and unused locks.
func TestClean(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	store := filelock.New(dir)
	d := open(t, store, driver.Options{})
	defer func() { _ = d.Close() }()
	held, reader, free := try("held"), driver.Request{Ref: ref("read"), Mode: driver.Shared}, try("free")
	gone := driver.Request{Ref: ref("gone"), Mode: driver.Permit, Limit: 2}
	last := int64(0)
	for _, r := range []driver.Request{held, reader, free, gone} {
		last = file(t, d, r, driver.Held).Token
	}
	release(t, d, free.Ref)
	release(t, d, gone.Ref)
	for _, name := range []string{"gone.txt", "notes.lock", ".lock", "a.0"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "empty.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := store.Clean(ctx, time.Hour); err != nil || n != 0 {
		t.Errorf("Clean(1h) = %d, %v", n, err)
	}
	if n, err := store.Clean(ctx, 0); err != nil || n != 2 {
		t.Errorf("Clean(0) = %d, %v", n, err)
	}
	for name, want := range map[string]bool{
		filelock.Name("held"): true, filelock.Name("read"): true, "read.0": true, "gone.txt": true, "notes.lock": true, ".lock": true, "a.0": true, "empty.lock": true,
		filelock.Name("free"): false, filelock.Name("gone"): false, "gone.0": false,
	} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", name, err == nil, want)
		}
	}
	for _, r := range []driver.Request{held, reader} {
		if phase(t, d, r.Ref) != driver.Held {
			t.Errorf("%s is lost", r.Key)
		}
	}
	if st := file(t, d, try("free"), driver.Held); st.Token <= last {
		t.Errorf("token %d after %d", st.Token, last)
	}
}

// A child process has the files of its parent until it executes its program. What Clean and guards
// have locked is free all the same when they are done.
func TestCleanWhileProcessesStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	store, d := filelock.New(dir), newDriver(t, dir)
	ended, children := make(chan struct{}), sync.WaitGroup{}
	for range testenv.UnderStress(2, 4) {
		children.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
					if err := exec.Command("true").Run(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	defer children.Wait()
	defer close(ended)
	for range testenv.UnderStress(200, 1000) {
		r := try("k")
		file(t, d, r, driver.Held)
		release(t, d, r.Ref)
		if _, err := store.Clean(ctx, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// Clean and concurrent lock calls do not disturb each other.
func TestCleanWhileLocking(t *testing.T) {
	t.Parallel()
	testenv.StartMetronome(t)
	dir := filepath.Join(t.TempDir(), "locks")
	store := filelock.New(dir)
	a, b := newDriver(t, dir), newDriver(t, dir)
	for i := range testenv.UnderStress(400, 2000) {
		cleaned := make(chan error, 1) // one at a time: in a loop of its own it would keep the guard from the others
		go func() {
			began := time.Now()
			_, err := store.Clean(ctx, 0)
			cleaned <- unlessStopped(t, began, err)
		}()
		for range i % 256 { // meet Clean at each of its steps
			_, _ = os.Stat(dir)
		}
		one, two := try("k"), try("k")
		if i%2 == 0 {
			one.Mode = driver.Shared
		}
		freeLock(t, a, one)
		file(t, b, two, driver.Gone)
		if phase(t, a, one.Ref) != driver.Held {
			t.Fatal("the lock was cleaned away")
		}
		release(t, a, one.Ref)
		if err := <-cleaned; err != nil {
			t.Fatal(err)
		}
	}
}
