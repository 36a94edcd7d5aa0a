package oracle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/lab/internal/schedule"
)

// idleTimeout is how long a lock may be free while a worker waits for it and no server
// is disturbed: the lease of a holder that died, and some.
func (e *Evidence) idleTimeout() time.Duration {
	switch e.Topology {
	case schedule.Etcd3:
		return 2*e.TTL + 4*time.Second // a new leader restarts leases
	case schedule.Etcd1:
		return e.TTL + 3*time.Second
	}
	return e.TTL + 2*time.Second
}

// idle finds waiters that were not served though the lock was free. Only keys whose
// locks all have the same lease are judged. Keys that are locked together are free if none of them
// is locked: a call that waits for one may have others, and waits only for one that is greater.
func (e *Evidence) idle(sections []*Section) (found []Violation) {
	for key, group := range byTag(sections) {
		if !sharesLease(key) {
			continue
		}
		inside := spans(group)
		for _, s := range group {
			found = append(found, e.idleFor(s, key, group, inside)...)
		}
	}
	return found
}

// onePerIdleTime leaves one of the violations of several that waited for a key at the same time. One that is
// excused does not stand for one that is not.
func onePerIdleTime(found []Violation) (kept []Violation) {
	for _, x := range found {
		seen := x.Oracle == "idle" && slices.ContainsFunc(kept, func(k Violation) bool {
			return k.Oracle == "idle" && k.Key == x.Key && k.Stalled == x.Stalled && k.From < x.To && x.From < k.To
		})
		if !seen {
			kept = append(kept, x)
		}
	}
	return kept
}

// idleFor finds the times in which a call waited too long for a lock that was free.
func (e *Evidence) idleFor(s *Section, key string, group []*Section, inside []span) (found []Violation) {
	for _, gap := range gaps(s.Call, waitedUntil(s), inside) {
		free := gap.to - gap.from - e.disturbed(s.Worker, key, gap.from, gap.to, grace)
		if free > int64(e.idleTimeout()) {
			found = append(found, Violation{
				Oracle: "idle", Key: key, From: gap.from, To: gap.to, Workers: waitersIn(group, gap.from, gap.to), at: gap.to - free + int64(e.idleTimeout()),
				Detail: fmt.Sprintf("%s waited while the lock was free for %v, %v of it undisturbed", s.Attempt, time.Duration(gap.to-gap.from), time.Duration(free)),
			})
		}
	}
	return found
}

// byTag groups all attempts by key, and those on keys with the same hash tag together.
func byTag(sections []*Section) map[string][]*Section {
	groups := map[string][]*Section{}
	for _, s := range sections {
		tag := s.Key
		if before, _, ok := strings.Cut(s.Key, "}"); ok {
			tag = before + "}"
		}
		groups[tag] = append(groups[tag], s)
	}
	return groups
}

// waitersIn are the processes that waited at some time in an interval: each may have been
// the next in line.
func waitersIn(group []*Section, from, to int64) (workers []string) {
	for _, s := range group {
		if s.Call <= to && waitedUntil(s) >= from && !slices.Contains(workers, s.Worker) {
			workers = append(workers, s.Worker)
		}
	}
	return workers
}

func waitedUntil(s *Section) int64 {
	if s.Enter != 0 {
		return s.Enter
	}
	return s.Exit
}

type span struct{ from, to int64 }

// spans are when a worker was inside, in order.
func spans(group []*Section) (all []span) {
	for _, s := range group {
		if s.Enter != 0 {
			all = append(all, span{s.Enter, s.keptUntil()})
		}
	}
	slices.SortFunc(all, func(a, b span) int { return compare(a.from, b.from) })
	return all
}

// gaps are the times between from and to in which no worker was inside.
func gaps(from, to int64, inside []span) (all []span) {
	at := from
	for _, in := range inside {
		if in.to <= at || in.from >= to {
			continue
		}
		if in.from > at {
			all = append(all, span{at, in.from})
		}
		at = max(at, in.to)
	}
	if to > at {
		all = append(all, span{at, to})
	}
	return all
}

// grace is how long clients may take to find their servers again.
const grace = 2 * time.Second

// disturbed is how much of an interval faults took, of those that keep a healthy
// waiter for a key from being served.
func (e *Evidence) disturbed(worker, key string, from, to int64, grace time.Duration) (sum int64) {
	at := from
	for _, f := range e.Faults {
		// One that sleeps through its lease may be next in line, and then is waited for.
		struck := (f.Worker == worker && !f.Kind.Kills()) || f.Kind == schedule.WorkerSleep
		if f.Kind.OnWorkers() && !struck {
			continue
		}
		if f.Kind.Unnoticed() || e.spares(f, key) {
			continue
		}
		begin, end := max(at, f.From), min(to, f.To+int64(grace))
		if end > begin {
			sum += end - begin
			at = end
		}
	}
	return sum
}
