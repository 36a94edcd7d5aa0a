package once_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
)

// A fleet is several processes that schedule one job.
type fleet struct {
	t     *testing.T
	store *memlock.Store
	every time.Duration
	hold  time.Duration

	mu      sync.Mutex
	runs    []span
	at      int // running now
	overlap int // beginnings while another ran
}

// A span is one run.
type span struct{ began, ended time.Time }

// A process has a clock that is ahead of the time by skew, and drifts. It dies now and then, in the middle of a run, and is
// started again.
type process struct {
	*fleet
	random *rand.Rand
	skew   time.Duration
	drift  float64
}

// clock returns what the clock of the process shows.
func (p *process) clock(start time.Time) time.Time {
	passed := time.Since(start)
	return start.Add(passed + p.skew + time.Duration(float64(passed)*p.drift))
}

// live calls Do whenever the process's own clock shows a multiple of the interval.
func (p *process) live(start, end time.Time) {
	for time.Now().Before(end) {
		faults := faultdriver.New(p.store, 1)
		locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(faults))
		if err != nil {
			p.t.Error(err)
			return
		}
		job, err := once.New(locks, "report", p.every)
		if err != nil {
			p.t.Error(err)
			return
		}
		for dies := false; !dies && time.Now().Before(end); {
			clock := p.clock(start)
			time.Sleep(max(clock.Truncate(p.every).Add(p.every).Sub(clock), time.Millisecond))
			_, err := job.Do(p.t.Context(), func(ctx context.Context) error {
				if dies = p.random.IntN(5) == 0; dies {
					for _, op := range []faultdriver.Op{faultdriver.Acquire, faultdriver.Renew, faultdriver.Release} {
						faults.Add(faultdriver.Rule{Op: op, Fault: faultdriver.Fail}) // nothing that it does later counts
					}
				}
				return p.work(ctx, dies)
			})
			if err != nil && !dies {
				p.t.Error(err)
			}
		}
		_ = locks.Close()
		time.Sleep(time.Duration(p.random.Int64N(int64(2 * p.every)))) // until it is started again
	}
}

// work takes milliseconds, seconds, or longer than the interval.
func (p *process) work(ctx context.Context, dies bool) error {
	takes := []time.Duration{time.Millisecond, time.Second, p.every / 2, p.every * 11 / 10, 3 * p.every}[p.random.IntN(5)]
	if dies {
		takes = min(takes, time.Second)
	}
	p.mu.Lock()
	if p.at > 0 {
		p.overlap++
	}
	p.at++
	began := time.Now()
	p.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at--
	p.runs = append(p.runs, span{began, time.Now()})
	return nil
}

// Over 1,000 intervals, with five processes whose clocks are up to 30 s apart and drift, that die in the middle of runs: no
// two runs begin within one hold, none overlap, and one begins whenever the hold has passed and a process is alive.
func TestFleet(t *testing.T) {
	for seed := range testenv.UnderStress[uint64](1, 3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const intervals, every = 1000, 10 * time.Minute
				f := &fleet{t: t, store: memlock.New(), every: every, hold: 9 * time.Minute}
				start := time.Now()
				end := start.Add(intervals * every)
				var all sync.WaitGroup
				for i := range 5 {
					p := &process{fleet: f, random: rand.New(rand.NewPCG(seed, uint64(i))), skew: time.Duration(i) * 7 * time.Second}
					p.drift = float64(i-2) * 5e-7 // 0.3 s over the whole time
					all.Go(func() { p.live(start, end) })
				}
				all.Wait()
				f.check()
			})
		})
	}
}

// check looks at all runs.
func (f *fleet) check() {
	f.t.Helper()
	slices.SortFunc(f.runs, func(a, b span) int { return a.began.Compare(b.began) })
	var busy, late int
	for i := 1; i < len(f.runs); i++ {
		before, next := f.runs[i-1], f.runs[i]
		if gap := next.began.Sub(before.began); gap < f.hold {
			f.t.Errorf("run %d began %v after the one before; the hold is %v", i, gap, f.hold)
		}
		free := before.began.Add(f.hold)
		if before.ended.After(free) {
			free, busy = before.ended, busy+1
		}
		if next.began.Sub(free) > f.every { // all five may be down
			late++
		}
	}
	if f.overlap > 0 {
		f.t.Errorf("%d runs began while another ran", f.overlap)
	}
	if len(f.runs) < 300 || busy < 50 || late > 5 {
		f.t.Errorf("%d runs, %d of them longer than the hold, %d late", len(f.runs), busy, late)
	}
	f.t.Logf("%d runs, %d of them longer than the hold, %d late", len(f.runs), busy, late)
}
