// Package measure has what benchmarks share: they compare us with a yardstick in
// the same run, in turns, and report the median of the ratios with the smallest and
// the largest.
package measure

import (
	"slices"
	"strconv"
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

// Keys compares a pair of eight keys of one slot with a pair of one key. They take turns, and the figure of a round is the
// median time of its pairs, so that what else the machine does matters little.
func Keys(b Reporter, pair func(keys []string)) {
	b.Helper()
	eight := make([]string, 8)
	for i := range eight {
		eight[i] = "{bench}:" + strconv.Itoa(i)
	}
	const pairs = 200
	var ratios, all, one []float64
	for round := range Rounds + 1 {
		var a, o []float64
		for range pairs {
			a, o = append(a, timeOf(func() { pair(eight) })), append(o, timeOf(func() { pair(eight[:1]) }))
		}
		x, y := stats.RangeOf(a).Median, stats.RangeOf(o).Median
		if round > 0 { // the first is to warm up
			ratios, all, one = append(ratios, x/y), append(all, x), append(one, y)
		}
	}
	Spread(b, "x-one-key", ratios)
	Spread(b, "us/8-keys", all)
	Spread(b, "us/1-key", one)
}

// timeOf returns how many microseconds f takes.
func timeOf(f func()) float64 {
	start := time.Now()
	f()
	return float64(time.Since(start)) / float64(time.Microsecond)
}
