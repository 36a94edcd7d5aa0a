package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/measure"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

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

var compareDelete = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// BenchmarkServerTime measures how long the server works for one acquire and release, with and
// without contention, compared with SET NX PX and compare-and-delete. The figure is the server's
// own for the commands, without receiving and answering them.
func BenchmarkServerTime(b *testing.B) {
	addr := testenv.Redis(b).Addr()
	ctx, direct := context.Background(), benchClient(b, addr, 4)
	const clients, pairs = 8, 2000
	all := make([]*dlock.Client, clients)
	for i := range all {
		all[i] = benchLocks(b, benchClient(b, addr, 4), dlock.Config{})
	}
	work := func(c *dlock.Client, key string, n int) {
		for range n {
			g, err := c.Acquire(ctx, key)
			if err != nil {
				b.Error(err)
				return
			}
			if err := g.Unlock(ctx); err != nil {
				b.Error(err)
			}
		}
	}
	alone := func() { work(all[0], "alone", pairs) }
	hot := func() {
		var wg sync.WaitGroup
		for _, c := range all {
			wg.Go(func() { work(c, "hot", pairs/clients) })
		}
		wg.Wait()
	}
	raw := func() {
		for range pairs {
			if err := direct.SetNX(ctx, "raw", "0123456789abcdef0123456789abcdef", 10*time.Second).Err(); err != nil {
				b.Error(err)
			}
			if err := compareDelete.Run(ctx, direct, []string{"raw"}, "0123456789abcdef0123456789abcdef").Err(); err != nil {
				b.Error(err)
			}
		}
	}
	var alones, hots, raws, ratios []float64
	for range measure.Rounds {
		a, h := serverTime(b, direct, alone, "evalsha"), serverTime(b, direct, hot, "evalsha")
		r := serverTime(b, direct, raw, "evalsha", "set")
		alones, hots, raws, ratios = append(alones, a/pairs), append(hots, h/pairs), append(raws, r/pairs), append(ratios, a/r)
	}
	measure.Spread(b, "x-raw", ratios)
	measure.Spread(b, "us/pair", alones)
	measure.Spread(b, "us/contended-pair", hots)
	measure.Spread(b, "us/raw-pair", raws)
}

// serverTime returns how many microseconds the server spends in some commands while f runs.
func serverTime(b *testing.B, direct *redis.Client, f func(), commands ...string) (total float64) {
	b.Helper()
	if err := direct.ConfigResetStat(context.Background()).Err(); err != nil {
		b.Fatal(err)
	}
	f()
	stats, err := direct.Info(context.Background(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range commands {
		var calls, usec float64
		_, after, _ := strings.Cut(stats, "cmdstat_"+name+":")
		if _, err := fmt.Sscanf(after, "calls=%g,usec=%g", &calls, &usec); err != nil {
			b.Fatal(name, err)
		}
		total += usec
	}
	return total
}

// BenchmarkUncontended compares one fenced acquire and release with SET NX PX and
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
			measure.Pace(goroutines, 300*time.Millisecond, ours)
			measure.Pace(goroutines, 300*time.Millisecond, raw)
			var ratios, mine, theirs []float64
			for range measure.Rounds {
				o, r := measure.Pace(goroutines, 300*time.Millisecond, ours), measure.Pace(goroutines, 300*time.Millisecond, raw)
				ratios, mine, theirs = append(ratios, o/r), append(mine, o), append(theirs, r)
			}
			measure.Spread(b, "x-raw", ratios)
			measure.Spread(b, "pairs/s", mine)
			measure.Spread(b, "raw/s", theirs)
		})
	}
}

// requests returns how many commands clients have sent for locking.
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

// BenchmarkHotKey measures one key among 64 clients with their own connections, compared with a
// token that the same clients pass with BLPOP, and with polling.
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
	measure.Contend(workers, d, ours)
	measure.Contend(workers, d, token)
	var rate, ratio, fair, reqs, p50, handoff, poll []float64
	for range measure.Rounds {
		before := requests(b, admin)
		o := measure.Contend(workers, d, ours)
		reqs = append(reqs, (requests(b, admin)-before)/float64(o.Entries))
		t := measure.Contend(workers, d, token)
		stop.Store(time.Now().Add(d).UnixNano())
		p := measure.Contend(workers, d, poller)
		rate, ratio, fair = append(rate, o.Rate), append(ratio, o.Rate/t.Rate), append(fair, o.Fairness)
		p50, handoff, poll = append(p50, o.HandOffP50/t.HandOffP50), append(handoff, o.HandOffP50*1e6), append(poll, p.WaitP99/o.WaitP99)
	}
	measure.Spread(b, "acquisitions/s", rate)
	measure.Spread(b, "x-blpop", ratio)
	measure.Spread(b, "min/max-share", fair)
	measure.Spread(b, "requests/acq", reqs)
	measure.Spread(b, "handoff-p50-x-blpop", p50)
	measure.Spread(b, "handoff-p50-us", handoff)
	measure.Spread(b, "poller-wait-p99-x-ours", poll)
}

