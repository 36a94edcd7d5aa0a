package filelock_test

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

func init() {
	roles["starved"], roles["full"], roles["idle"] = starved, full, idle
	roles["noStdin"], roles["noCopies"] = noStdin, noCopies
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// limit sets a limit of this process until end.
func limit(resource int, n uint64) (end func()) {
	var was unix.Rlimit
	must(unix.Getrlimit(resource, &was))
	must(unix.Setrlimit(resource, &unix.Rlimit{Cur: n, Max: was.Max}))
	return func() { must(unix.Setrlimit(resource, &was)) }
}

// starved takes a lock without and with free descriptors.
func starved(d driver.Driver) {
	first := ref("first")
	_, err := d.Acquire(ctx, driver.Request{Ref: first})
	must(err)
	end := limit(unix.RLIMIT_NOFILE, 3)
	for _, r := range []driver.Request{try("k"), wait("k"), {Ref: ref("k"), Mode: driver.Shared}} {
		st, err := d.Acquire(ctx, r)
		fmt.Println(st.Phase, err != nil && driver.ClassOf(err) == driver.Transient)
	}
	end()
	st, err := d.Acquire(ctx, try("k"))
	fmt.Println(st.Phase, err)
}

// Without descriptors a call fails with a transient error, and holds nothing.
func TestNoDescriptorsLeft(t *testing.T) {
	t.Parallel()
	said := run(t, filepath.Join(t.TempDir(), "locks"), "starved", 1)[0]
	if got, want := strings.Join(said, " "), "unknown true unknown true unknown true held <nil>"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// full takes a lock while files are limited to a few bytes, as on a full disk. Then another claim
// takes it, without that limit.
func full(d driver.Driver) {
	signal.Ignore(unix.SIGXFSZ)
	other := childDriver("")
	defer func() { _ = other.Close() }()
	for i, bytes := range []uint64{0, 50, 100} { // nothing, a part of the first lines, a part of the third
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			r := driver.Request{Ref: ref(fmt.Sprint("k", i, mode)), Mode: mode}
			end := limit(unix.RLIMIT_FSIZE, bytes)
			st, err := d.Acquire(ctx, r)
			end()
			fmt.Println(st.Phase, err != nil && driver.ClassOf(err) == driver.Transient)
			st, err = other.Acquire(ctx, try(r.Key))
			fmt.Println(st.Phase, err)
		}
	}
}

// When nothing can be written, a call fails with a transient error, holds nothing, and damages
// nothing.
func TestNoSpaceLeft(t *testing.T) {
	t.Parallel()
	said := run(t, filepath.Join(t.TempDir(), "locks"), "full", 1)[0]
	if got, want := strings.Join(said, " "), strings.TrimSpace(strings.Repeat("unknown true held <nil> ", 6)); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// idle waits for a lock that it does not get, and prints how often it has written to the file
// meanwhile.
func idle(d driver.Driver) {
	before := writes()
	if st, err := d.Acquire(ctx, wait("k")); err != nil || st.Phase != driver.Queued {
		panic(fmt.Sprint(st.Phase, err))
	}
	<-time.After(time.Second)
	fmt.Println(writes() - before)
}

// writes returns how many system calls of this process were writes.
func writes() int {
	text, err := os.ReadFile("/proc/self/io")
	must(err)
	_, after, _ := strings.Cut(string(text), "syscw:")
	n, err := strconv.Atoi(strings.Fields(after)[0])
	must(err)
	return n
}

// A waiter is idle: it marks the file about 20 times in its first second, and 4 times in each
// second after that.
func TestWaitingIsIdle(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	file(t, newDriver(t, dir), try("k"), driver.Held)
	said := run(t, dir, "idle", 1)[0]
	n, err := strconv.Atoi(said[0])
	t.Logf("%d writes", n)
	if err != nil || n < 1 || n > 60 {
		t.Errorf("a waiter wrote %v times in a second", said)
	}
}

// childStore opens a Store of its own in a child process.
func childStore() (*filelock.Store, driver.Driver) {
	store := filelock.New(os.Getenv(childDir))
	d, err := store.Open(driver.Options{Logger: quiet})
	must(err)
	return store, d
}

// noStdin closes the standard input, so that the file of a lock gets its descriptor, which is 0. It
// takes and releases the lock, lets another Client do so, and counts the descriptors of the lock.
func noStdin(other driver.Driver) {
	store, d := childStore()
	defer func() { _ = d.Close() }()
	_, err := d.Acquire(ctx, try("first")) // opens the directory
	must(err)
	must(os.Stdin.Close())
	for _, d := range []driver.Driver{d, other} {
		r := try("k")
		st, err := d.Acquire(ctx, r)
		fmt.Println(st.Phase, err)
		path, err := os.Readlink("/proc/self/fd/0")
		fmt.Println(filepath.Base(path), err)
		_, err = d.Release(ctx, r.Ref)
		must(err)
	}
	st, err := d.Acquire(ctx, try("k"))
	must(err)
	files, err := store.Descriptors("k", st.Token)
	fmt.Println(len(files), err)
}

// A file whose descriptor is 0 is a file like any other.
func TestDescriptorZero(t *testing.T) {
	t.Parallel()
	said := run(t, filepath.Join(t.TempDir(), "locks"), "noStdin", 1)[0]
	if got, want := strings.Join(said, " "), strings.Repeat("held <nil> k.lock <nil> ", 2)+"1 <nil>"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// noCopies passes on a lock without and with free descriptors.
func noCopies(driver.Driver) {
	store, d := childStore()
	defer func() { _ = d.Close() }()
	st, err := d.Acquire(ctx, try("k"))
	must(err)
	end := limit(unix.RLIMIT_NOFILE, 3)
	files, err := store.Descriptors("k", st.Token)
	end()
	fmt.Println(len(files), errors.Is(err, unix.EMFILE))
	files, err = store.Descriptors("k", st.Token)
	fmt.Println(len(files), err)
}

// If the descriptors of a lock cannot be copied, that is an error: a child without them would not
// keep the lock.
func TestDescriptorsCannotBeCopied(t *testing.T) {
	t.Parallel()
	said := run(t, filepath.Join(t.TempDir(), "locks"), "noCopies", 1)[0]
	if got, want := strings.Join(said, " "), "0 true 1 <nil>"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
