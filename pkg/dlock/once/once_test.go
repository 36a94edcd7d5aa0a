package once_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata"
	"unicode/utf8"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
)

func client(t testing.TB, b driver.Opener) *dlock.Client {
	t.Helper()
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(b), dlock.WithAdmin())
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func job(t testing.TB, c *dlock.Client, every time.Duration, opts ...once.Option) *once.Job {
	t.Helper()
	j, err := once.New(c, "report", every, opts...)
	check(t, err)
	return j
}

// do runs a job that takes some time and returns an error.
func do(t testing.TB, j *once.Job, takes time.Duration, result error) (ran bool, err error) {
	t.Helper()
	return j.Do(t.Context(), func(ctx context.Context) error {
		select {
		case <-time.After(takes):
			return result
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// due returns after how long another process may run the job.
func due(t testing.TB, store *memlock.Store, j *once.Job) time.Duration {
	t.Helper()
	began := time.Now()
	c := client(t, store)
	g, err := c.Acquire(t.Context(), j.Key())
	check(t, err)
	check(t, g.Unlock(t.Context()))
	return time.Since(began)
}

var errFailed = errors.New("exit status 1")

// A badError panics when it is printed.
type badError struct{}

func (badError) Error() string { panic("of the error") }

// A run whose error cannot be recorded ends nevertheless: the key is free after the hold.
func TestErrorThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		j := job(t, client(t, store), time.Minute)
		func() {
			defer func() {
				if recover() != "of the error" {
					t.Error("the panic was swallowed")
				}
			}()
			_, _ = do(t, j, time.Second, badError{})
		}()
		if got := due(t, store, j); got != 53*time.Second {
			t.Errorf("due again after %v", got)
		}
	})
}

// How long the key stays locked, whatever becomes of the run.
func TestHold(t *testing.T) {
	for name, c := range map[string]struct {
		opts  []once.Option
		takes time.Duration
		fails error
		due   time.Duration // after the run
	}{
		"short":          {takes: time.Second, due: 53 * time.Second},
		"failed":         {takes: time.Second, fails: errFailed, due: 53 * time.Second},
		"failed, retry":  {opts: []once.Option{once.WithRetry()}, takes: time.Second, fails: errFailed},
		"ok, with retry": {opts: []once.Option{once.WithRetry()}, takes: time.Second, due: 53 * time.Second},
		"long":           {takes: 53 * time.Second, due: time.Second},
		"nearly":         {takes: 54*time.Second - 15*time.Millisecond, due: 15 * time.Millisecond},
		"nearer":         {takes: 54*time.Second - 8*time.Millisecond, due: 16 * time.Millisecond}, // the shortest TTL is 10 ms
		"longer":         {takes: time.Hour},
		"own hold":       {opts: []once.Option{once.WithHold(20 * time.Second)}, takes: time.Second, due: 19 * time.Second},
		"long lease":     {opts: []once.Option{once.WithLease(10 * time.Minute)}, takes: time.Second, due: 53 * time.Second},
		"tiny lease":     {opts: []once.Option{once.WithLease(time.Millisecond)}, takes: time.Hour},
		"no record":      {opts: []once.Option{once.WithoutRecord()}, takes: time.Second, due: 53 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memlock.New()
				j := job(t, client(t, store), time.Minute, c.opts...)
				ran, err := do(t, j, c.takes, c.fails)
				if !ran || !errors.Is(err, c.fails) {
					t.Fatalf("it ran: %v, %v", ran, err)
				}
				if got := due(t, store, j); got < c.due || got > c.due+time.Millisecond {
					t.Errorf("due again after %v, not %v", got, c.due)
				}
				runs, err := j.Runs(t.Context())
				check(t, err)
				if (len(runs) == 0) != (name == "no record") {
					t.Errorf("%d runs are recorded", len(runs))
				}
			})
		})
	}
}

// A job that runs at every multiple of a short interval runs at each of them, although it takes half of the interval.
func TestShortInterval(t *testing.T) {
	for _, every := range []time.Duration{time.Second, 10 * time.Second, 30 * time.Second} {
		inBubble(t, every.String(), func(t *testing.T) {
			j := job(t, client(t, memlock.New()), every)
			for n := range 10 {
				began := time.Now()
				if ran, err := do(t, j, every/2, nil); !ran || err != nil {
					t.Errorf("time %d: %v, %v", n, ran, err)
				}
				time.Sleep(every - time.Since(began))
			}
		})
	}
}

