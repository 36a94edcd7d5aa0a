package workload

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
)

var held = Workload{
	Name: "held", Title: "many locks held",
	About:  "One client holds many locks, which are renewed. Bytes are heap and stacks of the client beyond those of the first 64 locks. Requests come from a proxy that counts. redsync, redislock and the poller do not renew by themselves and are not here; a concurrency.Mutex has nothing to renew but its session.",
	Charts: []string{Bytes},
	run: func(ctx context.Context, r *Run) error {
		for _, i := range r.some(is(Strict, Rueidislock, OurEtcd, EtcdMutex)) {
			if err := r.holdMany(ctx, i); err != nil {
				return err
			}
		}
		return nil
	},
}

// mostEtcd: 100,000 keys take etcd minutes to store.
const mostEtcd = 10_000

func (r *Run) holdMany(ctx context.Context, info peer.Info) error {
	env := r.site.Counted
	env.TTL = r.Plan.HeldTTL
	all, err := r.subjects(ctx, "held", []peer.Info{info}, &env, one)
	defer func() { pack(all) }()
	if err != nil {
		return err
	}
	for _, n := range r.Plan.Held {
		if all[0].broken || (info.Backend == "etcd" && n > mostEtcd) {
			continue
		}
		r.say("held: %s, %d locks", info.Name, n)
		if err := r.holdSome(ctx, all[0], n); err != nil {
			r.failed(ctx, "held", HeldCase(n), all[0], err)
		}
	}
	return ctx.Err()
}

func (r *Run) holdSome(ctx context.Context, s *subject, n int) error {
	var h Held
	if err := s.worker.Call(ctx, time.Duration(n)*time.Millisecond, "hold", Hold{n}, &h); err != nil {
		return err
	}
	before, err := r.site.requests(ctx)
	if err != nil {
		return err
	}
	var k Kept
	if err := s.worker.Call(ctx, r.Plan.Keep, "keep", Keep{r.Plan.Keep}, &k); err != nil {
		return err
	}
	after, err := r.site.requests(ctx)
	if err != nil {
		return err
	}
	r.add(Sample{Workload: "held", Case: HeldCase(n), Peer: s.info.Name, Trouble: Trouble{Errors: h.Errors}, Values: map[string]float64{
		Bytes: h.Bytes, Goroutines: float64(h.Goroutines), CPUShare: 100 * k.Client, ServerCPU: k.Server,
		RequestsPS: float64(after-before) / r.Plan.Keep.Seconds(), Lost: float64(k.Lost),
	}})
	return nil
}
