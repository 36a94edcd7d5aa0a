package redlock_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/measure"
	"github.com/ceyewan/genesis/internal/stats"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// pair acquires and releases a lock.
func pair(b *testing.B, c *dlock.Client, key string) {
	g, err := c.Acquire(context.Background(), key)
	if err != nil {
		b.Error(err)
		return
	}
	if err := g.Unlock(context.Background()); err != nil {
		b.Error(err)
	}
}

// median returns the median time of n pairs.
func median(b *testing.B, c *dlock.Client, n int) time.Duration {
	took := make([]time.Duration, n)
	for i := range took {
		begun := time.Now()
		pair(b, c, "bench")
		took[i] = time.Since(begun)
	}
	slices.Sort(took)
	return stats.Percentile(took, 50)
}

var compareDelete = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// BenchmarkUncontended compares one fenced acquire and release on three and five servers with SET
// NX PX and compare-and-delete on one of them.
func BenchmarkUncontended(b *testing.B) {
	for _, nodes := range []int{3, 5} {
		for _, goroutines := range []int{1, 16} {
			b.Run(strconv.Itoa(nodes)+"x"+strconv.Itoa(goroutines), func(b *testing.B) {
				s := start(b, nodes).straight(b)
				c := locksOn(b, s.clients, dlock.Config{})
				ours := func(w int) { pair(b, c, "bench"+strconv.Itoa(w)) }
				raw := func(w int) {
					ctx, key := context.Background(), "raw"+strconv.Itoa(w)
					if err := s.clients[0].SetNX(ctx, key, "v", 10*time.Second).Err(); err != nil {
						b.Error(err)
					}
					if err := compareDelete.Run(ctx, s.clients[0], []string{key}, "v").Err(); err != nil {
						b.Error(err)
					}
				}
				measure.Pace(goroutines, 300*time.Millisecond, ours)
				measure.Pace(goroutines, 300*time.Millisecond, raw)
				var ratios, mine []float64
				for range measure.Rounds {
					o, r := measure.Pace(goroutines, 300*time.Millisecond, ours), measure.Pace(goroutines, 300*time.Millisecond, raw)
					ratios, mine = append(ratios, o/r), append(mine, o)
				}
				measure.Spread(b, "x-raw-one", ratios)
				measure.Spread(b, "pairs/s", mine)
			})
		}
	}
}

// BenchmarkBlackHole compares the median time of a pair with one of five servers black-holed to
// that with all alive, in turns on the same servers.
func BenchmarkBlackHole(b *testing.B) {
	s := start(b, 5)
	alive, crippled := s.locks(b, dlock.Config{}), s.locks(b, dlock.Config{})
	const pairs = 100
	median(b, alive, pairs)
	median(b, crippled, pairs)
	var ratios, hole, whole []float64
	for range measure.Rounds {
		w := median(b, alive, pairs)
		s.proxies[4].BlackHole(true)
		h := median(b, crippled, pairs)
		s.proxies[4].BlackHole(false)
		median(b, alive, pairs/4) // what was held back has arrived
		ratios, hole, whole = append(ratios, h.Seconds()/w.Seconds()), append(hole, h.Seconds()*1e6), append(whole, w.Seconds()*1e6)
	}
	measure.Spread(b, "x-alive", ratios)
	measure.Spread(b, "hole-us", hole)
	measure.Spread(b, "alive-us", whole)
}

// BenchmarkBlackHoles compares how often one and eight Clients get a lock while a minority of the servers is black-holed
// with how often they do while all of them answer, in turns on the same servers.
func BenchmarkBlackHoles(b *testing.B) {
	for _, nodes := range []int{3, 5} {
		for _, workers := range []int{1, 8} {
			b.Run(strconv.Itoa(nodes)+"x"+strconv.Itoa(workers), func(b *testing.B) {
				s := start(b, nodes)
				var all []*dlock.Client
				for range workers {
					all = append(all, locksOn(b, s.dial(b), dlock.Config{}))
				}
				enter := func(w int) func() {
					g, err := all[w].Acquire(context.Background(), "bench")
					if err != nil {
						b.Error(err)
						return nil
					}
					return func() {
						if err := g.Unlock(context.Background()); err != nil {
							b.Error(err)
						}
					}
				}
				rate := func(silent bool) float64 {
					for _, p := range s.proxies[nodes/2+1:] {
						p.BlackHole(silent)
					}
					measure.Contend(workers, 300*time.Millisecond, enter) // until this is noticed, and what was held back has arrived
					return measure.Contend(workers, 700*time.Millisecond, enter).Rate
				}
				var ratios, holes, whole []float64
				for range measure.Rounds {
					w, h := rate(false), rate(true)
					ratios, holes, whole = append(ratios, h/w), append(holes, h), append(whole, w)
				}
				measure.Spread(b, "x-whole", ratios)
				measure.Spread(b, "silent/s", holes)
				measure.Spread(b, "whole/s", whole)
			})
		}
	}
}
