package oracle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// What callers ask for besides the key: when a lock ends by itself, how long it is kept, and
// what a call inside it means.

// slack is how far the moment at which a worker logs something may be from the moment at
// which it happened, on a machine that is busy and not yet stalled.
const slack = 300 * time.Millisecond

// sameLease says whether all locks on a key have the lease of the topology, and are renewed.
func sameLease(key string) bool {
	return strings.HasPrefix(key, "slow") || strings.HasPrefix(key, "brisk")
}

// sharesLease says the same also of the keys that readers and permits use, and of those that are
// locked together in every second epoch.
func sharesLease(key string) bool {
	return sameLease(key) || strings.HasPrefix(key, "mixed") || strings.HasPrefix(key, "several-{")
}

// endsByPlan says whether the end of a lock is what its holder asked for: it is not renewed,
// or was held for as long as it may be.
func (e *Evidence) endsByPlan(s *Section) bool {
	if most := s.Plan.MaxHold; most > 0 && s.Learned >= s.Enter+most-int64(slack) {
		return true
	}
	return s.Plan.Fixed && s.Learned >= e.soonestEnd(s)-s.Plan.Margin
}

// soonestEnd is when a lease that is not renewed may have ended for its holder at the soonest. It counts from when
// the last call of it was sent. A fault may have put that before the grant, or kept a waiter that was granted the
// lock from the one renewal that makes a whole lease of the rest of its heartbeat.
func (e *Evidence) soonestEnd(s *Section) int64 {
	from, lease := s.Enter, s.Plan.Lease
	if s.Sent != 0 {
		from = min(from, s.Sent)
	}
	for _, f := range e.Faults {
		concerns := f.Worker == s.Worker || (!f.Kind.OnWorkers() && !f.Kind.Unnoticed())
		if concerns && f.From <= s.Enter+int64(slack) && f.To >= s.Enter-int64(e.TTL) {
			from = min(from, f.From) - int64(e.TTL/3)
		}
	}
	until := from + lease
	for _, x := range s.Extended {
		if x.Note == "" {
			until, lease = x.At+x.Dur, x.Dur
		}
	}
	return until - lease/10 - int64(slack)
}

// latestEnd is when such a lease has ended at the latest. The one renewal of a waiter may be late if something is
// wrong.
func (e *Evidence) latestEnd(s *Section) int64 {
	until := s.Enter + s.Plan.Lease + int64(slack)
	if e.struck(s.Enter-int64(e.TTL), until, s.Worker) {
		until += s.Plan.Lease
	}
	for _, x := range s.Extended { // which is tried for a lease; one that failed may have been carried out
		until = max(until, x.At+s.Plan.Lease+x.Dur)
	}
	return until
}

// keptUntil is how long the key of a section stays taken at least, if nothing but its holder
// ends it; 0 if it was not granted.
func (s *Section) keptUntil() int64 {
	if s.Enter == 0 {
		return 0
	}
	return max(s.Exit, s.Released, s.Enter+s.Plan.MinHold)
}

// longest is the longest lease that a lock may have been given.
func (s *Section) longest() int64 {
	lease := s.Plan.Lease
	for _, x := range s.Extended {
		lease = max(lease, x.Dur)
	}
	return lease
}

// gone finds keys that passed on although their lock was left to a lease that had not ended. The lease counts from
// the extension, which the server has confirmed.
func (e *Evidence) gone(sections []*Section) (found []Violation) {
	for key, group := range byKey(sections, true) {
		for _, s := range group {
			if !s.Plan.Leave || s.Lost || s.Parted || s.Unlock != "" || s.Released == 0 || len(s.Extended) != 1 || s.Extended[0].Note != "" {
				continue
			}
			x := s.Extended[0]
			until := x.At + x.Dur
			for _, next := range group {
				if early := until - next.Enter; next.Enter > s.Enter && early > int64(slack)/2 && !e.graveIn(key, x.At, until) {
					found = append(found, Violation{
						Oracle: "left", Key: key, From: next.Enter, To: until, Workers: []string{s.Worker, next.Worker}, at: x.At,
						Detail: fmt.Sprintf("%s got the key %v before the lease ended to which %s had left it", next.Attempt, time.Duration(early), s.Attempt),
					})
				}
			}
		}
	}
	return found
}

