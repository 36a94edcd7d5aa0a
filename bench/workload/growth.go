package workload

import (
	"context"

	"github.com/ceyewan/genesis/bench/peer"
)

var growth = Workload{
	Name: "growth", Title: "cost by number of waiters",
	About:  "16 clients share so many goroutines, which all wait at one key before the first of them gets it. The cost of an acquisition is the CPU of client and server together; each acquisition includes a return to the queue. A poller sees no queue: its cost is that of asking in vain.",
	Charts: []string{TotalCPU},
	run: func(ctx context.Context, r *Run) error {
		all, err := r.subjects(ctx, "growth", r.some(is(Strict, Rueidislock, Poller)), &r.site.Direct, func(peer.Info) int { return growthClients })
		defer func() { pack(all) }()
		if err != nil {
			return err
		}
		if err := r.warmUp(ctx, "growth", all, func(peer.Info) int { return growthClients }); err != nil {
			return err
		}
		return r.rounds(ctx, "growth", all, func(round int, s *subject) error {
			for _, n := range r.Plan.Waiters {
				if err := r.grow(ctx, round, s, n); err != nil {
					return err
				}
			}
			return nil
		})
	},
}

const growthClients = 16

func (r *Run) grow(ctx context.Context, round int, s *subject, waiters int) error {
	c := Contention{Clients: min(waiters+1, growthClients), Runners: waiters + 1, For: r.Plan.Growth, Settle: true}
	o, err := r.contend(ctx, s, c)
	if err != nil {
		return err
	}
	v := o.values()
	v[TotalCPU] = v[ClientCPU] + v[ServerCPU]
	delete(v, Fairness) // most have no turn in so short a time
	o.Trouble.Starved = 0
	r.add(Sample{Workload: "growth", Case: GrowthCase(waiters), Peer: s.info.Name, Round: round, Values: v, Trouble: o.Trouble})
	return nil
}
