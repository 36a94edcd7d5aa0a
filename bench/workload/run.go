package workload

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/ceyewan/genesis/bench/peer"
	"github.com/ceyewan/genesis/internal/stats"
)

// A Workload is one experiment.
type Workload struct {
	Name, Title string
	About       string // for the reader of a report
	// Charts are the metrics of which there is a chart for each case. What is told as a
	// ratio to the floor is the first.
	Charts []string
	// Floors are the peers that the others are compared with, by backend.
	Floors map[string]string
	run    func(context.Context, *Run) error
}

// All are the workloads, in their order.
func All() []Workload {
	return []Workload{uncontended, newKeys, slowPairs, hotKey, slowHot, handOff, batch, held, crash, growth}
}

// A Run measures peers by workloads.
type Run struct {
	Plan      Plan
	Peers     []peer.Peer
	Workloads []Workload
	// Progress is called with what is being done.
	Progress func(string)

	Samples []Sample
	site    *Site
	steps   int
}

// Do runs everything. A peer that fails is recorded as such, and the others go on; what
// was measured until an error is in Samples.
func (r *Run) Do(ctx context.Context, site *Site) error {
	r.site = site
	for i := range r.Workloads {
		w := &r.Workloads[i]
		r.say("%s: %s", w.Name, w.Title)
		if err := errors.Join(w.run(ctx, r), site.sweep(ctx)); err != nil {
			return fmt.Errorf("%s: %w", w.Name, err)
		}
	}
	return ctx.Err()
}

func (r *Run) say(format string, args ...any) {
	if r.Progress != nil {
		r.Progress(fmt.Sprintf(format, args...))
	}
}

// some are the peers of this run that fit.
func (r *Run) some(fits func(peer.Info) bool) []peer.Info {
	var infos []peer.Info
	for _, p := range r.Peers {
		if i := p.Info(); fits(i) {
			infos = append(infos, i)
		}
	}
	return infos
}

// A subject is a peer that is being measured.
type subject struct {
	info   peer.Info
	worker *Worker
	broken bool
}

// subjects starts a worker for each peer. Close them with pack.
func (r *Run) subjects(ctx context.Context, workload string, infos []peer.Info, env *peer.Env, clients func(peer.Info) int) ([]*subject, error) {
	var all []*subject
	for _, info := range infos {
		w, err := StartWorker()
		if err != nil {
			pack(all)
			return nil, err
		}
		all = append(all, &subject{info: info, worker: w})
	}
	errs := make([]error, len(all))
	few := make(chan struct{}, runtime.NumCPU()) // more at a time would starve each other
	var wg sync.WaitGroup
	for i, s := range all {
		few <- struct{}{}
		wg.Go(func() {
			defer func() { <-few }()
			errs[i] = s.worker.Call(ctx, 0, "open", Opening{s.info.Name, *env, clients(s.info), r.site.pids(s.info.Backend)}, nil)
		})
	}
	wg.Wait()
	for i, s := range all {
		if errs[i] != nil {
			r.failed(ctx, workload, "open", s, errs[i])
		}
	}
	return all, ctx.Err()
}

func pack(all []*subject) {
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(s.worker.Close)
	}
	wg.Wait()
}

func one(peer.Info) int { return 1 }

// rounds lets all subjects take their turns so many times.
func (r *Run) rounds(ctx context.Context, workload string, all []*subject, do func(round int, s *subject) error) error {
	for round := range r.Plan.Rounds {
		r.say("%s: round %d of %d", workload, round+1, r.Plan.Rounds)
		err := r.turns(ctx, workload, round, all, func(*subject) bool { return true }, func(s *subject) error { return do(round, s) })
		if err != nil {
			return err
		}
	}
	return nil
}

// turns lets the subjects that fit have one turn each, beginning with another one in each
// round. A subject that fails is out.
func (r *Run) turns(ctx context.Context, workload string, round int, all []*subject, fits func(*subject) bool, do func(*subject) error) error {
	for i := range all {
		s := all[(i+round)%len(all)]
		if s.broken || !fits(s) {
			continue
		}
		if err := do(s); err != nil {
			r.failed(ctx, workload, "", s, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// failed records that a peer cannot be measured any further.
func (r *Run) failed(ctx context.Context, workload, what string, s *subject, err error) {
	if ctx.Err() != nil {
		return // it is not the peer's fault
	}
	s.broken = true
	r.say("%s: %s is out: %v", workload, s.info.Name, err)
	r.Samples = append(r.Samples, Sample{
		Workload: workload, Case: what, Peer: s.info.Name, Values: map[string]float64{}, Trouble: Trouble{Errors: 1, First: err.Error()},
	})
}

func (r *Run) add(s Sample) { r.Samples = append(r.Samples, s) }

// contend has a subject contend for a key that was not used before.
func (r *Run) contend(ctx context.Context, s *subject, c Contention) (*Outcome, error) {
	r.steps++
	c.Key = fmt.Sprintf("hot:%s:%d", s.info.Name, r.steps)
	c.Witness = r.site.witness(r.steps)
	o := &Outcome{}
	return o, s.worker.Call(ctx, c.For+drainFor, "contend", c, o)
}

// warmUp has each subject contend for a moment: no round pays for the first wait of a client,
// which may need a connection more.
func (r *Run) warmUp(ctx context.Context, workload string, all []*subject, clients func(peer.Info) int) error {
	return r.turns(ctx, workload, 0, all, func(*subject) bool { return true }, func(s *subject) error {
		_, err := r.contend(ctx, s, Contention{Clients: clients(s.info), Runners: 2, For: r.Plan.Shortest / 4})
		return err
	})
}

// values are the figures of an Outcome; CPU is per acquisition.
func (o *Outcome) values() map[string]float64 {
	n := 0
	for _, turns := range o.Shares {
		n += turns
	}
	each := func(v float64) float64 { return v / float64(max(n, 1)) }
	return map[string]float64{
		Rate:    float64(n) / o.Seconds,
		WaitP50: o.Waits.P50, WaitP70: o.Waits.P70, WaitP90: o.Waits.P90, WaitP99: o.Waits.P99, WaitMax: o.Waits.Max,
		HandOffP50: o.HandOffs.P50, HandOffP99: o.HandOffs.P99,
		Fairness: stats.Fairness(o.Shares), ClientCPU: each(o.Client), ServerCPU: each(o.Server),
	}
}

// waiting are the peers that can be asked for a busy key. LocalBatch is measured by a
// workload of its own: between clients it is the same as strict. So is an Unlock that is not waited for.
func waiting(i peer.Info) bool { return i.Waits && i.Name != Batch && i.Name != Async }

func is(names ...string) func(peer.Info) bool {
	return func(i peer.Info) bool { return slices.Contains(names, i.Name) }
}

// The peers that workloads and goals name.
const (
	Strict      = "dlock-redis"
	Batch       = "dlock-redis-batch"
	Async       = "dlock-redis-async"
	OurEtcd     = "dlock-etcd"
	Redsync     = "redsync"
	Redislock   = "redislock"
	Rueidislock = "rueidislock"
	Poller      = "poller"
	EtcdMutex   = "etcd-mutex"
	Token       = "blpop-token"
	RawRedis    = "raw-goredis"
	RawEtcd     = "raw-etcd"
)

// trip is the round trip of the slow network.
const trip = 2 * oneWay

func sum(shares []int) (n int) {
	for _, s := range shares {
		n += s
	}
	return n
}
