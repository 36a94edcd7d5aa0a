package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// The workers of stalls that are not of a worker.
const (
	Server = "server" // a server was not run
	Lab    = "lab"    // the lab was not, which is the network and the stores
)

// ShardNote is the note of a stall of a server of one shard of the cluster.
func ShardNote(shard int) string { return fmt.Sprint("shard ", shard) }

// A stall is a time in which the machine did not run a process.
type stall struct {
	worker, note string
	span
}

func (s stall) length() int64 { return s.to - s.from }

// inARow is how long a process may run between two gaps that count as one: it has not
// caught up by then.
const inARow = int64(5 * event.LookEvery)

// stalls are those that the lab has not made, in the order of their ends.
func (e *Evidence) stalls() (all []stall) {
	last := map[string]int{}
	for _, ev := range e.Events {
		if ev.Kind != event.Stall || e.made(ev) {
			continue
		}
		s := stall{ev.Worker, ev.Note, span{ev.At - ev.Dur, ev.At}}
		i, some := last[s.worker+s.note]
		if some && s.worker != Server && s.from-all[i].to <= inARow {
			all[i].to = s.to
			continue
		}
		last[s.worker+s.note] = len(all)
		all = append(all, s)
	}
	lifetimes := e.lifetimes()
	for _, s := range e.Stuck { // until it was killed, if it was not run any more
		if end := lifetimes[s.Worker].to; s.To-end > int64(event.EndingEvery+event.StallFrom) {
			all = append(all, stall{s.Worker, "", span{end, s.To}})
		}
	}
	return all
}

// margin is what a lock has in hand against a process that is not run.
func (e *Evidence) margin() int64 { return int64(e.TTL / 20) }

// excuse marks the violations that the machine may have caused, and returns how many
// stalls there were that are longer than the margin of a lock.
func (e *Evidence) excuse(found []Violation) (long int) {
	all := e.stalls()
	for _, s := range all {
		if s.length() >= e.margin() {
			long++
		}
	}
	for i := range found {
		x := &found[i]
		switch x.Oracle {
		case "rate", "other-masters":
			x.Stalled = e.share(all, x.From, x.To) >= 1-x.reached
		case "idle", "stuck":
			x.Stalled = x.To-x.at <= e.lengthOf(all, x)+e.margin()
		case "store":
			late := e.lengthOf(all, x)
			x.Stalled = late > 0 && x.To-x.From <= late+e.margin()
		default:
			x.Stalled = slices.ContainsFunc(all, func(s stall) bool { return e.excuses(s, x) })
		}
	}
	excused := map[string]bool{} // a claim that was left because of a stall is seen until its lease ends
	for i := range found {
		x := &found[i]
		x.Stalled = x.Stalled || (x.claim != "" && excused[x.claim])
		excused[x.claim] = x.Stalled
		switch x.Oracle {
		case "history":
			x.Stalled = x.From != 0 && explained(found, x)
		case "store":
			x.Stalled = x.Stalled || explained(found, x)
		}
	}
	return long
}

// An excusable oracle is one that a busy machine can mislead. Tokens, what the fenced store and
// the servers keep, are the same however slow it is.
type excusable struct {
	// network: also by the lab, through which everything goes. It may take as long as it
	// likes, and no lock may be believed in for longer because of that.
	network bool
	// lasting: the violation lasts no longer than what caused it.
	lasting bool
}

var excusables = map[string]excusable{
	"overlap":     {lasting: true},
	"late-loss":   {lasting: true},
	"max-hold":    {lasting: true},
	"overrun":     {lasting: true},
	"min-hold":    {lasting: true, network: true},
	"idle":        {network: true},
	"false-loss":  {network: true},
	"lingering":   {network: true},
	"overlong":    {network: true},
	"calm":        {network: true},
	"stuck":       {network: true},
	"unconfirmed": {network: true},
	"store":       {network: true}, // the lab serves it
}

// excuses says whether one stall may have caused a violation: it is one of its processes,
// lies within a lease of the beginning, and is as long as what it caused.
func (e *Evidence) excuses(s stall, x *Violation) bool {
	rule, ok := excusables[x.Oracle]
	if !ok || x.From == 0 || !e.concerns(s, x) {
		return false
	}
	// How late a call may return has nothing to do with the lease.
	if s.length() < e.margin() && x.Oracle != "overrun" {
		return false
	}
	if rule.lasting && x.To-max(x.From, x.at) > s.length()+e.margin() {
		return false
	}
	begin := cmp.Or(x.at, x.From)
	return s.from <= begin+e.margin() && s.to >= begin-int64(e.TTL)-e.margin()
}

