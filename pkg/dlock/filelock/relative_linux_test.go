package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// A Store of a relative path has one directory, wherever the process goes afterwards.
func TestRelativeDirectory(t *testing.T) {
	home, elsewhere := t.TempDir(), t.TempDir()
	t.Chdir(home)
	store := filelock.New("locks")
	if store.Path() != filepath.Join(home, "locks") {
		t.Errorf("the directory is %s", store.Path())
	}
	before := open(t, store, driver.Options{})
	defer func() { _ = before.Close() }()
	t.Chdir(elsewhere)
	after := open(t, store, driver.Options{})
	defer func() { _ = after.Close() }()
	held := driver.Request{Ref: ref("k")}
	state := file(t, before, held, driver.Held)
	file(t, after, driver.Request{Ref: ref("k")}, driver.Gone)

	files, err := store.Descriptors("k", state.Token)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if filepath.Dir(f.Name()) != filepath.Join(home, "locks") {
			t.Errorf("a descriptor of %s", f.Name())
		}
		_ = f.Close()
	}
	release(t, before, held.Ref)
	removed, err := store.Clean(ctx, 0)
	if err != nil || removed != 1 {
		t.Errorf("Clean = %d, %v", removed, err)
	}
	if _, err := os.Stat(filepath.Join(elsewhere, "locks")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a second directory: %v", err)
	}
}

// Where the working directory cannot be found, a relative path means nothing. It does not
// come to mean something later.
func TestRelativeToNothing(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	t.Chdir(gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	store := filelock.New("locks")
	t.Chdir(home)
	unusable(t, store)
}

// unusable fails the test if a method of a Store that cannot be used says something else.
func unusable(t *testing.T, store *filelock.Store) {
	t.Helper()
	_, opening := store.Open(driver.Options{Logger: quiet})
	_, cleaning := store.Clean(ctx, 0)
	_, inheriting := store.Descriptors("k", 1)
	for op, err := range map[string]error{"Open": opening, "Clean": cleaning, "Descriptors": inheriting} {
		if !errors.Is(err, xerrors.ErrInvalidConfig) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// What New cannot use is an invalid configuration, to every method.
func TestUnusableStore(t *testing.T) {
	for name, store := range map[string]*filelock.Store{
		"no directory": filelock.New(""), "a nil option": filelock.New(t.TempDir(), nil), "zero": {},
	} {
		t.Run(name, func(t *testing.T) { unusable(t, store) })
	}
}
