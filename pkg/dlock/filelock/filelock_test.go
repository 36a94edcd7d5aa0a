package filelock_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

const (
	// childDir passes the directory of the locks to a child process, and childRole its role.
	childDir  = "FILELOCK_TEST_DIR"
	childRole = "FILELOCK_TEST_ROLE"
)

// roles maps the roles of child processes to their functions.
var roles = map[string]func(d driver.Driver){}

func TestMain(m *testing.M) {
	if drivertest.IsChild() {
		drivertest.Child(childDriver("suite:"))
	}
	if role := roles[os.Getenv(childRole)]; role != nil {
		d := childDriver("")
		role(d)
		_ = d.Close()
		return
	}
	goleak.VerifyTestMain(m)
}

func childDriver(prefix string) driver.Driver {
	d, err := filelock.New(os.Getenv(childDir)).Open(driver.Options{Prefix: prefix, Logger: quiet})
	if err != nil {
		panic(err)
	}
	return d
}

var (
	ctx   = context.Background()
	quiet = slog.New(slog.DiscardHandler)
	// caps are what the harness expects of files.
	caps = driver.Caps{
		Name: "file", Fencing: true, TokenRange: true, Push: true,
		Modes: []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}, MinTTL: time.Millisecond,
	}
)

// harness runs the suite in its own directory.
func harness(change func(*filelock.Store)) func(*testing.T) *drivertest.Harness {
	return func(t *testing.T) *drivertest.Harness {
		dir := filepath.Join(t.TempDir(), "locks")
		store := filelock.New(dir)
		change(store)
		return &drivertest.Harness{
			Caps: caps, TTL: 300 * time.Millisecond, Slack: 5 * time.Second, NoEvict: true, Grants: 5000,
			Open: func(t *testing.T, o driver.Options) driver.Driver {
				t.Helper()
				return open(t, store, o)
			},
			Child: func(t *testing.T) *exec.Cmd {
				t.Helper()
				return process(t, dir, "")
			},
		}
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, harness(func(*filelock.Store) {}))
}

// On systems other than Linux, and when there are no watches left, files are polled.
func TestConformancePolling(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, harness(func(s *filelock.Store) { s.Polling() }))
}

func FuzzKeys(f *testing.F) { drivertest.FuzzKeys(f, harness(func(*filelock.Store) {})) }

// open returns a driver that the caller closes.
func open(t testing.TB, store *filelock.Store, o driver.Options) driver.Driver {
	t.Helper()
	testenv.StartMetronome(t) // for calls that the machine may delay: see stoppedInGuard
	o.Logger = quiet
	d, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// newDriver returns a driver on a directory, with its own Store as in another process. It is closed
// when the test ends.
func newDriver(t testing.TB, dir string, opts ...filelock.Option) driver.Driver {
	t.Helper()
	d := open(t, filelock.New(dir, opts...), driver.Options{})
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// process starts another process on a directory. It is killed when the test ends.
func process(t testing.TB, dir, role string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childRole+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

func ref(key string) driver.Ref {
	var raw [16]byte
	_, _ = rand.Read(raw[:])
	return driver.Ref{Key: key, ID: hex.EncodeToString(raw[:]), TTL: 10 * time.Second}
}

// file submits a claim and asserts its phase. It asks again if another call was stopped in its guard.
func file(t testing.TB, d driver.Driver, r driver.Request, want driver.Phase) driver.State {
	t.Helper()
	for {
		began := time.Now()
		st, err := d.Acquire(ctx, r)
		if err != nil && unlessStopped(t, began, err) == nil {
			continue
		}
		if err != nil || st.Phase != want {
			t.Fatalf("Acquire(%q) = %v, %v, want %v", r.Key, st.Phase, err, want)
		}
		return st
	}
}

func try(key string) driver.Request  { return driver.Request{Ref: ref(key)} }
func wait(key string) driver.Request { return driver.Request{Ref: ref(key), Wait: true} }

func release(t testing.TB, d driver.Driver, r driver.Ref) {
	t.Helper()
	if st, err := d.Release(ctx, r); err != nil || st.Phase == driver.Gone {
		t.Fatalf("Release(%q) = %v, %v", r.Key, st.Phase, err)
	}
}

// granted waits for the push of a grant, as the engine does.
func granted(t testing.TB, d driver.Driver, r driver.Ref) driver.State {
	t.Helper()
	st, ok := await(d, r.ID, time.Minute)
	if !ok {
		t.Fatalf("%q is not granted", r.Key)
	}
	return st
}

func await(d driver.Driver, id string, within time.Duration) (driver.State, bool) {
	late := time.After(within)
	for {
		select {
		case ev := <-d.Events():
			if ev.ID == id && ev.State.Phase == driver.Held {
				return ev.State, true
			}
		case <-late:
			return driver.State{}, false
		}
	}
}

// freeLock acquires a free lock. It asks again if another call was stopped in its guard.
func freeLock(t testing.TB, d driver.Driver, r driver.Request) {
	t.Helper()
	for {
		began := time.Now()
		st, err := d.Acquire(ctx, r)
		if err == nil && st.Phase == driver.Held {
			return
		}
		if !mayPass(err) || !stoppedInGuard(t, began) {
			t.Fatalf("a free lock is %v: %v", st.Phase, err)
		}
	}
}

// unlessStopped returns the error of a call, unless another call was stopped in its guard.
func unlessStopped(t testing.TB, began time.Time, err error) error {
	t.Helper()
	if err != nil && mayPass(err) && stoppedInGuard(t, began) {
		return nil
	}
	return err
}

// stoppedInGuard reports whether the machine has stopped this process for so long that a call which began then may have
// tried in vain to get a guard, for a quarter of a second. Few calls of a test are excused.
func stoppedInGuard(t testing.TB, began time.Time) bool {
	t.Helper()
	return testenv.StartMetronome(t).Lost(began) >= 100*time.Millisecond && testenv.Stalled(t, began, 200*time.Millisecond)
}

func mayPass(err error) bool { return err == nil || driver.ClassOf(err) == driver.Transient }

// take is an Acquire that waits; it is for child processes. As the engine does, it asks again after an error that
// may pass.
func take(d driver.Driver, r driver.Request) driver.State {
	r.Wait = true
	st, err := d.Acquire(ctx, r)
	for end := time.Now().Add(time.Minute); err != nil && driver.ClassOf(err) == driver.Transient && time.Now().Before(end); {
		st, err = d.Acquire(ctx, r)
	}
	if err != nil {
		panic(err)
	}
	if st.Phase == driver.Queued {
		var ok bool
		if st, ok = await(d, r.ID, time.Minute); !ok {
			panic("not granted")
		}
	}
	return st
}

func phase(t testing.TB, d driver.Driver, r driver.Ref) driver.Phase {
	t.Helper()
	states, err := d.Renew(ctx, []driver.Ref{r})
	if err != nil || len(states) != 1 {
		t.Fatal(states, err)
	}
	return states[0].Phase
}