// concerns says whether a stall is of a process that has to do with a violation.
func (e *Evidence) concerns(s stall, x *Violation) bool {
	switch s.worker {
	case Lab:
		return excusables[x.Oracle].network
	case Server: // of locks: no write to the store goes through it
		return x.Oracle != "store" && e.keeps(s, x.Key)
	}
	return slices.Contains(x.Workers, s.worker)
}

// keeps says whether a key, or any if there is none, is one of the server that was stalled. Only those of a cluster
// have different keys, and some slots move.
func (e *Evidence) keeps(s stall, key string) bool {
	if e.Topology != schedule.Cluster || s.note == "" || key == "" {
		return true
	}
	moves := slices.ContainsFunc(e.Faults, func(f Struck) bool { return f.Kind == schedule.SlotMigration })
	if moves && strings.HasPrefix(key, "slow-") {
		return true
	}
	return s.note == ShardNote(schedule.ShardOfKey(worker.Prefix+key))
}

// lengthOf is how long processes that have to do with a violation were stalled during it.
func (e *Evidence) lengthOf(all []stall, x *Violation) int64 {
	var spans []span
	for _, s := range all {
		if e.concerns(s, x) {
			spans = append(spans, s.span)
		}
	}
	return covered(spans, x.From, x.To)
}

// share is how much of an interval the machine took from the workers: all of it in which
// a server or the lab was stalled, otherwise as much as from them on average.
func (e *Evidence) share(all []stall, from, to int64) float64 {
	var shared []span
	byWorker := map[string][]span{}
	for _, s := range all {
		if s.worker == Lab || s.worker == Server {
			shared = append(shared, s.span)
		} else {
			byWorker[s.worker] = append(byWorker[s.worker], s.span)
		}
	}
	lost, alive := int64(0), int64(0)
	for name, lifetime := range e.lifetimes() {
		begin, end := max(lifetime.from, from), min(lifetime.to, to)
		if begin < end {
			alive += end - begin
			lost += covered(append(byWorker[name], shared...), begin, end)
		}
	}
	if alive == 0 {
		return 0
	}
	return float64(lost) / float64(alive)
}

// lifetimes are when each worker logged something first and last.
func (e *Evidence) lifetimes() map[string]span {
	lifetimes := map[string]span{}
	for _, ev := range e.Events {
		if ev.Worker == "" || ev.Worker == Lab || ev.Worker == Server || ev.Kind == event.Fault || ev.Kind == event.Heal {
			continue
		}
		lifetime, some := lifetimes[ev.Worker]
		if !some {
			lifetime = span{ev.At, ev.At}
		}
		lifetimes[ev.Worker] = span{min(lifetime.from, ev.At), max(lifetime.to, ev.At)}
	}
	return lifetimes
}

// covered is how much of an interval lies in at least one of the spans.
func covered(spans []span, from, to int64) (sum int64) {
	sorted := slices.SortedFunc(slices.Values(spans), func(a, b span) int { return compare(a.from, b.from) })
	for _, s := range sorted {
		begin, end := max(s.from, from), min(s.to, to)
		if begin < end {
			sum += end - begin
			from = end
		}
	}
	return sum
}

// workersOf are the workers of a process: one, or none that is known.
func (e *Evidence) workersOf(pid int) []string {
	for _, ev := range e.Events {
		if ev.PID == pid && ev.Worker != Lab && ev.Worker != Server && ev.Kind == event.Call {
			return []string{ev.Worker}
		}
	}
	return nil
}

// made says whether the lab itself stopped the process, or disturbed the server.
func (e *Evidence) made(stall event.Event) bool {
	from := stall.At - stall.Dur
	if stall.Worker == Server {
		left := stall.Dur
		for _, f := range e.Faults {
			if !f.Kind.OnWorkers() && !f.Kind.Unnoticed() {
				left -= max(min(f.To, stall.At)-max(f.From, from), 0)
			}
		}
		return left < e.margin()
	}
	return e.asleep(stall.Worker, from, stall.At)
}

// explained says whether overlaps of its key explain what a whole history or a store shows, and
// the machine explains all of those. Each overlap of two that write explains one lost update.
func explained(found []Violation, x *Violation) bool {
	overlaps, lost := 0, 0
	for _, o := range found {
		switch {
		case o.Key != x.Key:
		case o.Oracle == "store" && !o.Stalled:
			lost++
		case o.Oracle == "overlap" && (o.writers || x.Oracle == "history"):
			if !o.Stalled {
				return false
			}
			overlaps++
		}
	}
	if x.Oracle == "store" {
		return overlaps >= lost
	}
	return overlaps > 0
}
