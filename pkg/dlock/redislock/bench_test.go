package redislock_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// Benchmarks compare us with a yardstick in the same run, in turns, and report
// the median of the ratios with the smallest and the largest.

const benchRounds = 9

func benchClient(b *testing.B, addr string, pool int) *redis.Client {
	b.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, PoolSize: pool, ContextTimeoutEnabled: true, MaxRetries: -1})
	b.Cleanup(func() { _ = c.Close() })
	return c
}

func benchLocks(b *testing.B, client redis.UniversalClient, cfg dlock.Config) *dlock.Client {
	b.Helper()
	c, err := dlock.New(&cfg, dlock.WithBackend(redislock.New(client)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// spread reports the median of some figures, with the smallest and the largest.
func spread(b *testing.B, name string, figures []float64) {
	b.Helper()
	slices.Sort(figures)
	b.ReportMetric(figures[len(figures)/2], name)
	b.ReportMetric(figures[0], name+"-min")
	b.ReportMetric(figures[len(figures)-1], name+"-max")
}

// pace runs pairs in goroutines for a while and returns how many a second.
func pace(goroutines int, d time.Duration, pair func(worker int)) float64 {
	var n atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	start := time.Now()
	for w := range goroutines {
		wg.Go(func() {
			for time.Now().Before(end) {
				pair(w)
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(start).Seconds()
}

var compareDelete = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// BenchmarkUncontended is a fenced pair of ours beside SET NX PX and
// compare-and-delete by the same client.
func BenchmarkUncontended(b *testing.B) {
	addr := testenv.Redis(b).Addr()
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			ctx, client := context.Background(), benchClient(b, addr, 64)
			locks := benchLocks(b, client, dlock.Config{})
			keys := make([]string, goroutines)
			for i := range keys {
				keys[i] = "bench:" + strconv.Itoa(i)
			}
			ours := func(w int) {
				g, err := locks.Acquire(ctx, keys[w])
				if err != nil {
					b.Error(err)
					return
				}
				if err := g.Unlock(ctx); err != nil {
					b.Error(err)
				}
			}
			raw := func(w int) {
				if ok, err := client.SetNX(ctx, "raw"+keys[w], "0123456789abcdef0123456789abcdef", 10*time.Second).Result(); err != nil || !ok {
					b.Error(ok, err)
				}
				if err := compareDelete.Run(ctx, client, []string{"raw" + keys[w]}, "0123456789abcdef0123456789abcdef").Err(); err != nil {
					b.Error(err)
				}
			}
			pace(goroutines, 300*time.Millisecond, ours)
			pace(goroutines, 300*time.Millisecond, raw)
			var ratios, mine, theirs []float64
			for range benchRounds {
				o, r := pace(goroutines, 300*time.Millisecond, ours), pace(goroutines, 300*time.Millisecond, raw)
				ratios, mine, theirs = append(ratios, o/r), append(mine, o), append(theirs, r)
			}
			spread(b, "x-raw", ratios)
			spread(b, "pairs/s", mine)
			spread(b, "raw/s", theirs)
			b.ReportMetric(0, "ns/op")
		})
	}
}

// A contest is how 64 clients shared one key. waitP99 is weighted by waiting time:
// 99 % of all the time that was waited went into shorter waits. Counting waits
// instead would reward whoever lets a few clients go round and the others starve.
type contest struct {
	rate, fairness, p50, waitP99 float64
	entries                      int
}

// contend lets every worker take the key again and again. enter returns how to
// leave. Times are seconds.
func contend(workers int, d time.Duration, enter func(w int) func()) contest {
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
				if leave == nil { // a wait that was still open in the end counts too
					waits[w] = append(waits[w], now.Sub(asked).Seconds())
					return
				}
				if at := left.Load(); at != 0 {
					handoffs[w] = append(handoffs[w], now.Sub(begin).Seconds()-time.Duration(at).Seconds())
				}
				waits[w] = append(waits[w], now.Sub(asked).Seconds())
				counts[w]++
				left.Store(int64(time.Since(begin)))
				leave()
			}
		})
	}
	wg.Wait()
	took := time.Since(begin).Seconds()
	c := contest{}
	var all, wait []float64
	for w := range workers {
		c.entries += counts[w]
		all, wait = append(all, handoffs[w]...), append(wait, waits[w]...)
	}
	slices.Sort(all)
	slices.Sort(wait)
	c.rate = float64(c.entries) / took
	c.fairness = float64(slices.Min(counts)) / float64(max(slices.Max(counts), 1))
	if len(all) > 0 {
		c.p50, c.waitP99 = all[len(all)/2], weighted(wait, 0.99)
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

// requests is how many commands clients have sent for locking.
func requests(b *testing.B, c *redis.Client) float64 {
	b.Helper()
	raw, err := c.Info(context.Background(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	n := 0.0
	for line := range strings.Lines(raw) {
		if strings.HasPrefix(line, "cmdstat_evalsha:") || strings.HasPrefix(line, "cmdstat_eval:") {
			calls, _, _ := strings.Cut(strings.SplitN(line, "calls=", 2)[1], ",")
			v, _ := strconv.ParseFloat(calls, 64)
			n += v
		}
	}
	return n
}

// BenchmarkHotKey is one key among 64 clients with connections of their own,
// beside a token that the same clients pass with BLPOP, and a poller.
func BenchmarkHotKey(b *testing.B) {
	const workers, d = 64, time.Second
	server := testenv.Redis(b)
	ctx, admin := context.Background(), benchClient(b, server.Addr(), 2)
	clients, locks := make([]*redis.Client, workers), make([]*dlock.Client, workers)
	for i := range workers {
		clients[i] = benchClient(b, server.Addr(), 4)
		locks[i] = benchLocks(b, clients[i], dlock.Config{})
	}
	ours := func(w int) func() {
		g, err := locks[w].Acquire(ctx, "hot")
		if err != nil {
			b.Error(err)
			return nil
		}
		return func() {
			if err := g.Unlock(ctx); err != nil {
				b.Error(err)
			}
		}
	}
	token := func(w int) func() {
		if err := clients[w].BLPop(ctx, 10*time.Second, "token").Err(); err != nil {
			b.Error(err)
			return nil
		}
		return func() { clients[w].LPush(ctx, "token", "1") }
	}
	var stop atomic.Int64 // pollers give up when their round is over
	poller := func(w int) func() {
		for time.Now().UnixNano() < stop.Load() {
			ok, err := clients[w].SetNX(ctx, "polled", w, 10*time.Second).Result()
			if err != nil {
				b.Error(err)
				return nil
			}
			if ok {
				return func() { clients[w].Del(ctx, "polled") }
			}
			<-time.After(10 * time.Millisecond)
		}
		return nil
	}
	admin.LPush(ctx, "token", "1")
	contend(workers, d, ours)
	contend(workers, d, token)
	var rate, ratio, fair, reqs, p50, handoff, poll []float64
	for range benchRounds {
		before := requests(b, admin)
		o := contend(workers, d, ours)
		reqs = append(reqs, (requests(b, admin)-before)/float64(o.entries))
		t := contend(workers, d, token)
		stop.Store(time.Now().Add(d).UnixNano())
		p := contend(workers, d, poller)
		rate, ratio, fair = append(rate, o.rate), append(ratio, o.rate/t.rate), append(fair, o.fairness)
		p50, handoff, poll = append(p50, o.p50/t.p50), append(handoff, o.p50*1e6), append(poll, p.waitP99/o.waitP99)
	}
	spread(b, "acquisitions/s", rate)
	spread(b, "x-blpop", ratio)
	spread(b, "min/max-share", fair)
	spread(b, "requests/acq", reqs)
	spread(b, "handoff-p50-x-blpop", p50)
	spread(b, "handoff-p50-us", handoff)
	spread(b, "poller-wait-p99-x-ours", poll)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHeld is what 100,000 held locks cost the client.
func BenchmarkHeld(b *testing.B) {
	const n = 100_000
	client := benchClient(b, testenv.Redis(b).Addr(), 16)
	locks := benchLocks(b, client, dlock.Config{DefaultTTL: 30 * time.Second})
	ctx := context.Background()
	guards := make([]*dlock.Guard, n)
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := w; i < n; i += 64 {
				g, err := locks.Acquire(ctx, fmt.Sprintf("held:%06d", i))
				if err != nil {
					b.Error(err)
					return
				}
				guards[i] = g
			}
		})
	}
	wg.Wait()
	goroutines := runtime.NumGoroutine()
	runtime.GC()
	const minutes = 1
	before, start := cpu(), time.Now()
	<-time.After(minutes * time.Minute)
	used := (cpu() - before).Seconds() / time.Since(start).Seconds()
	lost := 0
	for _, g := range guards {
		if g.Remaining() <= 0 {
			lost++
		}
	}
	b.ReportMetric(used*100, "%core")
	b.ReportMetric(float64(lost), "lost")
	b.ReportMetric(float64(goroutines), "goroutines")
	b.ReportMetric(0, "ns/op")
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
