package filelock_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// swell makes the file of a lock as large as any other user of a shared directory can.
func swell(t *testing.T, path string) {
	t.Helper()
	if err := os.Truncate(path, 64<<20); err != nil {
		t.Fatal(err)
	}
}

// allocated returns how many bytes f allocates. Other tests must not run meanwhile.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A file that another user has made huge costs neither memory nor disk space in any operation.
func TestHugeFile(t *testing.T) {
	const most = 4 << 20 // of memory; the file has 64 MiB
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		for _, name := range []string{filelock.Name("k"), filelock.BaseOf("k") + ".0"} {
			if mode == driver.Exclusive && name != filelock.Name("k") {
				continue
			}
			t.Run(mode.String()+" "+name, func(t *testing.T) {
				store := filelock.New(mkdir(t, 0o700))
				d, dir := open(t, store, driver.Options{}), store.Path()
				defer func() { _ = d.Close() }()
				r := driver.Request{Ref: ref("k"), Mode: mode, Info: driver.Info{Owner: "first"}}
				file(t, d, r, driver.Held)
				swell(t, filepath.Join(dir, name))
				if n := allocated(func() { inspect(t, d, "k"); list(t, d) }); n > most {
					t.Errorf("looking at it allocated %d bytes", n)
				}
				release(t, d, r.Ref)
				again := driver.Request{Ref: ref("k"), Mode: mode, Info: driver.Info{Owner: "second"}}
				if n := allocated(func() { file(t, d, again, driver.Held) }); n > most {
					t.Errorf("taking it allocated %d bytes", n)
				}
				if claims := inspect(t, d, "k"); len(claims) != 1 || claims[0].Info.Owner != "second" {
					t.Errorf("shown as %+v", claims)
				}
				if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Size() > 64<<10 {
					t.Errorf("the file still has %d bytes, %v", st.Size(), err)
				}
				release(t, d, again.Ref)
				swell(t, filepath.Join(dir, name))
				if n := allocated(func() { clean(t, store, 1) }); n > most {
					t.Errorf("cleaning allocated %d bytes", n)
				}
			})
		}
	}
}

func clean(t *testing.T, store *filelock.Store, want int) {
	t.Helper()
	if n, err := store.Clean(ctx, 0); err != nil || n != want {
		t.Errorf("Clean = %d, %v, want %d", n, err, want)
	}
}

// Writes are limited as well, also for a caller that is not the engine.
func TestHugeRequest(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	d := newDriver(t, dir)
	r := driver.Request{Ref: ref("k"), Info: driver.Info{Owner: "o", Trace: strings.Repeat("t", 1<<20)}}
	st := file(t, d, r, driver.Held)
	if claims := inspect(t, d, "k"); len(claims) != 1 || claims[0].Token != st.Token || claims[0].ID != r.ID {
		t.Errorf("shown as %+v", claims)
	}
	if st, err := os.Stat(filepath.Join(dir, filelock.Name("k"))); err != nil || st.Size() > 64<<10 {
		t.Errorf("the file has %d bytes, %v", st.Size(), err)
	}
	if st, err := d.Acquire(ctx, try(strings.Repeat("k", 1<<20))); !errors.Is(err, driver.ErrInvalidKey) {
		t.Errorf("a key of 1 MiB: %v, %v", st.Phase, err)
	}
}

// plants are what any user can put under the name of a lock into a shared directory.
var plants = map[string]func(path string) error{
	"directory": func(path string) error { return os.Mkdir(path, 0o777) },
	"pipe":      func(path string) error { return unix.Mkfifo(path, 0o666) },
	"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
	"dangling":  func(path string) error { return os.Symlink("/nowhere/at/all", path) },
	"loop":      func(path string) error { return os.Symlink(filepath.Base(path), path) },
	"socket":    func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o666, 0) },
	"data":      func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) },
	"secret":    func(path string) error { return os.WriteFile(path, []byte("precious"), 0) },
	"hard": func(path string) error {
		target := path + "-target"
		return errors.Join(os.WriteFile(target, filelock.Text(time.Now(), 1), 0o600), os.Link(target, path))
	},
}

