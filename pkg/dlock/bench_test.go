package dlock_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/measure"
	"github.com/ceyewan/genesis/internal/stats"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// rounds is how often the two sides of a ratio are measured, alternately.
const rounds = 11

// ratio measures subject and yardstick alternately, and reports the median of their ratios and its
// spread, and the median time of each.
func ratio(b *testing.B, unit string, subject, yardstick func(n int)) {
	b.Helper()
	const n = 20_000
	time := func(f func(int)) float64 { return float64(elapsed(f, n).Nanoseconds()) / n }
	time(subject)
	time(yardstick)
	var ratios, subjects, yardsticks []float64
	for range rounds {
		s, y := time(subject), time(yardstick)
		ratios, subjects, yardsticks = append(ratios, s/y), append(subjects, s), append(yardsticks, y)
	}
	measure.Spread(b, unit, ratios)
	b.ReportMetric(stats.RangeOf(subjects).Median, "ns/pair")
	b.ReportMetric(stats.RangeOf(yardsticks).Median, "ns/yardstick")
}

func elapsed(f func(int), n int) time.Duration {
	start := time.Now()
	f(n)
	return time.Since(start)
}

// BenchmarkUncontended compares Acquire and Unlock on memory with a sync.Mutex that is looked up in
// a map under a lock, the simplest code that it replaces.
func BenchmarkUncontended(b *testing.B) {
	ctx, c := context.Background(), client(b, memlock.New(), dlock.Config{})
	pair := func(n int) {
		for range n {
			g, err := c.Acquire(ctx, "order:123")
			if err != nil {
				b.Fatal(err)
			}
			if err := g.Unlock(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
	var mu sync.Mutex
	shared := 0
	locks := map[string]*sync.Mutex{"order:123": {}}
	find := func(key string) *sync.Mutex {
		mu.Lock()
		defer mu.Unlock()
		return locks[key]
	}
	plain := func(n int) {
		for range n {
			find("order:123").Lock()
			shared++
			find("order:123").Unlock()
		}
	}
	ratio(b, "x-mutex-in-map", pair, plain)
	b.ReportMetric(testing.AllocsPerRun(1000, func() { pair(1) }), "allocs/pair")
}

// BenchmarkHeld measures the heap of 100,000 guards, including the backend, and the number of
// goroutines.
func BenchmarkHeld(b *testing.B) {
	const n = 100_000
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("bench:%06d", i)
	}
	guards := make([]*dlock.Guard, n)
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	c := client(b, memlock.New(), dlock.Config{DefaultTTL: time.Minute})
	before, goroutines := heap(), runtime.NumGoroutine()
	for i, key := range keys {
		guards[i] = acquire(b, c, key)
	}
	b.ReportMetric((heap()-before)/n, "B/guard")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
	b.ReportMetric(0, "ns/op")
	runtime.KeepAlive(guards)
}

// BenchmarkHandOff passes one key between goroutines that contend for it.
func BenchmarkHandOff(b *testing.B) {
	ctx, c := context.Background(), client(b, memlock.New(), dlock.Config{})
	contend := func(lock func() func()) func(int) {
		return func(n int) {
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range n / 8 {
						lock()()
					}
				})
			}
			wg.Wait()
		}
	}
	ours := contend(func() func() {
		g, err := c.Acquire(ctx, "k")
		if err != nil {
			b.Error(err)
			return func() {}
		}
		return func() { _ = g.Unlock(ctx) }
	})
	token := make(chan struct{}, 1)
	token <- struct{}{}
	channel := contend(func() func() {
		<-token
		return func() { token <- struct{}{} }
	})
	ratio(b, "x-channel", ours, channel)
}
