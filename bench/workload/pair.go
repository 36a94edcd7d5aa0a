package workload

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/stats"
)

// A Pace is a round of uncontended pairs: each goroutine of one client locks and
// unlocks a key of its own, again and again, or a new key each time.
type Pace struct {
	Goroutines int           `json:"goroutines"`
	For        time.Duration `json:"for"`
	NewKeys    bool          `json:"new_keys"`
}

// A Speed is what a Pace came to. CPU is per pair.
type Speed struct {
	Pairs   float64 `json:"pairs_per_second"`
	P50     float64 `json:"p50"` // of a pair, counted
	P99     float64 `json:"p99"`
	Client  float64 `json:"client_cpu"`
	Server  float64 `json:"server_cpu"`
	Trouble Trouble `json:"trouble"`
}

func (w *worker) pace(p Pace) (*Speed, error) {
	runs := make([]runner, p.Goroutines)
	var wg sync.WaitGroup
	m := startMeter(w.servers)
	begin := time.Now()
	for i := range runs {
		key, n := "pair:"+w.mark+strconv.Itoa(i), 0
		next := func() string { return key }
		if p.NewKeys {
			key += begin.Format("-150405.000000-")
			next = func() string { n++; return key + strconv.Itoa(n) }
		}
		wg.Go(func() { w.pairs(&runs[i], next, begin.Add(p.For)) })
	}
	wg.Wait()
	took := time.Since(begin).Seconds()
	s := &Speed{}
	s.Client, s.Server = m.read()
	var all []float64
	for i := range runs {
		all = append(all, runs[i].waits...)
		s.Trouble.Add(&runs[i].trouble)
	}
	slices.Sort(all)
	s.Pairs, s.P50, s.P99 = float64(len(all))/took, stats.Percentile(all, 50), stats.Percentile(all, 99)
	s.Client /= float64(max(len(all), 1))
	s.Server /= float64(max(len(all), 1))
	return s, nil
}

// pairTimeout is how long after the round a call may return; no other client wants the key.
const pairTimeout = 2 * time.Second

func (w *worker) pairs(r *runner, key func() string, until time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), until.Add(pairTimeout))
	defer cancel()
	for at := time.Now(); at.Before(until); {
		lock, err := w.clients[0].Lock(ctx, key())
		if err == nil {
			err = lock.Unlock(ctx)
		}
		now := time.Now()
		if err != nil {
			r.trouble.Errors++
			r.trouble.First = err.Error()
		} else {
			r.waits = append(r.waits, now.Sub(at).Seconds())
		}
		at = now
	}
}