// Files that one user plants do not keep others from listing, showing and cleaning their own locks.
func TestPlantedFilesArePassedOver(t *testing.T) {
	t.Parallel()
	store := filelock.New(mkdir(t, 0o777|os.ModeSticky), filelock.WithSharedDir())
	d := open(t, store, driver.Options{})
	defer func() { _ = d.Close() }()
	for name, plant := range plants {
		for _, file := range []string{filelock.Name(name), filelock.Name("~" + name), "~" + strings.Repeat("0", 64) + name + ".lock"} {
			if err := plant(filepath.Join(store.Path(), file)); err != nil {
				t.Fatal(name, err)
			}
		}
		if st, err := d.Acquire(ctx, wait(name)); err == nil || driver.ClassOf(err) != driver.Fatal {
			t.Errorf("%s: Acquire = %v, %v", name, st.Phase, err)
		}
	}
	held, freed := try("held"), try("freed")
	file(t, d, held, driver.Held)
	file(t, d, freed, driver.Held)
	release(t, d, freed.Ref)
	if keys := list(t, d); !slices.Equal(keys, []string{"held"}) {
		t.Errorf("listed %q", keys)
	}
	clean(t, store, 1)
	for name := range plants {
		if _, err := os.Lstat(filepath.Join(store.Path(), filelock.Name(name))); err != nil {
			t.Errorf("%s is gone: %v", name, err)
		}
	}
}

// A planted slot does not hide the holders of the other slots.
func TestPlantedSlot(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	d := newDriver(t, dir)
	file(t, d, driver.Request{Ref: ref("k"), Mode: driver.Shared, Info: driver.Info{Owner: "a"}}, driver.Held)
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, filelock.BaseOf("k")+".1")); err != nil {
		t.Fatal(err)
	}
	if claims := inspect(t, d, "k"); len(claims) != 1 || claims[0].Info.Owner != "a" {
		t.Errorf("shown as %+v", claims)
	}
}

// A guard that is a hard link to another file is not locked: that would lock the other file.
func TestPlantedGuard(t *testing.T) {
	t.Parallel()
	dir := mkdir(t, 0o700)
	d := newDriver(t, dir)
	file(t, d, try("victim"), driver.Held)
	guard := filepath.Join(dir, filelock.GuardName(filelock.BaseOf("k")))
	if err := os.WriteFile(dir+".target", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(dir+".target", guard); err != nil {
		t.Fatal(err)
	}
	st, err := d.Acquire(ctx, driver.Request{Ref: ref("k"), Mode: driver.Shared})
	if !errors.Is(err, filelock.ErrInsecureDir) || driver.ClassOf(err) != driver.Fatal || !strings.Contains(err.Error(), guard) {
		t.Errorf("Acquire = %v, %v", st.Phase, err)
	}
}

// A list is the same, however many files there are and however few names are in memory.
func TestListManyFiles(t *testing.T) {
	t.Parallel()
	d := open(t, filelock.New(filepath.Join(t.TempDir(), "locks")).ListAtATime(3), driver.Options{})
	defer func() { _ = d.Close() }()
	var want []string
	for _, key := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
		r := try(key)
		file(t, d, r, driver.Held)
		if key > "c" && key < "k" { // more free ones in a row than are looked at together
			release(t, d, r.Ref)
			continue
		}
		want = append(want, key)
	}
	for _, limit := range []int{0, 1, 2, 100} {
		var got []string
		for cursor, more := "", true; more; more = cursor != "" {
			keys, next, err := d.(driver.Admin).List(ctx, "", cursor, limit)
			if err != nil || (limit > 0 && len(keys) > limit) {
				t.Fatal(keys, err)
			}
			got, cursor = append(got, keys...), next
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: listed %q, want %q", limit, got, want)
		}
	}
}

// Root creates a missing shared directory, for all users; all other users would refuse a directory
// that another user created.
func TestMissingSharedDirectory(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	dir := filepath.Join(parent, "run", "locks")
	store := filelock.New(dir, filelock.WithSharedDir()).AsUser(1000)
	refuses(t, store, fs.ErrNotExist)
	d := open(t, store, driver.Options{})
	defer func() { _ = d.Close() }()
	_, err := d.Acquire(ctx, try("k"))
	if err == nil || !strings.Contains(err.Error(), "install -d -m 1777 "+dir) {
		t.Errorf("the error does not say what to do: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(dir)); err == nil {
		t.Error("a parent was made")
	}
	if os.Geteuid() != 0 {
		return // the rest is about root
	}
	accepts(t, filelock.New(dir, filelock.WithSharedDir()))
	if st, err := os.Stat(dir); err != nil || st.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("the directory is %v, %v", st.Mode(), err)
	}
	if st, err := os.Stat(filepath.Dir(dir)); err != nil || st.Mode().Perm()&0o022 != 0 || st.Mode().Perm()&0o005 != 0o005 {
		t.Errorf("its parent is %v, %v", st.Mode(), err)
	}
	if _, err := d.Acquire(ctx, try("k")); err != nil { // user 1000 now
		t.Error(err)
	}
}