// A job at local times runs at each of them, also when summer time begins.
func TestSummerTime(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	check(t, err)
	for name, hours := range map[string][]int{"daily": {9, 33, 57, 81}, "twice a day": {9, 21, 33, 45, 57}, "every six hours": {0, 6, 24, 30, 36, 48}} {
		inBubble(t, name, func(t *testing.T) {
			every := map[string]time.Duration{"daily": 24 * time.Hour, "twice a day": 12 * time.Hour, "every six hours": 5 * time.Hour}[name]
			j, last := job(t, client(t, memlock.New()), every), time.Time{}
			for _, hour := range hours { // of 27 March 2027; summer time begins on the 28th
				at := time.Date(2027, 3, 27+hour/24, hour%24, 0, 0, 0, berlin)
				if !last.IsZero() {
					time.Sleep(at.Sub(last))
				}
				last = at
				if ran, err := do(t, j, 0, nil); !ran || err != nil {
					t.Errorf("at %v: %v, %v", at, ran, err)
				}
			}
			if ran, err := do(t, j, 0, nil); ran || err != nil {
				t.Errorf("twice: %v, %v", ran, err)
			}
		})
	}
}

// A second process skips, or waits until the job is due.
func TestSkipOrWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, began := memlock.New(), time.Now()
		first, second := job(t, client(t, store), time.Minute), job(t, client(t, store), time.Minute)
		patient := job(t, client(t, store), time.Minute, once.WithWait(time.Hour))
		if ran, err := do(t, first, 0, nil); !ran || err != nil {
			t.Fatal(ran, err)
		}
		for _, j := range []*once.Job{first, second} {
			if ran, err := do(t, j, 0, nil); ran || err != nil {
				t.Errorf("not due: %v, %v", ran, err)
			}
		}
		for n := range 3 {
			ran, err := do(t, patient, 0, nil)
			if want := time.Duration(n+1) * patient.Hold(); !ran || err != nil || time.Since(began) < want || time.Since(began) > want+10*time.Second {
				t.Errorf("run %d after %v: %v, %v", n, time.Since(began), ran, err)
			}
		}
		impatient := job(t, client(t, store), time.Minute, once.WithWait(time.Second))
		if ran, err := do(t, impatient, 0, nil); ran || err != nil {
			t.Errorf("not due within its patience: %v, %v", ran, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ran, err := patient.Do(ctx, func(context.Context) error { return nil })
		if ran || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the context ended: %v, %v", ran, err)
		}
	})
}

// A waiter whose heartbeat was not answered cannot rely on the whole hold: the heartbeat may still arrive. It asks for the key again,
// with a claim of its own, and runs.
func TestLostHeartbeat(t *testing.T) {
	for _, wait := range []time.Duration{2 * time.Hour, 59*time.Minute + time.Second} { // the second ends shortly after the key is free
		inBubble(t, wait.String(), func(t *testing.T) {
			store := memlock.New()
			faults := faultdriver.New(store, 1)
			_, err := do(t, job(t, client(t, store), time.Hour), 0, nil)
			check(t, err)
			began := time.Now()
			go func() {
				time.Sleep(59*time.Minute - 2*time.Second)
				faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseRequest, Times: 1})
			}()
			ran, err := do(t, job(t, client(t, faults), time.Hour, once.WithWait(wait)), time.Minute, nil)
			if !ran || err != nil {
				t.Errorf("after %v: %v, %v", time.Since(began), ran, err)
			}
			if faults.Injected(faultdriver.LoseRequest) != 1 {
				t.Error("no heartbeat was lost")
			}
		})
	}
}

// A process that waited, and dies in the run, leaves the key locked for the whole hold, not for a waiter's lease.
func TestCrashAfterWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		faults := faultdriver.New(store, 1)
		patient := job(t, client(t, faults), time.Minute, once.WithWait(time.Hour))
		_, err := do(t, job(t, client(t, store), time.Minute), 0, nil)
		check(t, err)
		_, err = patient.Do(t.Context(), func(context.Context) error {
			for _, op := range []faultdriver.Op{faultdriver.Acquire, faultdriver.Renew, faultdriver.Release} {
				faults.Add(faultdriver.Rule{Op: op, Fault: faultdriver.Fail}) // as if it were dead
			}
			if got := due(t, store, patient); got != patient.Hold() {
				t.Errorf("due %v after the crash", got)
			}
			return nil
		})
		if !errors.Is(err, dlock.ErrOwnershipLost) || !errors.Is(err, once.ErrNotRecorded) {
			t.Errorf("the result is %v", err)
		}
	})
}