// leases finds locks with a lease of their own that could not say which it is.
func leases(sections []*Section) (found []Violation) {
	for _, s := range sections {
		if s.Leased != "" && !s.Lost && !s.Parted {
			found = append(found, Violation{
				Oracle: "lease", Key: s.Key, From: s.Enter, To: s.Exit,
				Detail: fmt.Sprintf("%s has a lease of its own, and was told %q", s.Attempt, s.Leased),
			})
		}
	}
	return found
}

// overstayed finds holders that believed in a lock for longer than it may be held.
func (e *Evidence) overstayed(sections []*Section) (found []Violation) {
	for _, s := range sections {
		most := s.Plan.MaxHold
		if s.Plan.Fixed && s.Plan.MaxHold == 0 && len(s.Extended) == 0 && !e.struck(s.Enter-int64(e.TTL), s.Enter+s.Plan.Lease, s.Worker) {
			most = s.Plan.Lease - s.Plan.Margin
		}
		if s.Enter == 0 || most == 0 || s.Killed {
			continue
		}
		limit := e.allowing(s.Worker, s.Enter+most+int64(slack))
		if s.Learned > limit {
			found = append(found, Violation{
				Oracle: "max-hold", Key: s.Key, From: s.Enter + most, To: s.Learned, Workers: []string{s.Worker}, at: limit,
				Detail: fmt.Sprintf("%s held for %v longer than the %v that it may", s.Attempt, time.Duration(s.Learned-s.Enter-most), time.Duration(most)),
			})
		}
	}
	return found
}

// cutShort finds keys that passed on before the least hold of one that had it was over.
func (e *Evidence) cutShort(sections []*Section) (found []Violation) {
	for key, group := range byKey(sections, true) {
		slices.SortFunc(group, func(a, b *Section) int { return compare(a.Enter, b.Enter) })
		var inside []*Section // with their least holds
		for _, next := range group {
			inside = slices.DeleteFunc(inside, func(s *Section) bool { return s.Exit <= next.Enter })
			s := next.against(inside)
			if s != nil && !s.hasLeft() && next.isTogether(s) { // any of the others may have left
				if i := slices.IndexFunc(inside, func(s *Section) bool { return s.hasLeft() && next.isTogether(s) }); i >= 0 {
					s = inside[i]
				}
			}
			if s != nil && s.hasLeft() { // see overlaps for one that has not
				found = append(found, Violation{
					// The least hold counts from the grant, which s may have logged late.
					Oracle: "min-hold", Key: key, From: next.Enter, To: s.leastEnd(), Workers: []string{s.Worker, next.Worker}, at: s.Enter,
					Detail: fmt.Sprintf("%s got the key %v before the least hold of %s was over", next.Attempt, time.Duration(s.leastEnd()-next.Enter), s.Attempt),
				})
			}
			inside = append(inside, e.withLeastHold(next))
		}
	}
	return found
}

// leastEnd is when the least hold of a section is over.
func (s *Section) leastEnd() int64 { return s.Enter + s.Plan.MinHold }

// hasLeft says whether a section lasts for its least hold only: its holder has left before.
func (s *Section) hasLeft() bool { return s.Plan.MinHold > 0 && s.Exit == s.leastEnd()-int64(slack)/2 }

// withLeastHold is a section that lasts for its least hold, less what logs may be wrong by, if nothing but its holder may have
// ended it.
func (e *Evidence) withLeastHold(s *Section) *Section {
	kept := s.leastEnd()
	if s.Plan.MinHold == 0 || s.Lost || s.Killed || e.closing(s.Worker, s.Call, kept) || e.graveIn(s.Key, s.Enter, kept) || e.killedIn(s.Worker, s.Enter, kept) {
		return s
	}
	long := *s
	long.Exit = max(s.Exit, kept-int64(slack)/2)
	return &long
}

