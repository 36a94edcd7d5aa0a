package bench

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/stats"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onMemory are clients of one store.
func onMemory(t *testing.T, n int) []*dlock.Client {
	t.Helper()
	store := memlock.New()
	all := make([]*dlock.Client, n)
	for i := range all {
		c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(store))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		all[i] = c
	}
	return all
}

// No client gets a turn while another program has the key, and those waits count.
func TestOpenWaitsCount(t *testing.T) { synctest.Test(t, openWaitsCount) }

func openWaitsCount(t *testing.T) {
	all := onMemory(t, 4)
	stranger := all[3]
	p := &Plan{Key: "k", Clients: []int{3}, Sections: []time.Duration{time.Millisecond}, Duration: 200 * time.Millisecond, Rounds: 3, Lockers: all[:3]}
	p.Progress = func(s Step) {
		if s.Round != 2 {
			return
		}
		if s.Ended != nil {
			if err := stranger.Unlock(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		} else if err := stranger.Lock(t.Context(), "k"); err != nil {
			t.Error(err)
		}
	}
	r, err := Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	m := r.Results[0].Rounds[1]
	if m.Acquisitions != 0 || m.OpenWaits != 3 || m.Wait.P70 != 0.2 || m.Wait.Max != m.Seconds || m.Rate != 0 || m.CPU != nil {
		t.Errorf("%+v", m)
	}
	if r := r.Results[0]; r.Acquisitions == 0 || r.Rate.Min != 0 || r.Max.Max != 0.2 || len(r.Rounds) != 3 {
		t.Errorf("%+v", r)
	}
	if !r.Exclusion.Held {
		t.Errorf("%+v", r.Exclusion)
	}
}

// Run returns why its context has ended, with what was measured until then, and the
// key is free.
func TestRunEndsWithItsContext(t *testing.T) { synctest.Test(t, runEndsWithItsContext) }

func runEndsWithItsContext(t *testing.T) {
	all := onMemory(t, 2)
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	p := &Plan{Key: "k", Clients: []int{2}, Sections: []time.Duration{time.Millisecond, time.Hour}, Duration: time.Hour, Rounds: 3, Lockers: all}
	p.Progress = func(s Step) {
		if s.Ended == nil {
			time.AfterFunc(50*time.Millisecond, func() { cancel(stop) })
		}
	}
	r, err := Run(ctx, p)
	if !errors.Is(err, stop) || len(r.Results[0].Rounds) != 1 || r.Results[0].Acquisitions == 0 || len(r.Results[1].Rounds) != 0 {
		t.Errorf("%v, %+v", err, r)
	}
	if g, err := all[0].TryAcquire(t.Context(), "k"); err != nil || g.Unlock(t.Context()) != nil {
		t.Errorf("the key is not free: %v", err)
	}
}

func TestWitness(t *testing.T) {
	var w witness
	for token := range int64(3) {
		w.enter(0, token+1)
		w.leave(0)
	}
	if w.overlaps.Load() != 0 || w.disorders.Load() != 0 {
		t.Error("it sees what is not there")
	}
	w.enter(1, 3)
	w.leave(1)
	if w.disorders.Load() != 1 {
		t.Error("a token twice is not seen")
	}
	w.enter(1, 4)
	w.enter(2, 5)
	w.leave(1)
	w.enter(3, 6)
	if w.overlaps.Load() != 2 {
		t.Errorf("%d overlaps", w.overlaps.Load())
	}
}

func TestWaits(t *testing.T) {
	var waits []time.Duration
	for i := 100; i > 0; i-- {
		waits = append(waits, time.Duration(i)*time.Second)
	}
	if w := waitsOf(waits); w != (Waits{Mean: 50.5, P70: 70, P90: 90, P99: 99, Max: 100, P99ByTime: 100}) {
		t.Errorf("%+v", w)
	}
	many := make([]time.Duration, 999, 1000) // one that starves next to many that have turns
	for i := range many {
		many[i] = time.Millisecond
	}
	if w := waitsOf(append(many, time.Minute)); w.P99 != 0.001 || w.P99ByTime != 60 || w.Max != 60 {
		t.Errorf("%+v", w)
	}
	if w := waitsOf([]time.Duration{time.Second}); w.P70 != 1 || w.P99 != 1 || w.P99ByTime != 1 {
		t.Errorf("%+v", w)
	}
	if w := waitsOf(nil); w != (Waits{}) {
		t.Errorf("%+v", w)
	}
}

func TestRange(t *testing.T) {
	if r := rangeOf([]float64{4, 1, 2, 3}); *r != (stats.Range{Median: 2.5, Min: 1, Max: 4, N: 4}) {
		t.Error(*r)
	}
	if rangeOf(nil) != nil {
		t.Error("a range of nothing")
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		SectionName(0): "empty section", SectionName(time.Millisecond): "section of 1ms", ClientsName(1): "1 client", ClientsName(2): "2 clients",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	r := &Result{Mean: &stats.Range{Median: 0.0012, Min: 0.000012, Max: 0.00135, N: 3}}
	if got := figures[1].cell(r); got != "1.20 ms (12.0 µs–1.35 ms)" {
		t.Errorf("%q", got)
	}
	if got := figures[0].cell(r); got != "n/a" {
		t.Errorf("%q", got)
	}
}
