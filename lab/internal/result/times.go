package result

import (
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/internal/stats"
	"github.com/ceyewan/genesis/lab/internal/schedule"
)

// A backend is some topologies whose times have the same bounds.
type backend struct {
	name       string
	topologies []string
	late       time.Duration // after the lease of a holder that died
}

var backends = []backend{
	{"redis", []string{schedule.Single, schedule.Replicated, schedule.Sentinel, schedule.Cluster}, 250 * time.Millisecond},
	{"redlock", []string{schedule.Redlock3, schedule.Redlock5}, 250 * time.Millisecond},
	{"etcd", []string{schedule.Etcd1, schedule.Etcd3}, 1500 * time.Millisecond},
}

// times are how long what must happen took.
func (a *adder) times(g goals, topologies []string) {
	for _, b := range backends {
		if !slices.ContainsFunc(b.topologies, func(one string) bool { return slices.Contains(topologies, one) }) {
			continue
		}
		here := func(r Result) bool { return slices.Contains(b.topologies, r.Topology) }
		recovered := a.collect(here, func(r Result) []time.Duration { return r.Verdict.Recoveries })
		if g.kills > 0 {
			a.atLeast("SIGKILLs of holders that others waited for, "+b.name, len(recovered), g.kills)
		}
		ttl := schedule.TTL(b.topologies[0])
		a.percentile("holder killed to next holder, "+b.name, 99, recovered, g.times, ttl+b.late)
		beheaded := a.collect(here, func(r Result) []time.Duration { return r.Verdict.Beheaded })
		least := 0
		if slices.Contains(b.topologies, schedule.Etcd3) && slices.Contains(topologies, schedule.Etcd3) {
			least = g.times
		}
		a.percentile("holder and leader killed to next holder, "+b.name, 100, beheaded, least, 2*ttl+3*time.Second)
	}
	handed := func(r Result) []time.Duration { return r.Verdict.Handovers }
	for _, topology := range topologies {
		here := func(r Result) bool { return r.Topology == topology }
		a.percentile("handoff, "+topology, 99, a.collect(here, handed), g.times, 20*time.Millisecond)
	}
	a.overruns(g)
}

func (a *adder) collect(which func(Result) bool, of func(Result) []time.Duration) (all []time.Duration) {
	for _, r := range a.trials {
		if which(r) {
			all = append(all, of(r)...)
		}
	}
	return all
}

// percentile adds one of some times, of which there must be enough to tell.
func (a *adder) percentile(name string, p float64, all []time.Duration, least int, bound time.Duration) {
	if len(all) < least {
		a.atLeast(name+", how many", len(all), least)
	}
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	got := stats.Percentile(all, p)
	a.add(fmt.Sprintf("%s, p%g of %d, seconds", name, p, len(all)), got.Seconds(), fmt.Sprintf("<= %.3g", bound.Seconds()), got <= bound)
}

// overruns is how long calls returned after their context had ended. Trials keep all of them: late ones may all be
// of a few trials.
func (a *adder) overruns(g goals) {
	all := a.collect(func(Result) bool { return true }, func(r Result) []time.Duration { return r.Verdict.Overruns })
	a.percentile("return after the context ended", 99, all, g.times, 100*time.Millisecond)
	if len(all) > 0 {
		a.add("the longest of them", slices.Max(all).Seconds(), "-", true)
	}
}
