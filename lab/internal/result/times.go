package result

import (
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/lab/internal/schedule"
)

// times are how long what must happen took.
func (a *adder) times() {
	redis, etcd := func(r Result) bool { return !onEtcd(r) }, onEtcd
	recovered := func(r Result) []time.Duration { return r.Verdict.Recoveries }
	ttl := schedule.TTL(schedule.Single)
	a.percentile("holder killed to next holder, redis", 99, a.collect(redis, recovered), ttl+250*time.Millisecond)
	ttl = schedule.TTL(schedule.Etcd3)
	a.percentile("holder killed to next holder, etcd", 99, a.collect(etcd, recovered), ttl+1500*time.Millisecond)
	beheaded := a.collect(etcd, func(r Result) []time.Duration { return r.Verdict.Beheaded })
	a.percentile("holder and leader killed to next holder, etcd", 100, beheaded, 2*ttl+3*time.Second)
	handed := func(r Result) []time.Duration { return r.Verdict.Handovers }
	for _, topology := range schedule.Topologies {
		here := func(r Result) bool { return r.Topology == topology }
		a.percentile("hand-over, "+topology, 99, a.collect(here, handed), 20*time.Millisecond)
	}
	a.overruns()
}

func onEtcd(r Result) bool { return r.Topology == schedule.Etcd1 || r.Topology == schedule.Etcd3 }

func (a *adder) collect(which func(Result) bool, of func(Result) []time.Duration) (all []time.Duration) {
	for _, r := range a.trials {
		if which(r) {
			all = append(all, of(r)...)
		}
	}
	return all
}

func (a *adder) percentile(name string, p int, all []time.Duration, bound time.Duration) {
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	got := all[max((len(all)*p+99)/100-1, 0)]
	a.add(fmt.Sprintf("%s, p%d of %d, seconds", name, p, len(all)), got.Seconds(), fmt.Sprintf("<= %.3g", bound.Seconds()), got <= bound)
}

// overruns is how long calls returned after their context had ended. Trials keep the
// longest ones, which are enough for the percentile.
func (a *adder) overruns() {
	all := a.collect(func(Result) bool { return true }, func(r Result) []time.Duration { return r.Verdict.Overruns })
	n := a.sum(func(r Result) int { return r.Verdict.Overran })
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	got := all[max(len(all)-1-n/100, 0)]
	a.add(fmt.Sprintf("return after the context ended, p99 of %d, seconds", n), got.Seconds(), "<= 0.1", got <= 100*time.Millisecond)
	a.add("the longest of them", all[len(all)-1].Seconds(), "-", true)
}
