package filelock_test

import (
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
)

func init() { roles["starved"], roles["full"], roles["idle"] = starved, full, idle }

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