// A process that dies late in a long run leaves the key locked until the hold has passed, or for the lease of the job if
// that is longer.
func TestCrashLate(t *testing.T) {
	for dies, freed := range map[time.Duration]time.Duration{
		time.Minute: 59 * time.Minute, 56 * time.Minute: 59 * time.Minute, 58 * time.Minute: 59 * time.Minute, 2 * time.Hour: 2*time.Hour + 31*time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			store, began := memlock.New(), time.Now()
			faults := faultdriver.New(store, 1)
			j := job(t, client(t, faults), time.Hour)
			_, _ = j.Do(t.Context(), func(context.Context) error {
				time.Sleep(dies)
				for _, op := range []faultdriver.Op{faultdriver.Acquire, faultdriver.Renew, faultdriver.Release} {
					faults.Add(faultdriver.Rule{Op: op, Fault: faultdriver.Fail})
				}
				_ = due(t, store, j)
				if got := time.Since(began); got < j.Hold() || got < dies || got > freed {
					t.Errorf("dead after %v, due after %v", dies, got)
				}
				return nil
			})
		})
	}
}

// The context of a run ends if its lock is lost, before another run begins.
func TestLostWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		faults := faultdriver.New(store, 1)
		c := client(t, faults)
		j, next := job(t, c, time.Minute), job(t, client(t, store), time.Minute, once.WithWait(time.Hour))
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.Fail})
		nextBegan := make(chan time.Time, 1)
		go func() {
			_, _ = next.Do(t.Context(), func(context.Context) error {
				nextBegan <- time.Now()
				return nil
			})
		}()
		synctest.Wait()
		<-nextBegan
		ran, err := job(t, c, time.Minute, once.WithWait(0)).Do(t.Context(), func(context.Context) error { return nil })
		if ran || err != nil {
			t.Fatalf("the other has run: %v, %v", ran, err)
		}
		time.Sleep(j.Hold())
		var ended time.Time
		ran, err = j.Do(t.Context(), func(ctx context.Context) error {
			go func() {
				_, _ = next.Do(t.Context(), func(context.Context) error {
					nextBegan <- time.Now()
					return nil
				})
			}()
			<-ctx.Done()
			ended = time.Now()
			return nil
		})
		if !ran || !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Errorf("the result is %v, %v", ran, err)
		}
		if at := <-nextBegan; !at.After(ended) {
			t.Errorf("the next run began %v before the context ended", ended.Sub(at))
		}
		synctest.Wait() // until it is recorded
		runs, err := j.Runs(t.Context())
		check(t, err)
		if len(runs) != 3 || runs[1].OK || !strings.Contains(runs[1].Error, "ownership") {
			t.Errorf("the records are %+v", runs)
		}
	})
}

// A panic of the job counts as a run.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		j := job(t, client(t, store), time.Minute)
		func() {
			defer func() {
				if p := recover(); p != "out of cheese" {
					t.Errorf("the panic is %v", p)
				}
			}()
			_, _ = j.Do(t.Context(), func(context.Context) error { panic("out of cheese") })
		}()
		last, found, err := j.Last(t.Context())
		if err != nil || !found || last.OK || strings.Contains(last.Error, "cheese") {
			t.Errorf("the record is %+v, %v", last, err)
		}
		if got := due(t, store, j); got != j.Hold() {
			t.Errorf("due after %v", got)
		}
	})
}

