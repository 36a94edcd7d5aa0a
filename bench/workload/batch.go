package workload

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
	"github.com/ceyewan/genesis/internal/stats"
)

// The processes of the shared key, and the goroutines of each.
const (
	batchProcesses = 4
	batchEach      = 16
)

var batch = Workload{
	Name: "batch", Title: "goroutines that share a client",
	About:  "64 goroutines of one client at one key, strict and with LocalBatch 64; and four processes of 16 goroutines each at one key, where the spread is (largest − smallest) / largest of what the processes got.",
	Charts: []string{Rate}, Floors: map[string]string{"redis": Strict},
	run: func(ctx context.Context, r *Run) error {
		infos := r.some(is(Strict, Batch))
		if err := r.oneProcess(ctx, infos); err != nil {
			return err
		}
		for _, i := range infos {
			if err := r.fourProcesses(ctx, i); err != nil {
				return err
			}
		}
		return nil
	},
}

func (r *Run) oneProcess(ctx context.Context, infos []peer.Info) error {
	all, err := r.subjects(ctx, "batch", infos, &r.site.Direct, one)
	defer func() { pack(all) }()
	if err != nil {
		return err
	}
	if err := r.warmUp(ctx, "batch", all, one); err != nil {
		return err
	}
	return r.rounds(ctx, "batch", all, func(round int, s *subject) error {
		o, err := r.contend(ctx, s, Contention{Clients: 1, Runners: batchProcesses * batchEach, For: r.Plan.Batch})
		if err == nil {
			v := o.values()
			delete(v, Fairness) // of one client
			r.add(Sample{Workload: "batch", Case: BatchOne, Peer: s.info.Name, Round: round, Values: v, Trouble: o.Trouble})
		}
		return err
	})
}

func (r *Run) fourProcesses(ctx context.Context, info peer.Info) error {
	all, err := r.subjects(ctx, "batch", slices.Repeat([]peer.Info{info}, batchProcesses), &r.site.Direct, one)
	defer func() { pack(all) }()
	if err != nil {
		return err
	}
	if err := r.warmUp(ctx, "batch", all, one); err != nil {
		return err
	}
	for round := range r.Plan.Rounds {
		r.say("batch: %s, %s, round %d of %d", info.Name, BatchFour, round+1, r.Plan.Rounds)
		outcomes, err := r.together(ctx, all)
		if err != nil {
			r.failed(ctx, "batch", BatchFour, all[0], err)
			return ctx.Err()
		}
		r.add(shared(info.Name, round, outcomes))
	}
	return nil
}

// together has all processes fight for one key at the same time.
func (r *Run) together(ctx context.Context, all []*subject) ([]Outcome, error) {
	r.steps++
	c := Contention{
		Key: fmt.Sprintf("hot:together:%d", r.steps), Witness: r.site.witness(r.steps), Clients: 1, Runners: batchEach, For: 2 * r.Plan.Batch,
		StartAt: time.Now().Add(50 * time.Millisecond).UnixNano(),
	}
	outcomes, errs := make([]Outcome, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() { errs[i] = s.worker.Call(ctx, c.For, "contend", c, &outcomes[i]) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return outcomes, nil
}

// shared sums up what the processes of one peer did together.
func shared(name string, round int, outcomes []Outcome) Sample {
	s := Sample{Workload: "batch", Case: BatchFour, Peer: name, Round: round, Values: map[string]float64{}}
	for i := range outcomes {
		o := &outcomes[i]
		s.Shares = append(s.Shares, sum(o.Shares))
		s.Values[Rate] += o.values()[Rate]
		s.Values[WaitP99] = max(s.Values[WaitP99], o.Waits.P99)
		s.Values[WaitMax] = max(s.Values[WaitMax], o.Waits.Max)
		s.Trouble.Add(&o.Trouble)
	}
	s.Values[Fairness] = stats.Fairness(s.Shares)
	s.Values[Spread] = 100 * (1 - s.Values[Fairness])
	return s
}
