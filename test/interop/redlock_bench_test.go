package interop_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/measure"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// locksOn returns a Client of this library for a benchmark.
func locksOn(b *testing.B, clients []redis.UniversalClient) *dlock.Client {
	b.Helper()
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redlock.New(clients)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// BenchmarkRedlockAlone compares an uncontended pair of this library, with a token, with one of redsync on the same
// servers, in turns.
func BenchmarkRedlockAlone(b *testing.B) {
	for _, n := range []int{3, 5} {
		for _, goroutines := range []int{1, 16} {
			b.Run(strconv.Itoa(n)+"x"+strconv.Itoa(goroutines), func(b *testing.B) {
				clients := nodes(b, n)
				c, ctx := locksOn(b, clients), context.Background()
				ours := func(w int) {
					g, err := c.Acquire(ctx, "ours"+strconv.Itoa(w))
					if err == nil {
						err = g.Unlock(ctx)
					}
					if err != nil {
						b.Error(err)
					}
				}
				theirs := func(w int) {
					m := redsyncOn(clients, "theirs"+strconv.Itoa(w))
					err := m.LockContext(ctx)
					if err == nil {
						_, err = m.UnlockContext(ctx)
					}
					if err != nil {
						b.Error(err)
					}
				}
				const d = 300 * time.Millisecond
				measure.Pace(goroutines, d, ours)
				measure.Pace(goroutines, d, theirs)
				var ratios, rates []float64
				for range measure.Rounds {
					o, t := measure.Pace(goroutines, d, ours), measure.Pace(goroutines, d, theirs)
					ratios, rates = append(ratios, o/t), append(rates, o)
				}
				measure.Spread(b, "x-redsync", ratios)
				measure.Spread(b, "pairs/s", rates)
			})
		}
	}
}

// scripts returns how many scripts a server has run since the last call.
func scripts(b *testing.B, server redis.UniversalClient) (n float64) {
	b.Helper()
	stats, err := server.InfoMap(context.Background(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	for command, values := range stats["Commandstats"] {
		if strings.HasPrefix(command, "cmdstat_eval") {
			var calls float64
			if _, err := fmt.Sscanf(values, "calls=%g", &calls); err != nil {
				b.Fatal(err)
			}
			n += calls
		}
	}
	if err := server.ConfigResetStat(context.Background()).Err(); err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkRedlockContended compares how often clients of one lock get it with redsync, and with one client.
func BenchmarkRedlockContended(b *testing.B) {
	for _, n := range []int{3, 5} {
		for _, workers := range []int{2, 8, 64} {
			b.Run(strconv.Itoa(n)+"x"+strconv.Itoa(workers), func(b *testing.B) {
				clients := nodes(b, n)
				var all []*dlock.Client
				for range workers {
					all = append(all, locksOn(b, clients))
				}
				ours := func(w int) func() {
					g, err := all[w].Acquire(context.Background(), "ours")
					if err != nil {
						b.Error(err)
						return nil
					}
					return func() { _ = g.Unlock(context.Background()) }
				}
				theirs := func(end time.Time) func(int) func() {
					ctx, cancel := context.WithDeadline(context.Background(), end)
					b.Cleanup(cancel)
					name := "theirs" + end.String() // what an attempt that was ended leaves behind stays for 8 s
					return func(int) func() {
						m := redsyncOn(clients, name, redsync.WithTries(1<<20))
						if m.LockContext(ctx) != nil {
							return nil
						}
						return func() { _, _ = m.UnlockContext(context.Background()) }
					}
				}
				const d = time.Second
				measure.Contend(workers, d, ours)
				var toRedsync, toOne, rates, shares, theirShares, p99, perNode []float64
				for range measure.Rounds {
					scripts(b, clients[0])
					o := measure.Contend(workers, d, ours)
					perNode = append(perNode, scripts(b, clients[0])/float64(o.Entries))
					one := measure.Contend(1, d/2, ours)
					t := measure.Contend(workers, d, theirs(time.Now().Add(d)))
					toRedsync, toOne, rates = append(toRedsync, o.Rate/t.Rate), append(toOne, o.Rate/one.Rate), append(rates, o.Rate)
					shares, theirShares, p99 = append(shares, o.Fairness), append(theirShares, t.Fairness), append(p99, o.HandOffP99*1e3)
				}
				measure.Spread(b, "x-redsync", toRedsync)
				measure.Spread(b, "x-alone", toOne)
				measure.Spread(b, "entries/s", rates)
				measure.Spread(b, "fairness", shares)
				measure.Spread(b, "fairness-redsync", theirShares)
				measure.Spread(b, "handoff-p99-ms", p99)
				measure.Spread(b, "scripts/node", perNode)
			})
		}
	}
}
