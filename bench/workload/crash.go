package workload

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
)

var crash = Workload{
	Name: "crash", Title: "holder killed",
	About:  "A process takes the key and is killed with SIGKILL while another waits: from the kill to the next holder. All have the same TTL here, whatever their default, and are killed when half of it has passed: who does not renew has that half left, who renews has up to all of it.",
	Charts: []string{Takeover},
	run: func(ctx context.Context, r *Run) error {
		env := r.site.Direct
		env.TTL = r.Plan.CrashTTL
		all, err := r.subjects(ctx, "crash", r.some(func(i peer.Info) bool { return waiting(i) && !i.Floor }), &env, one)
		defer func() { pack(all) }()
		if err != nil {
			return err
		}
		for round := range r.Plan.Rounds {
			r.say("crash: round %d of %d", round+1, r.Plan.Rounds)
			r.crashAll(ctx, round, all, &env)
		}
		return ctx.Err()
	},
}

// crashAll has all peers go through it at the same time: mostly they wait.
func (r *Run) crashAll(ctx context.Context, round int, all []*subject, env *peer.Env) {
	took, errs := make([]time.Duration, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		if !s.broken {
			wg.Go(func() {
				took[i], errs[i] = crashOne(ctx, s, fmt.Sprintf("crash:%s:%d", s.info.Name, round), env)
			})
		}
	}
	wg.Wait()
	for i, s := range all {
		switch {
		case s.broken:
		case errs[i] != nil:
			r.failed(ctx, "crash", "", s, errs[i])
		default:
			r.add(Sample{
				Workload: "crash", Case: CrashCase(r.Plan.CrashTTL), Peer: s.info.Name, Round: round,
				Values: map[string]float64{Takeover: took[i].Seconds()},
			})
		}
	}
}

// CrashCase is a holder that dies with a lease of so long.
func CrashCase(ttl time.Duration) string { return fmt.Sprintf("TTL %v", ttl) }

func crashOne(ctx context.Context, s *subject, key string, env *peer.Env) (time.Duration, error) {
	holder, err := StartWorker()
	if err != nil {
		return 0, err
	}
	defer holder.Close()
	if err := holder.Call(ctx, 0, "open", Opening{Peer: s.info.Name, Env: *env, Clients: 1}, nil); err != nil {
		return 0, err
	}
	if err := holder.Call(ctx, 0, "grab", Grab{key}, nil); err != nil {
		return 0, err
	}
	killed := make(chan time.Time, 1)
	kill := time.AfterFunc(env.TTL/2, func() { // the other one waits by then, and the lease was renewed
		_ = holder.Kill()
		killed <- time.Now()
	})
	defer kill.Stop()
	var got Grabbed
	if err := s.worker.Call(ctx, env.TTL, "grab", Grab{key}, &got); err != nil {
		return 0, err
	}
	if kill.Stop() {
		return 0, fmt.Errorf("the key was got from a living holder")
	}
	return time.Unix(0, got.At).Sub(<-killed), nil
}