// The record says when, who, how long and with which result, and survives the process.
func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		first := client(t, store)
		j := job(t, first, time.Minute, once.WithInfo(dlock.Info{Owner: "billing", Host: "host1", PID: 4711}))
		watcher := job(t, client(t, store), time.Minute)
		if _, found, err := watcher.Last(t.Context()); found || err != nil {
			t.Errorf("before the first run: %v, %v", found, err)
		}
		long := errors.New("line 1\nline 2 \xff " + strings.Repeat("ü", 300))
		for _, result := range []error{nil, errFailed, long} {
			_, err := do(t, j, 3200*time.Millisecond, result)
			if !errors.Is(err, result) {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		check(t, first.Close())
		runs, err := watcher.Runs(t.Context())
		check(t, err)
		if len(runs) != 3 {
			t.Fatalf("%d runs", len(runs))
		}
		for i, r := range runs {
			ago := time.Minute + time.Duration(i)*(time.Minute+3200*time.Millisecond)
			if r.Owner != "billing" || r.Host != "host1" || r.PID != 4711 || r.Took != 3200*time.Millisecond || time.Since(r.Ended) != ago {
				t.Errorf("run %d is %+v", i, r)
			}
			if r.Ended.Sub(r.Began()) != r.Took {
				t.Errorf("it began at %v", r.Began())
			}
		}
		if runs[2].Result() != "ok in 3.2s" || runs[1].Result() != "failed in 3.2s: exit status 1" || !runs[2].OK || runs[1].OK {
			t.Errorf("the results are %q and %q", runs[2].Result(), runs[1].Result())
		}
		if e := runs[0].Error; !strings.HasPrefix(e, "line 1 line 2 \uFFFD ü") || !strings.HasSuffix(e, "…") || !utf8.ValidString(e) || len(e) > 256 {
			t.Errorf("the long error is %q", e)
		}
		time.Sleep(24 * time.Hour)
		if _, found, err := watcher.Last(t.Context()); found || err != nil {
			t.Errorf("a day later: %v, %v", found, err)
		}
	})
}

// Bad input is refused before anything is sent.
func TestInput(t *testing.T) {
	t.Parallel()
	c := client(t, memlock.New())
	for name, f := range map[string]func() (*once.Job, error){
		"no client":       func() (*once.Job, error) { return once.New(nil, "k", time.Hour) },
		"no key":          func() (*once.Job, error) { return once.New(c, "", time.Hour) },
		"long key":        func() (*once.Job, error) { return once.New(c, strings.Repeat("k", 1020), time.Hour) },
		"no interval":     func() (*once.Job, error) { return once.New(c, "k", 0) },
		"a week":          func() (*once.Job, error) { return once.New(c, "k", 7*24*time.Hour) },
		"nil option":      func() (*once.Job, error) { return once.New(c, "k", time.Hour, nil) },
		"long hold":       func() (*once.Job, error) { return once.New(c, "k", time.Hour, once.WithHold(time.Hour+1)) },
		"negative hold":   func() (*once.Job, error) { return once.New(c, "k", time.Hour, once.WithHold(-1)) },
		"negative lease":  func() (*once.Job, error) { return once.New(c, "k", time.Hour, once.WithLease(-1)) },
		"negative wait":   func() (*once.Job, error) { return once.New(c, "k", time.Hour, once.WithWait(-1)) },
		"long retention":  func() (*once.Job, error) { return once.New(c, "k", time.Hour, once.WithRetention(25*time.Hour)) },
		"negative record": func() (*once.Job, error) { return once.New(c, "k", time.Hour, once.WithRetention(-1)) },
	} {
		if j, err := f(); j != nil || !errors.Is(err, dlock.ErrInvalidConfig) && !errors.Is(err, dlock.ErrInvalidKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	weekly, err := once.New(c, "k", 7*24*time.Hour, once.WithHold(time.Hour))
	check(t, err)
	if _, err := weekly.Do(t.Context(), nil); !errors.Is(err, dlock.ErrInvalidConfig) {
		t.Errorf("no function: %v", err)
	}
	if _, err := once.RunsOf(t.Context(), nil, "k"); !errors.Is(err, dlock.ErrInvalidConfig) {
		t.Errorf("no Admin: %v", err)
	}
	plain, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()))
	check(t, err)
	defer func() { check(t, plain.Close()) }()
	if _, _, err := job(t, plain, time.Hour).Last(t.Context()); !errors.Is(err, dlock.ErrUnsupported) {
		t.Errorf("Last without WithAdmin: %v", err)
	}
}

// Files have no leases: the job is refused, and the key is free afterwards.
func TestBackendWithoutLeases(t *testing.T) {
	t.Parallel()
	c := client(t, filelock.New(t.TempDir()))
	for range 2 {
		ran, err := do(t, job(t, c, time.Hour), 0, nil)
		if ran || !errors.Is(err, dlock.ErrUnsupported) {
			t.Errorf("on files: %v, %v", ran, err)
		}
	}
}
