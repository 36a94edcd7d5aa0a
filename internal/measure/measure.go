// Package measure has what benchmarks share: they compare us with a yardstick in
// the same run, in turns, and report the median of the ratios with the smallest and
// the largest.
package measure

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/internal/stats"
)

// Rounds is how often each side has its turn.
const Rounds = 9

// A Reporter is a *testing.B. Programs that need CPU do not link package testing.
type Reporter interface {
	Helper()
	ReportMetric(n float64, unit string)
}

// Spread reports the median of some figures, with the smallest and the largest.
func Spread(b Reporter, name string, figures []float64) {
	b.Helper()
	r := stats.RangeOf(figures)
	b.ReportMetric(r.Median, name)
	b.ReportMetric(r.Min, name+"-min")
	b.ReportMetric(r.Max, name+"-max")
	b.ReportMetric(0, "ns/op") // means nothing here
}

// Pace runs pairs in goroutines for a while and returns how many a second.
func Pace(goroutines int, d time.Duration, pair func(worker int)) float64 {
	var n atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for w := range goroutines {
		wg.Go(func() {
			for time.Since(start) < d {
				pair(w)
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(start).Seconds()
}

// A Contention is how some clients shared one key. Times are seconds. WaitP99 is
// weighted by waiting time; see stats.PercentileByTime.
type Contention struct {
	Rate, Fairness                  float64
	HandOffP50, HandOffP99, WaitP99 float64
	Entries                         int
}

// Contend lets every worker take the key again and again. enter returns how to
// leave, or nil if it has given up.
func Contend(workers int, d time.Duration, enter func(w int) func()) Contention {
	counts := make([]int, workers)
	handoffs, waits := make([][]float64, workers), make([][]float64, workers)
	var left atomic.Int64 // when the last holder began to leave
	var wg sync.WaitGroup
	begin := time.Now()
	for w := range workers {
		wg.Go(func() {
			for time.Since(begin) < d {
				asked := time.Now()
				leave := enter(w)
				now := time.Now()
				waits[w] = append(waits[w], now.Sub(asked).Seconds()) // one that was still open in the end too
				if leave == nil {
					return
				}
				if at := left.Load(); at != 0 {
					handoffs[w] = append(handoffs[w], now.Sub(begin).Seconds()-time.Duration(at).Seconds())
				}
				counts[w]++
				left.Store(int64(time.Since(begin)))
				leave()
			}
		})
	}
	wg.Wait()
	took := time.Since(begin).Seconds()
	c := Contention{}
	var all, wait []float64
	for w := range workers {
		c.Entries += counts[w]
		all, wait = append(all, handoffs[w]...), append(wait, waits[w]...)
	}
	slices.Sort(all)
	slices.Sort(wait)
	c.Rate = float64(c.Entries) / took
	c.Fairness = stats.Fairness(counts)
	if len(all) > 0 {
		c.HandOffP50, c.HandOffP99, c.WaitP99 = stats.Percentile(all, 50), stats.Percentile(all, 99), stats.PercentileByTime(wait, 99)
	}
	return c
}
