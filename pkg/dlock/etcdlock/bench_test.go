package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
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

// BenchmarkHeld measures what held locks cost at rest: heap, leases, goroutines, proposals, processors.
func BenchmarkHeld(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			server := testenv.Etcd(b)
			client := dial(b, server.Endpoint())
			locks := benchLocks(b, client, dlock.Config{DefaultTTL: 30 * time.Second})
			guards := make([]*dlock.Guard, n)
			acquireMany(b, locks, guards[:64])
			r := beginRest(len(guards) - 64)
			began := time.Now()
			acquireMany(b, locks, guards[64:])
			b.ReportMetric(float64(n)/time.Since(began).Seconds(), "acquired/s")
			r.report(b, server.Endpoint())
			leases, err := client.Leases(context.Background())
			check(b, err)
			lost := 0
			for _, g := range guards {
				if g == nil || g.Remaining() <= 0 {
					lost++
				}
			}
			b.ReportMetric(float64(lost), "lost")
			b.ReportMetric(float64(len(leases.Leases)), "leases")
		})
	}
}

// acquireMany acquires a lock for each element.
func acquireMany(b *testing.B, locks *dlock.Client, guards []*dlock.Guard) {
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := w; i < len(guards); i += 64 {
				g, err := locks.Acquire(context.Background(), fmt.Sprintf("held:%06d:%06d", len(guards), i))
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

// BenchmarkWaiting measures what waiters of one Client cost at rest, a hundred at each lock.
func BenchmarkWaiting(b *testing.B) {
	for _, n := range []int{10_000, 30_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			server := testenv.Etcd(b)
			holder := benchLocks(b, dial(b, server.Endpoint()), dlock.Config{DefaultTTL: 30 * time.Second})
			locks := benchLocks(b, dial(b, server.Endpoint()), dlock.Config{DefaultTTL: 30 * time.Second})
			names := make([]string, n/100)
			for i := range names {
				names[i] = fmt.Sprintf("waited:%06d", i)
				if _, err := holder.Acquire(context.Background(), names[i]); err != nil {
					b.Fatal(err)
				}
			}
			r := beginRest(n)
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			var failed atomic.Int64
			began := time.Now()
			for i := range n {
				wg.Go(func() {
					if _, err := locks.Acquire(ctx, names[i%len(names)]); !errors.Is(err, context.Canceled) {
						failed.Add(1)
					}
				})
			}
			direct := dial(b, server.Endpoint())
			for stored := int64(0); stored < int64(n); {
				resp, err := direct.Get(context.Background(), "waited:", clientv3.WithPrefix(), clientv3.WithCountOnly())
				check(b, err)
				stored = resp.Count - int64(len(names))
			}
			b.ReportMetric(float64(n)/time.Since(began).Seconds(), "queued/s")
			r.report(b, server.Endpoint())
			cancel()
			began = time.Now()
			wg.Wait()
			b.ReportMetric(time.Since(began).Seconds(), "s/cancel-all")
			b.ReportMetric(float64(failed.Load()), "failed")
		})
	}
}

// BenchmarkReaders measures how long it takes until 1,000 readers have a lock that a writer leaves, and how many events the server
// sends for it. The readers are of ten Clients.
func BenchmarkReaders(b *testing.B) {
	const clients, readers = 10, 1000
	server := testenv.Etcd(b)
	ctx := context.Background()
	writer := benchLocks(b, dial(b, server.Endpoint()), dlock.Config{DefaultTTL: time.Minute})
	direct := dial(b, server.Endpoint())
	var all []*dlock.Client
	for range clients {
		all = append(all, benchLocks(b, dial(b, server.Endpoint()), dlock.Config{DefaultTTL: time.Minute}))
	}
	var ms, events []float64
	for range measure.Rounds {
		g, err := writer.Acquire(ctx, "read")
		check(b, err)
		var granted, left sync.WaitGroup
		granted.Add(readers)
		leave := make(chan struct{})
		for i := range readers {
			left.Go(func() {
				r, err := all[i%clients].Acquire(ctx, "read", dlock.WithShared())
				granted.Done()
				if err != nil {
					b.Error(err)
					return
				}
				<-leave
				if err := r.Unlock(ctx); err != nil {
					b.Error(err)
				}
			})
		}
		for stored := int64(0); stored < readers+1; {
			resp, err := direct.Get(ctx, "read", clientv3.WithPrefix(), clientv3.WithCountOnly())
			check(b, err)
			stored = resp.Count
		}
		before, began := metric(b, server.Endpoint(), "etcd_debugging_mvcc_events_total"), time.Now()
		check(b, g.Unlock(ctx))
		granted.Wait()
		ms = append(ms, float64(time.Since(began).Microseconds())/1000)
		events = append(events, float64(metric(b, server.Endpoint(), "etcd_debugging_mvcc_events_total")-before)/readers)
		close(leave)
		left.Wait()
	}
	measure.Spread(b, "ms/all", ms)
	measure.Spread(b, "events/reader", events)
}

// A rest is what a Client and its server need while nothing is acquired or released.
type rest struct {
	claims     int
	goroutines int
	memory     uint64
}

// beginRest is called before so many claims are submitted.
func beginRest(claims int) rest {
	return rest{claims: claims, goroutines: runtime.NumGoroutine(), memory: memory()}
}

// memory returns the size of heap and stacks.
func memory() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// report waits for a minute and reports what was used in it.
func (r rest) report(b *testing.B, endpoint string) {
	b.Helper()
	b.ReportMetric(float64(memory()-r.memory)/float64(r.claims), "B/claim")
	b.ReportMetric(float64(runtime.NumGoroutine()-r.goroutines), "more-goroutines")
	const proposals, spent = "etcd_server_proposals_applied_total", "process_cpu_seconds_total"
	cpu, applied, of := measure.CPU(), metric(b, endpoint, proposals), metric(b, endpoint, spent)
	began := time.Now()
	<-time.After(time.Minute)
	took := time.Since(began).Seconds()
	b.ReportMetric((measure.CPU()-cpu).Seconds()/took*100, "%core")
	b.ReportMetric(float64(metric(b, endpoint, spent)-of)/took*100, "%core-server")
	b.ReportMetric(float64(metric(b, endpoint, proposals)-applied)/took, "proposals/s")
	b.ReportMetric(float64(metric(b, endpoint, "process_resident_memory_bytes"))/(1<<20), "MiB-server")
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
