package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// However long an Info is, the holder is shown, and the record is no longer than what is read.
func TestLargestRecord(t *testing.T) {
	t.Parallel()
	const most = 32 << 10
	dir := mkdir(t, 0o700)
	d := newDriver(t, dir)
	longest := int64(0)
	for n := most - 250; n < most; n++ {
		path := filepath.Join(dir, filelock.Name("k"))
		if n%2 == 0 {
			_ = os.Remove(path) // the first record of a file is written at once, others behind the mark
		}
		r := driver.Request{Ref: ref("k"), Info: driver.Info{Owner: "o", Trace: strings.Repeat("t", n)}}
		st := file(t, d, r, driver.Held)
		claims := inspect(t, d, "k")
		if len(claims) != 1 || claims[0].Token != st.Token || claims[0].ID != r.ID {
			t.Fatalf("Info of %d bytes: shown as %.200v", n, claims)
		}
		info, err := os.Stat(path)
		if err != nil || info.Size() > most {
			t.Fatalf("Info of %d bytes: the file has %d, %v", n, info.Size(), err)
		}
		longest = max(longest, info.Size())
		release(t, d, r.Ref)
	}
	if longest < most-1 {
		t.Errorf("no record is longer than %d bytes", longest)
	}
}

// A file that begins with zeros and has other content is left unchanged.
func TestZerosThenData(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"data behind a page":   strings.Repeat("\x00", 4096) + "precious",
		"data behind the head": strings.Repeat("\x00", 100) + "precious",
		"more than a record":   strings.Repeat("\x00", 33<<10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, path := lockFile(t, []byte(text))
			d := newDriver(t, dir)
			for _, r := range []driver.Request{try("k"), wait("k"), {Ref: ref("k"), Mode: driver.Shared}} {
				if st, err := d.Acquire(ctx, r); !errors.Is(err, filelock.ErrNotALock) || driver.ClassOf(err) != driver.Fatal {
					t.Errorf("Acquire = %v, %v", st.Phase, err)
				}
			}
			if now, err := os.ReadFile(path); err != nil || string(now) != text {
				t.Errorf("it was changed, %v", err)
			}
		})
	}
}

// An error names the file that it is about.
func TestErrorsNameTheFile(t *testing.T) {
	t.Parallel()
	dir := mkdir(t, 0o700)
	d := newDriver(t, dir)
	names := func(err error, name string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, name)) {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
	for name, text := range map[string]string{"slot.0": "precious", "data.lock": "precious"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "directory.lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := d.Acquire(ctx, driver.Request{Ref: ref("slot"), Mode: driver.Shared})
	names(err, "slot.0")
	_, err = d.Acquire(ctx, try("data"))
	names(err, "data.lock")
	for _, key := range []string{"data", "directory"} {
		_, err = d.(driver.Admin).Inspect(ctx, key)
		names(err, key+".lock")
	}
}

// Only claims that can wait leave a free lock to an earlier waiter. A try takes the lock.
func TestTryTakesAwaitedLock(t *testing.T) {
	t.Parallel()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit} {
		for range 10 { // on a slow machine, the waiter may count no longer
			dir := mkdir(t, 0o700)
			holder, d, dead := newDriver(t, dir), newDriver(t, dir), open(t, filelock.New(dir), driver.Options{})
			held := try("k")
			file(t, holder, held, driver.Held)
			file(t, dead, wait("k"), driver.Queued)
			must(dead.Close()) // as a crash: its mark stays
			release(t, holder, held.Ref)
			file(t, d, driver.Request{Ref: ref("k"), Mode: mode, Limit: 1}, driver.Held)
		}
	}
}
