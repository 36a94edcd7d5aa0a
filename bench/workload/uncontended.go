package workload

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
)

// The goroutines of a pair.
var pairGoroutines = []int{1, 64}

// pairFloors are what the pairs of a backend are compared with.
var pairFloors = map[string]string{"redis": RawRedis, "redlock": RawRedis, "etcd": RawEtcd}

var uncontended = Workload{
	Name: "pair", Title: "uncontended pair",
	About:  "One client locks and unlocks keys that no other client wants; each goroutine has a key of its own. Floors have no queue, no fence and no renewal; PING and the TCP echo lock nothing.",
	Charts: []string{Pairs}, Floors: pairFloors,
	run: func(ctx context.Context, r *Run) error {
		return r.pairs(ctx, "pair", &r.site.Direct, r.Plan.Pair, true, false)
	},
}

var newKeys = Workload{
	Name: "pair-new", Title: "uncontended pair, a new key each time",
	About:  "One client locks and unlocks keys that are never used again, such as the numbers of orders.",
	Charts: []string{Pairs, ServerCPU}, Floors: pairFloors,
	run: func(ctx context.Context, r *Run) error {
		return r.pairs(ctx, "pair-new", &r.site.Direct, r.Plan.Pair, false, true)
	},
}

var slowPairs = Workload{
	Name: "pair-1ms", Title: "uncontended pair, network with a round trip of 1 ms",
	About:  "The same through a proxy that holds everything back for 0.5 ms in each direction. The two PINGs show what the trip takes in fact. The proxy shares the CPUs.",
	Charts: []string{Pairs}, Floors: pairFloors,
	run: func(ctx context.Context, r *Run) error {
		return r.pairs(ctx, "pair-1ms", &r.site.Slow, r.Plan.Pair/2, false, false)
	},
}

func (r *Run) pairs(ctx context.Context, name string, env *peer.Env, d time.Duration, files, newKeys bool) error {
	infos := r.some(func(i peer.Info) bool { return files || i.Backend != "file" })
	all, err := r.subjects(ctx, name, infos, env, one)
	defer func() { pack(all) }()
	if err != nil {
		return err
	}
	for _, n := range pairGoroutines { // the connections of the first round
		for _, s := range all {
			if s.broken {
				continue
			}
			if err := s.worker.Call(ctx, 0, "pace", Pace{n, d / 4, newKeys}, nil); err != nil {
				r.failed(ctx, name, "warm-up", s, err)
			}
		}
	}
	return r.rounds(ctx, name, all, func(round int, s *subject) error {
		for _, n := range pairGoroutines {
			if err := r.pair(ctx, name, round, s, Pace{n, d, newKeys}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *Run) pair(ctx context.Context, name string, round int, s *subject, p Pace) error {
	var v Speed
	if err := s.worker.Call(ctx, p.For, "pace", p, &v); err != nil {
		return err
	}
	r.add(Sample{
		Workload: name, Case: PairCase(p.Goroutines), Peer: s.info.Name, Round: round, Trouble: v.Trouble,
		Values: map[string]float64{Pairs: v.Pairs, PairP50: v.P50, PairP99: v.P99, ClientCPU: v.Client, ServerCPU: v.Server},
	})
	return nil
}
