package workload

import (
	"context"
	"slices"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
)

// hotFloors are what hand-over on a backend is compared with: on etcd, which has no
// floor of that kind, concurrency.Mutex.
var hotFloors = map[string]string{"redis": Token, "redlock": Token, "etcd": EtcdMutex}

const hotName = "hot"

var hotKey = Workload{
	Name: hotName, Title: "hot key",
	About:  "Clients with connections of their own, all in one process of the peer, want one key: wait, hold it for the section, give it back, ask again. Waits are weighted by waiting time, and open ones count. Requests are counted by a proxy in a round of their own.",
	Charts: []string{Rate, WaitP99}, Floors: hotFloors,
	run: func(ctx context.Context, r *Run) error { return r.hotKeys(ctx) },
}

var slowHot = Workload{
	Name: "hot-1ms", Title: "hot key, network with a round trip of 1 ms",
	About:  "The same through a proxy that holds everything back for 0.5 ms in each direction.",
	Charts: []string{Rate, WaitP99}, Floors: hotFloors,
	run: func(ctx context.Context, r *Run) error {
		return r.hot(ctx, "hot-1ms", &r.site.Slow, trip, func(i peer.Info) []setting {
			if i.Backend == "file" {
				return nil
			}
			var s []setting
			for _, n := range r.Plan.SlowHot {
				if i.Backend != "etcd" || n == r.Plan.SlowHot[0] {
					s = append(s, setting{n, 0})
				}
			}
			return s
		})
	},
}

// A setting is one case of the hot key.
type setting struct {
	clients int
	section time.Duration
}

// hotSettings are the cases for a peer. What is not Redis has fewer, since a turn takes
// longer there: no 256 clients, and Redlock and files no section.
func (r *Run) hotSettings(i peer.Info) []setting {
	var all []setting
	for _, section := range r.Plan.Sections {
		for _, n := range r.Plan.Clients {
			redis, etcd := i.Backend == "redis", i.Backend == "etcd"
			if redis || (n <= 64 && (etcd || section == 0)) {
				all = append(all, setting{n, section})
			}
		}
	}
	return all
}

func (r *Run) hotKeys(ctx context.Context) error {
	if err := r.hot(ctx, hotName, &r.site.Direct, 0, r.hotSettings); err != nil {
		return err
	}
	return r.countRequests(ctx)
}

func (r *Run) hot(ctx context.Context, name string, env *peer.Env, trip time.Duration, settings func(peer.Info) []setting) error {
	infos := r.some(func(i peer.Info) bool { return waiting(i) && len(settings(i)) > 0 })
	clients := func(i peer.Info) int { return mostClients(settings(i)) }
	all, err := r.subjects(ctx, name, infos, env, clients)
	defer func() { pack(all) }()
	if err != nil {
		return err
	}
	if err := r.warmUp(ctx, name, all, clients); err != nil {
		return err
	}
	for round := range r.Plan.Rounds {
		for _, c := range r.cases(infos, settings) {
			r.say("%s: round %d of %d, %s", name, round+1, r.Plan.Rounds, HotCase(c.clients, c.section))
			err := r.turns(ctx, name, round, all, func(s *subject) bool { return slices.Contains(settings(s.info), c) }, func(s *subject) error {
				return r.hotRound(ctx, name, round, s, c, r.Plan.hotFor(s.info.Backend, c.clients, c.section, trip))
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// cases are all settings that some peer has.
func (r *Run) cases(infos []peer.Info, settings func(peer.Info) []setting) []setting {
	var all []setting
	for _, i := range infos {
		for _, s := range settings(i) {
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	return all
}

func mostClients(settings []setting) int {
	most := 0
	for _, s := range settings {
		most = max(most, s.clients)
	}
	return most
}

func (r *Run) hotRound(ctx context.Context, name string, round int, s *subject, c setting, d time.Duration) error {
	o, err := r.contend(ctx, s, Contention{Clients: c.clients, Section: c.section, For: d})
	if err != nil {
		return err
	}
	r.add(Sample{
		Workload: name, Case: HotCase(c.clients, c.section), Peer: s.info.Name, Round: round,
		Values: o.values(), Shares: o.Shares, Seconds: o.Seconds, Trouble: o.Trouble,
	})
	return nil
}

// countRequests is one round of each case through proxies that count. Waits that are
// open at its end are served, so that each request belongs to an acquisition; and no
// other peer is there, since some say something now and then when they have nothing to do.
func (r *Run) countRequests(ctx context.Context) error {
	for _, info := range r.some(func(i peer.Info) bool { return waiting(i) && i.Backend == "redis" && len(r.hotSettings(i)) > 0 }) {
		r.say("hot: counting requests, %s", info.Name)
		if err := r.countOf(ctx, info); err != nil {
			return err
		}
	}
	return nil
}

func (r *Run) countOf(ctx context.Context, info peer.Info) error {
	settings := r.hotSettings(info)
	alone, err := r.subjects(ctx, hotName, []peer.Info{info}, &r.site.Counted, func(peer.Info) int { return mostClients(settings) })
	defer func() { pack(alone) }()
	if err != nil {
		return err
	}
	for _, c := range settings {
		err := r.turns(ctx, hotName, 0, alone, func(*subject) bool { return true }, func(s *subject) error { return r.count(ctx, s, c) })
		if err != nil {
			return err
		}
	}
	return nil
}

// count opens the connections by a short round that does not count.
func (r *Run) count(ctx context.Context, s *subject, c setting) error {
	d := min(max(r.Plan.hotFor(s.info.Backend, c.clients, c.section, 0), 2*r.Plan.Shortest), 500*time.Millisecond)
	if _, err := r.contend(ctx, s, Contention{Clients: c.clients, Section: c.section, For: d / 4, Drain: true}); err != nil {
		return err
	}
	before, err := r.site.requests(ctx)
	if err != nil {
		return err
	}
	o, err := r.contend(ctx, s, Contention{Clients: c.clients, Section: c.section, For: d, Drain: true})
	if err != nil {
		return err
	}
	after, err := r.site.requests(ctx)
	if err != nil {
		return err
	}
	r.add(Sample{
		Workload: hotName, Case: HotCase(c.clients, c.section), Peer: s.info.Name, Trouble: o.Trouble,
		Values: map[string]float64{Requests: float64(after-before) / float64(max(sum(o.Shares), 1))},
	})
	return nil
}
