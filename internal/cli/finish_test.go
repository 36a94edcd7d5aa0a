package cli

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// ended is a run whose command has just ended, and that says nothing but what finish does.
func ended(t *testing.T, minHold time.Duration) (r *run, store *memlock.Store, faults *faultdriver.Faults, said *bytes.Buffer) {
	t.Helper()
	store = memlock.New()
	faults = faultdriver.New(store, 1)
	r = newRun(t, faults, clog.Logger{})
	r.minHold = minHold
	if err := r.acquire(nil); err != nil {
		t.Fatal(err)
	}
	said = new(bytes.Buffer)
	r.reporter.events, r.reporter.quiet = said, false
	return r, store, faults, said
}

// A lock that runs out after the command has ended was held while it ran: its own code counts.
func TestLostWhileItLingers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _, faults, said := ended(t, 23*time.Hour)
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Fail})
		r.linger(nil)
		if waited := time.Since(r.taken); waited > r.ttl {
			t.Errorf("it lingers for %v", waited)
		}
		if err := r.finish(5); codeOf(err) != 5 || strings.Count(said.String(), "\n") != 1 || !strings.Contains(said.String(), "--min-hold") {
			t.Errorf("%v, and it says %q", err, said)
		}
	})
}

// A lock that was taken away may have passed on while the command ran.
func TestTakenAwayBeforeItLingers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, store, faults, said := ended(t, 23*time.Hour)
		faults.Add(faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Fail, Times: 1})
		evict(t, r, store)
		r.linger(nil)
		if err := r.finish(5); codeOf(err) != ExitLost || said.Len() > 0 {
			t.Errorf("%v, and it says %q", err, said)
		}
	})
}

// A loss is told once, whenever it is found, and never as if the command still ran.
func TestLossIsToldOnce(t *testing.T) {
	t.Parallel()
	for _, found := range []string{"before", "at the end"} {
		t.Run(found, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, store, faults, said := ended(t, 0)
				r.onLost = "warn"
				if found == "at the end" {
					faults.Add(faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
				}
				evict(t, r, store)
				if found == "before" {
					<-r.guard.Done()
					(&supervisor{run: r}).lost()
				}
				err := r.finish(5)
				if codeOf(err) != 5 || strings.Count(said.String(), "\n") != 1 || !strings.Contains(said.String(), "the lock was lost while the command ran") {
					t.Errorf("%v, and it says %q", err, said)
				}
			})
		})
	}
}

// evict takes the lock away, as an operator would.
func evict(t *testing.T, r *run, store *memlock.Store) {
	t.Helper()
	operator, err := dlock.New(&dlock.Config{}, dlock.WithBackend(store), dlock.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = operator.Close() }()
	a, err := operator.Admin()
	if err == nil {
		err = a.Evict(t.Context(), r.key, r.guard.Token())
	}
	if err != nil {
		t.Fatal(err)
	}
}