// BenchmarkHeld measures what 100,000 held locks cost the client.
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
	before, start := measure.CPU(), time.Now()
	<-time.After(minutes * time.Minute)
	used := (measure.CPU() - before).Seconds() / time.Since(start).Seconds()
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

// BenchmarkReaders compares 64 readers of one lock with 64 exclusive locks.
func BenchmarkReaders(b *testing.B) {
	ctx, locks := context.Background(), benchLocks(b, benchClient(b, testenv.Redis(b).Addr(), 64), dlock.Config{})
	const goroutines = 64
	pair := func(key string, opts ...dlock.LockOption) {
		g, err := locks.Acquire(ctx, key, opts...)
		if err != nil {
			b.Error(err)
			return
		}
		if err := g.Unlock(ctx); err != nil {
			b.Error(err)
		}
	}
	read := func(int) { pair("read", dlock.WithShared()) }
	own := func(w int) { pair("own:" + strconv.Itoa(w)) }
	measure.Pace(goroutines, 300*time.Millisecond, read)
	measure.Pace(goroutines, 300*time.Millisecond, own)
	var ratios, readers []float64
	for range measure.Rounds {
		r := measure.Pace(goroutines, time.Second, read)
		ratios, readers = append(ratios, r/measure.Pace(goroutines, time.Second, own)), append(readers, r)
	}
	measure.Spread(b, "x-exclusive", ratios)
	measure.Spread(b, "pairs/s", readers)
}

// BenchmarkWaiting measures what 10,000 waiters of one Client cost the server at rest, a hundred at each of a hundred locks.
func BenchmarkWaiting(b *testing.B) {
	const n, keys = 10_000, 100
	addr := testenv.Redis(b).Addr()
	direct := benchClient(b, addr, 4)
	holder, locks := benchLocks(b, benchClient(b, addr, 16), dlock.Config{DefaultTTL: 30 * time.Second}), benchLocks(b, benchClient(b, addr, 16), dlock.Config{})
	ctx, cancel := context.WithCancel(context.Background())
	for i := range keys {
		if _, err := holder.Acquire(ctx, fmt.Sprint("k", i)); err != nil {
			b.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if _, err := locks.Acquire(ctx, fmt.Sprint("k", i%keys)); !errors.Is(err, context.Canceled) {
				b.Error(err)
			}
		})
	}
	for waiting := 0; waiting < n; {
		waiting = 0
		for _, queue := range direct.Keys(ctx, "*\x01y").Val() {
			waiting += int(direct.ZCard(ctx, queue).Val())
		}
	}
	const seconds = 20
	info := func(section, field string) (sum float64) {
		text, err := direct.Info(ctx, section).Result()
		if err != nil {
			b.Fatal(err)
		}
		for line := range strings.Lines(text) {
			if _, after, ok := strings.Cut(line, field); ok {
				number, _, _ := strings.Cut(strings.TrimSpace(after), ",")
				v, _ := strconv.ParseFloat(number, 64)
				sum += v
			}
		}
		return sum
	}
	scripts, commands, cpu := requests(b, direct), info("commandstats", ":calls="), info("cpu", "used_cpu_user:")+info("cpu", "used_cpu_sys:")
	<-time.After(seconds * time.Second)
	b.ReportMetric((info("commandstats", ":calls=")-commands)/seconds, "commands/s")
	b.ReportMetric((requests(b, direct)-scripts)/seconds, "scripts/s")
	b.ReportMetric((info("cpu", "used_cpu_user:")+info("cpu", "used_cpu_sys:")-cpu)/seconds*100, "%core-server")
	b.ReportMetric(0, "ns/op")
	cancel()
	wg.Wait()
}

// BenchmarkAllKeys compares AcquireAll of eight keys with one key, on loopback and over a network whose round trip takes
// a millisecond.
func BenchmarkAllKeys(b *testing.B) {
	server := testenv.Redis(b)
	far := testenv.Proxy(b, server.Addr())
	far.Delay(500*time.Microsecond, 500*time.Microsecond)
	for name, addr := range map[string]string{"loopback": server.Addr(), "1ms": far.Addr()} {
		b.Run(name, func(b *testing.B) {
			locks := benchLocks(b, benchClient(b, addr, 16), dlock.Config{})
			ctx := context.Background()
			measure.Keys(b, func(keys []string) {
				all, err := locks.AcquireAll(ctx, keys)
				if err != nil {
					b.Error(err)
					return
				}
				if err := all.Unlock(ctx); err != nil {
					b.Error(err)
				}
			})
		})
	}
}
