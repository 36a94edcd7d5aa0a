package faultdriver_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/drivertest"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// conformance runs the suite with faults. Where faults make calls fail, the driver under test
// retries with the same claim, as the engine does.
func conformance(t *testing.T, again bool, rules ...faultdriver.Rule) {
	t.Helper()
	injected := 0
	drivertest.Run(t, func(t *testing.T) *drivertest.Harness {
		faults := faultdriver.New(memlock.New(), 42, rules...)
		t.Cleanup(func() {
			for _, r := range rules {
				injected += faults.Injected(r.Fault)
			}
		})
		open := func(t *testing.T, o driver.Options) driver.Driver {
			t.Helper()
			d, err := faults.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if again {
				return &persistent{d, d.(driver.Admin)}
			}
			return d
		}
		d := open(t, driver.Options{})
		defer func() { _ = d.Close() }()
		return &drivertest.Harness{Caps: d.Caps(), Open: open, Grants: 1000}
	}, drivertest.InVirtualTime())
	if injected == 0 {
		t.Error("no fault happened")
	}
}

func TestConformanceWithDuplicatedCalls(t *testing.T) {
	conformance(t, false,
		faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Duplicate, Chance: 0.5},
		faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Duplicate, Chance: 0.5},
		faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.Duplicate, Chance: 0.5},
	)
}

func TestConformanceWithLostCalls(t *testing.T) {
	conformance(t, true,
		faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseAnswer, Chance: 0.3},
		faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseRequest, Chance: 0.2},
		faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseAnswer, Chance: 0.3},
		faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.Fail, Chance: 0.3},
		faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseRequest, Chance: 0.3},
	)
}

func TestConformanceWithBadPushes(t *testing.T) {
	conformance(t, false,
		faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.RepeatPush, Chance: 0.5},
		faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.ReorderPush, Chance: 0.5},
	)
}

// persistent retries until it gets an answer.
type persistent struct {
	driver.Driver
	driver.Admin
}

func again[T any](ctx context.Context, call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if err == nil || ctx.Err() != nil || !errors.Is(err, faultdriver.ErrInjected) {
			return v, err
		}
	}
}

func (p *persistent) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	if ctx.Err() != nil {
		return driver.State{}, driver.Classify(ctx.Err(), driver.Transient)
	}
	return again(ctx, func() (driver.State, error) { return p.Driver.Acquire(ctx, r) })
}

func (p *persistent) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return again(ctx, func() ([]driver.State, error) { return p.Driver.Renew(ctx, refs) })
}

func (p *persistent) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	if ctx.Err() != nil {
		return driver.State{}, ctx.Err()
	}
	return again(ctx, func() (driver.State, error) { return p.Driver.Release(ctx, r) })
}

func (p *persistent) CanBatch(keys []string) bool { return p.Driver.(driver.Batcher).CanBatch(keys) }

func (p *persistent) AcquireBatch(ctx context.Context, rs []driver.Request) ([]driver.State, error) {
	return again(ctx, func() ([]driver.State, error) { return p.Driver.(driver.Batcher).AcquireBatch(ctx, rs) })
}

func (p *persistent) ReleaseBatch(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	return again(ctx, func() ([]driver.State, error) { return p.Driver.(driver.Batcher).ReleaseBatch(ctx, refs) })
}

func ref(id string) driver.Ref { return driver.Ref{Key: "k", ID: id, TTL: time.Minute} }

// open returns a faulty driver, and one that sees what is really stored.
func open(t *testing.T, rules ...faultdriver.Rule) (f *faultdriver.Faults, d, truth driver.Driver) {
	t.Helper()
	store := memlock.New()
	f = faultdriver.New(store, 1, rules...)
	d, err := f.Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	truth, err = store.Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = d.Close(), truth.Close() })
	return f, d, truth
}

func stored(t *testing.T, truth driver.Driver) int {
	t.Helper()
	claims, err := truth.(driver.Admin).Inspect(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	return len(claims)
}

var ctx = context.Background()

func TestLostCalls(t *testing.T) {
	for _, tc := range []struct {
		name   string
		fault  faultdriver.Fault
		stored int
		class  driver.Class
	}{
		{"fail", faultdriver.Fail, 0, driver.Transient},
		{"lose request", faultdriver.LoseRequest, 0, driver.Ambiguous},
		{"lose answer", faultdriver.LoseAnswer, 1, driver.Ambiguous},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, d, truth := open(t, faultdriver.Rule{Op: faultdriver.Acquire, Fault: tc.fault, Times: 1})
			_, err := d.Acquire(ctx, driver.Request{Ref: ref("1")})
			if !errors.Is(err, faultdriver.ErrInjected) || driver.ClassOf(err) != tc.class || stored(t, truth) != tc.stored {
				t.Errorf("%v, %d stored", err, stored(t, truth))
			}
			if st, err := d.Acquire(ctx, driver.Request{Ref: ref("1")}); err != nil || st.Phase != driver.Held {
				t.Errorf("after the fault: %v, %v", st, err)
			}
			if f.Injected(tc.fault) != 1 || f.Calls(faultdriver.Acquire) != 2 {
				t.Errorf("%d faults in %d calls", f.Injected(tc.fault), f.Calls(faultdriver.Acquire))
			}
		})
	}
}

func TestDelaysAndSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d, _ := open(t,
			faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Delay, Delay: time.Second, Skip: 1, Times: 1},
			faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.DelayAnswer, Delay: time.Second, Key: "k"},
			faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseAnswer, Hang: true},
		)
		timed := func(want time.Duration, call func(context.Context) error) {
			t.Helper()
			short, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			start := time.Now()
			err := call(short)
			if took := time.Since(start); took != want || (want == 5*time.Second) != errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v after %v, want %v", err, took, want)
			}
		}
		try := func(ctx context.Context) error { _, err := d.Acquire(ctx, driver.Request{Ref: ref("1")}); return err }
		timed(0, try)
		timed(time.Second, try)
		timed(0, try)
		timed(5*time.Second, func(ctx context.Context) error { _, err := d.Renew(ctx, []driver.Ref{ref("1")}); return err })
		timed(time.Second, func(ctx context.Context) error { _, err := d.Release(ctx, ref("1")); return err })
		timed(0, func(ctx context.Context) error {
			_, err := d.Release(ctx, driver.Ref{Key: "other", ID: "1", TTL: time.Minute})
			return err
		})
		f.Clear()
		timed(0, func(ctx context.Context) error { _, err := d.Renew(ctx, []driver.Ref{ref("1")}); return err })
	})
}

func TestBlank(t *testing.T) {
	_, d, _ := open(t, faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Blank, Key: "k"})
	other := driver.Ref{Key: "other", ID: "1", TTL: time.Minute}
	for _, r := range []driver.Ref{ref("1"), other} {
		if _, err := d.Acquire(ctx, driver.Request{Ref: r}); err != nil {
			t.Fatal(err)
		}
	}
	states, err := d.Renew(ctx, []driver.Ref{ref("1"), other})
	if err != nil || states[0].Phase != driver.Unknown || states[1].Phase != driver.Held {
		t.Errorf("%v, %v", states, err)
	}
}

func TestPushFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d, _ := open(t)
		grant := func(waiter string, rule faultdriver.Rule) {
			t.Helper()
			f.Clear()
			f.Add(rule)
			for _, id := range []string{"holder" + waiter, waiter} {
				r := driver.Ref{Key: "k" + waiter, ID: id, TTL: time.Minute}
				if _, err := d.Acquire(ctx, driver.Request{Ref: r, Wait: true}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := d.Release(ctx, driver.Ref{Key: "k" + waiter, ID: "holder" + waiter}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		grant("lost", faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.LosePush})
		grant("late", faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.ReorderPush, Times: 1})
		grant("twice", faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.RepeatPush, Times: 1})
		grant("kept", faultdriver.Rule{Op: faultdriver.Push, Fault: faultdriver.ReorderPush, Times: 1})
		for _, want := range []string{"twice", "twice", "late", "kept"} {
			if ev := <-d.Events(); ev.ID != want {
				t.Errorf("pushed %q, want %q", ev.ID, want)
			}
		}
	})
}

func TestOpen(t *testing.T) {
	if _, err := faultdriver.New(bare{err: faultdriver.ErrInjected}, 1).Open(driver.Options{}); !errors.Is(err, faultdriver.ErrInjected) {
		t.Error(err)
	}
	d, err := faultdriver.New(bare{}, 1).Remote().Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if _, ok := d.(driver.Admin); ok || !d.Caps().Remote {
		t.Errorf("admin %v, %+v", ok, d.Caps())
	}
}

// bare is memory without Admin.
type bare struct{ err error }

func (b bare) Open(o driver.Options) (driver.Driver, error) {
	if b.err != nil {
		return nil, b.err
	}
	d, err := memlock.New().Open(o)
	return struct{ driver.Driver }{d}, err
}

// A fault strikes a batch as a whole, and a rule for one of its keys does too.
func TestFaultsInBatches(t *testing.T) {
	f, d, truth := open(t, faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.LoseRequest, Key: "b", Times: 1},
		faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseAnswer, Key: "a", Times: 1})
	b := d.(driver.Batcher)
	ctx := context.Background()
	refs := []driver.Ref{{Key: "a", ID: "1", TTL: time.Minute}, {Key: "b", ID: "2", TTL: time.Minute}}
	requests := []driver.Request{{Ref: refs[0]}, {Ref: refs[1]}}
	phases := func() (found []driver.Phase) {
		states, err := truth.Renew(ctx, refs)
		if err != nil {
			t.Fatal(err)
		}
		return []driver.Phase{states[0].Phase, states[1].Phase}
	}
	if _, err := b.AcquireBatch(ctx, requests); !errors.Is(err, faultdriver.ErrInjected) || phases()[0] != driver.Gone {
		t.Errorf("a lost request: %v, and the claims are %v", err, phases())
	}
	if states, err := b.AcquireBatch(ctx, requests); err != nil || states[1].Phase != driver.Held || phases()[1] != driver.Held {
		t.Errorf("%v, %v, and the claims are %v", states, err, phases())
	}
	if _, err := b.ReleaseBatch(ctx, refs); !errors.Is(err, faultdriver.ErrInjected) || phases()[0] != driver.Gone || phases()[1] != driver.Gone {
		t.Errorf("a lost answer: %v, and the claims are %v", err, phases())
	}
	if f.Calls(faultdriver.Acquire) != 2 || f.Calls(faultdriver.Release) != 1 {
		t.Errorf("%d and %d calls", f.Calls(faultdriver.Acquire), f.Calls(faultdriver.Release))
	}
}
