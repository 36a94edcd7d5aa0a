package etcdlock_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/ceyewan/genesis/internal/measure"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// durable makes every write reach the disk, as etcd does by default.
const durable = "--unsafe-no-fsync=false"

func benchLocks(b *testing.B, client *clientv3.Client, cfg dlock.Config) *dlock.Client {
	b.Helper()
	c, err := dlock.New(&cfg, dlock.WithBackend(etcdlock.New(client)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// BenchmarkUncontended compares one fenced acquire and release with a transaction that puts if
// absent, on a shared lease, and a delete.
func BenchmarkUncontended(b *testing.B) {
	server := testenv.Etcd(b, durable)
	for _, goroutines := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			ctx, client := context.Background(), dial(b, server.Endpoint())
			locks := benchLocks(b, client, dlock.Config{})
			lease, err := client.Grant(ctx, 600)
			if err != nil {
				b.Fatal(err)
			}
			ours := func(w int) {
				g, err := locks.Acquire(ctx, "bench:"+strconv.Itoa(w))
				if err == nil {
					err = g.Unlock(ctx)
				}
				if err != nil {
					b.Error(err)
				}
			}
			raw := func(w int) {
				key := "raw:" + strconv.Itoa(w)
				resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
					Then(clientv3.OpPut(key, "0123456789abcdef", clientv3.WithLease(lease.ID))).Commit()
				if err == nil && resp.Succeeded {
					_, err = client.Delete(ctx, key)
				}
				if err != nil {
					b.Error(err)
				}
			}
			const d = 400 * time.Millisecond
			measure.Pace(goroutines, d, ours)
			measure.Pace(goroutines, d, raw)
			var ratios, mine, theirs []float64
			for range measure.Rounds {
				o, r := measure.Pace(goroutines, d, ours), measure.Pace(goroutines, d, raw)
				ratios, mine, theirs = append(ratios, o/r), append(mine, o), append(theirs, r)
			}
			measure.Spread(b, "x-raw", ratios)
			measure.Spread(b, "pairs/s", mine)
			measure.Spread(b, "raw/s", theirs)
		})
	}
}

// BenchmarkHotKey measures one key among clients with their own connections, compared with
// concurrency.Mutex with a session for each of them.
func BenchmarkHotKey(b *testing.B) {
	for _, workers := range []int{2, 64} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) { hotKey(b, workers) })
	}
}

func hotKey(b *testing.B, workers int) {
	b.Helper()
	const d = 2 * time.Second
	server := testenv.Etcd(b, durable)
	ctx := context.Background()
	locks, mutexes := make([]*dlock.Client, workers), make([]*concurrency.Mutex, workers)
	for i := range workers {
		client := dial(b, server.Endpoint())
		locks[i] = benchLocks(b, client, dlock.Config{})
		session, err := concurrency.NewSession(client)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = session.Close() })
		mutexes[i] = concurrency.NewMutex(session, "mutex")
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
	theirs := func(w int) func() {
		if err := mutexes[w].Lock(ctx); err != nil {
			b.Error(err)
			return nil
		}
		return func() {
			if err := mutexes[w].Unlock(ctx); err != nil {
				b.Error(err)
			}
		}
	}
	measure.Contend(workers, d, ours)
	measure.Contend(workers, d, theirs)
	var rate, ratio, fair, p50, p99, p99us []float64
	for range measure.Rounds {
		o, t := measure.Contend(workers, d, ours), measure.Contend(workers, d, theirs)
		rate, ratio, fair = append(rate, o.Rate), append(ratio, o.Rate/t.Rate), append(fair, o.Fairness)
		p50, p99, p99us = append(p50, o.HandOffP50/t.HandOffP50), append(p99, o.HandOffP99/t.HandOffP99), append(p99us, o.HandOffP99*1e6)
	}
	measure.Spread(b, "acquisitions/s", rate)
	measure.Spread(b, "x-mutex", ratio)
	measure.Spread(b, "min/max-share", fair)
	measure.Spread(b, "handoff-p50-x-mutex", p50)
	measure.Spread(b, "handoff-p99-x-mutex", p99)
	measure.Spread(b, "handoff-p99-us", p99us)
}

// BenchmarkHeld measures what 10,000 held locks cost: leases, goroutines, time.
func BenchmarkHeld(b *testing.B) {
	const n = 10_000
	client := dial(b, testenv.Etcd(b).Endpoint())
	locks := benchLocks(b, client, dlock.Config{DefaultTTL: 15 * time.Second})
	ctx := context.Background()
	guards := make([]*dlock.Guard, n)
	var wg sync.WaitGroup
	take := func(from, to int) {
		for w := range 64 {
			wg.Go(func() {
				for i := from + w; i < to; i += 64 {
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
	}
	take(0, 64)
	few := runtime.NumGoroutine()
	take(64, n)
	many := runtime.NumGoroutine()
	before, start := measure.CPU(), time.Now()
	<-time.After(30 * time.Second)
	used := (measure.CPU() - before).Seconds() / time.Since(start).Seconds()
	leases, err := client.Leases(ctx)
	if err != nil {
		b.Fatal(err)
	}
	lost := 0
	for _, g := range guards {
		if g == nil || g.Remaining() <= 0 {
			lost++
		}
	}
	b.ReportMetric(used*100, "%core")
	b.ReportMetric(float64(lost), "lost")
	b.ReportMetric(float64(len(leases.Leases)), "leases")
	b.ReportMetric(float64(many-few), "more-goroutines")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAllKeys compares AcquireAll of eight keys with one key, on loopback and over a network whose round trip takes
// a millisecond.
func BenchmarkAllKeys(b *testing.B) {
	server := testenv.Etcd(b, durable)
	far := testenv.Proxy(b, server.Addr())
	far.Delay(500*time.Microsecond, 500*time.Microsecond)
	for name, addr := range map[string]string{"loopback": server.Endpoint(), "1ms": "http://" + far.Addr()} {
		b.Run(name, func(b *testing.B) {
			locks := benchLocks(b, dial(b, addr), dlock.Config{})
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
