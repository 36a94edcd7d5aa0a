// Package measure has what benchmarks share: they compare us with a yardstick in
// the same run, in turns, and report the median of the ratios with the smallest and
// the largest.
package measure

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Rounds is how often each side has its turn.
const Rounds = 9

// Spread reports the median of some figures, with the smallest and the largest.
func Spread(b *testing.B, name string, figures []float64) {
	b.Helper()
	slices.Sort(figures)
	b.ReportMetric(figures[len(figures)/2], name)
	b.ReportMetric(figures[0], name+"-min")
	b.ReportMetric(figures[len(figures)-1], name+"-max")
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

// A Contest is how some clients shared one key. Times are seconds. WaitP99 is
// weighted by waiting time: 99 % of all the time that was waited went into shorter
// waits. Counting waits instead would reward whoever lets a few clients go round
// and the others starve.
type Contest struct {
	Rate, Fairness                  float64
	HandOffP50, HandOffP99, WaitP99 float64
	Entries                         int
}

// Contend lets every worker take the key again and again. enter returns how to
// leave, or nil if it has given up.
func Contend(workers int, d time.Duration, enter func(w int) func()) Contest {
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
	c := Contest{}
	var all, wait []float64
	for w := range workers {
		c.Entries += counts[w]
		all, wait = append(all, handoffs[w]...), append(wait, waits[w]...)
	}
	slices.Sort(all)
	slices.Sort(wait)
	c.Rate = float64(c.Entries) / took
	c.Fairness = float64(slices.Min(counts)) / float64(max(slices.Max(counts), 1))
	if len(all) > 0 {
		c.HandOffP50, c.HandOffP99, c.WaitP99 = all[len(all)/2], all[len(all)*99/100], weighted(wait, 0.99)
	}
	return c
}

func weighted(sorted []float64, share float64) float64 {
	total, sum := 0.0, 0.0
	for _, w := range sorted {
		total += w
	}
	for _, w := range sorted {
		if sum += w; sum >= share*total {
			return w
		}
	}
	return 0
}

// CPU is what this process has used.
func CPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for oneself
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