func (e *Evidence) killedIn(worker string, from, to int64) bool {
	return slices.ContainsFunc(e.Faults, func(f Struck) bool {
		return f.Kind.Kills() && f.Worker == worker && f.From <= to && f.To >= from
	})
}

// A closing is the end of a Client.
type closing struct {
	from, to int64
	unknown  bool // something was left to its lease
}

// findClosings finds those of all workers, among them the one at the end of each.
func (e *Evidence) findClosings() {
	e.closings = map[string][]closing{}
	for _, ev := range e.Events {
		if ev.Kind == event.Closed || ev.Kind == event.Stop {
			e.closings[ev.Worker] = append(e.closings[ev.Worker], closing{ev.At - ev.Dur, ev.At, ev.Note != ""})
		}
	}
}

// closing says whether a worker closed a Client in an interval.
func (e *Evidence) closing(worker string, from, to int64) bool {
	return slices.ContainsFunc(e.closings[worker], func(c closing) bool { return c.from <= to && c.to >= from })
}

// longestLease is that of any lock in the lab.
func (e *Evidence) longestLease() int64 { return int64(5 * e.TTL) }

// closeTimeout is how long Close may take, on a busy machine.
const closeTimeout = 3 * time.Second

// slowCloses finds Clients that took longer to close than they may.
func (e *Evidence) slowCloses() (found []Violation) {
	for _, ev := range e.Events {
		limit := e.allowing(ev.Worker, ev.At-ev.Dur+int64(closeTimeout))
		if (ev.Kind == event.Closed || ev.Kind == event.Stop) && ev.At > limit {
			found = append(found, Violation{
				Oracle: "overrun", From: ev.At - ev.Dur, To: ev.At, Workers: []string{ev.Worker}, at: limit,
				Detail: fmt.Sprintf("%s took %v to close its Client", ev.Worker, time.Duration(ev.Dur)),
			})
		}
	}
	return found
}

// reentries finds calls inside a held lock that were not answered as the setup demands: with
// the lock that is held, or, without re-entry, with a refusal.
func (e *Evidence) reentries(sections []*Section) (found []Violation, judged int) {
	for _, s := range sections {
		for _, a := range s.Again {
			judged++
			if e.excusesAgain(s, a) {
				continue
			}
			found = append(found, Violation{
				Oracle: "reentry", Key: s.Key, From: a.At - a.Dur, To: a.At,
				Detail: fmt.Sprintf("%s, which has token %d, asked for its key once more by %s, and after %v got token %d and %q",
					s.Attempt, s.Fence, a.Verb, time.Duration(a.Dur), a.Fence, a.Note),
			})
		}
	}
	return found, judged
}

func (e *Evidence) excusesAgain(s *Section, a event.Event) bool {
	// A call inside a lock that is over is one for another lock.
	if (s.Lost || s.Parted) && min(s.Exit, s.Learned) <= a.At {
		return true
	}
	switch a.Note {
	case dlock.ErrOwnershipLost.Error(), dlock.ErrClosed.Error():
		return true
	case dlock.ErrLockAlreadyHeld.Error():
		return !e.Setup.Reentrant
	case "":
		return e.Setup.Reentrant && a.Fence == s.Fence
	}
	// The end of the lock ends its context, and with it the call, before the worker logs that it
	// has learned of it.
	return s.Lost && s.Learned <= a.At+int64(slack)
}

// denied finds calls that the servers refused to the user of a worker: it has all rights that
// its backend names.
func (e *Evidence) denied(sections []*Section) []Violation {
	n, first := 0, (*Section)(nil)
	for _, s := range sections {
		if s.Failed != dlock.ErrDenied.Error() && s.Unlock != dlock.ErrDenied.Error() {
			continue
		}
		n++
		if first == nil {
			first = s
		}
	}
	if n == 0 {
		return nil
	}
	return []Violation{{
		Oracle: "denied", Key: first.Key, From: first.Call, To: first.Exit,
		Detail: fmt.Sprintf("%d calls were denied, the first that of %s by %s, as a user with rights %q", n, first.Attempt, first.Verb, e.Setup.Rights),
	}}
}
