package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// endured counts the locks that were held while a server stood still, for as long as a
// lock must survive. That none of them was lost is for the oracle of false losses.
func (e *Evidence) endured(sections []*Section) (n int) {
	for _, f := range e.Faults {
		if (f.Kind != schedule.ServerPause && f.Kind != schedule.LeaderPause) || f.For > e.TTL/2 {
			continue
		}
		for _, s := range sections {
			if s.Enter != 0 && s.Enter < f.From && s.Exit > f.To {
				n++
			}
		}
	}
	return n
}

func (e *Evidence) ambiguous() (n int) {
	for _, ev := range e.Events {
		if ev.Kind == event.Ambiguous {
			n++
		}
	}
	return n
}

// overrunBound is how long a call may return after its context has ended: 100 ms, and
// what a worker may have missed without having noticed.
const overrunBound = 200 * time.Millisecond

// overruns are how late calls returned whose time was up, and those that were too late.
func (e *Evidence) overruns(sections []*Section) (all []time.Duration, found []Violation) {
	for _, s := range sections {
		end := s.Call + s.Patience
		if s.Failed == "" || s.Exit < end || e.asleep(s.Worker, s.Call, s.Exit) {
			continue
		}
		over := time.Duration(s.Exit - end)
		all = append(all, over)
		if over > overrunBound {
			found = append(found, Violation{
				Oracle: "overrun", Key: s.Key, From: end, To: s.Exit, Workers: []string{s.Worker}, at: end + int64(overrunBound),
				Detail: fmt.Sprintf("%s returned %v after its context had ended", s.Attempt, over),
			})
		}
	}
	slices.Sort(all)
	return all, found
}

// slowUnlocks finds releases that returned after the time that they were given: a lease.
func (e *Evidence) slowUnlocks(sections []*Section) (found []Violation) {
	for _, s := range sections {
		if s.Enter == 0 || s.Released == 0 || s.Lost || s.Parted || e.asleep(s.Worker, s.Exit, s.Released) {
			continue
		}
		end := s.Exit + cmp.Or(s.Plan.Lease, int64(e.TTL))
		if over := time.Duration(s.Released - end); over > overrunBound {
			found = append(found, Violation{
				Oracle: "overrun", Key: s.Key, From: end, To: s.Released, Workers: []string{s.Worker}, at: end + int64(overrunBound),
				Detail: fmt.Sprintf("%s took %v to give the lock back by %s", s.Attempt, time.Duration(s.Released-s.Exit), s.Verb),
			})
		}
	}
	return found
}

// failures finds errors where nothing is wrong: of a call that had time left, or of a release.
func (e *Evidence) failures(sections []*Section) (found []Violation) {
	if e.Mode != schedule.Calm {
		return nil
	}
	for _, s := range sections {
		early := s.Exit < min(s.Call+s.Patience, e.To) && s.Failed != dlock.ErrLockHeldByOther.Error()
		why := s.Unlock
		if s.Failed != "" && early {
			why = s.Failed
		}
		if why != "" && !s.Killed {
			found = append(found, Violation{
				Oracle: "calm", Key: s.Key, From: s.Call, To: max(s.Exit, s.Released), Workers: []string{s.Worker}, at: max(s.Exit, s.Released),
				Detail: fmt.Sprintf("%s failed by %s although nothing was wrong: %s", s.Attempt, s.Verb, why),
			})
		}
	}
	return found
}

// handovers are the times from the end of a section to the beginning of the next one,
// where the next holder was waiting and nothing was disturbed.
func (e *Evidence) handovers(sections []*Section) (all []time.Duration) {
	for _, group := range byKey(sections, true) {
		slices.SortFunc(group, func(a, b *Section) int { return compare(a.Enter, b.Enter) })
		for i, s := range group[1:] {
			before := group[i]
			waited := s.Call < before.Exit-int64(5*time.Millisecond)
			if waited && before.Released != 0 && !before.Lost && !e.struck(before.Exit-int64(e.TTL), s.Enter, "") {
				all = append(all, time.Duration(s.Enter-before.Exit))
			}
		}
	}
	return all
}

// struck says whether a fault was at work in an interval, other than that of a worker.
func (e *Evidence) struck(from, to int64, but string) bool {
	return slices.ContainsFunc(e.Faults, func(f Struck) bool { return f.From <= to && f.To >= from && (but == "" || f.Worker != but) })
}

// recoveries are the times from the death of a holder to the next one, where somebody
// was waiting and nothing else happened; beheaded are those where the leader of the
// servers died at the same moment. Locks that one process held end together, so that of
// each death only the longest counts.
func (e *Evidence) recoveries(sections []*Section) (all, beheaded []time.Duration) {
	longest, headless := map[string]time.Duration{}, map[string]time.Duration{} // by worker
	for key, group := range byKey(sections, false) {
		if !sameLease(key) {
			continue
		}
		for _, dead := range group {
			inside := dead.Killed && dead.Enter != 0 && dead.Exit == e.killed(dead.Worker)
			if !inside || dead.Exit >= e.To {
				continue
			}
			next := successor(group, dead)
			if next == nil {
				continue
			}
			took := time.Duration(next.Enter - dead.Exit)
			switch {
			case e.beheaded(dead.Worker):
				headless[dead.Worker] = max(headless[dead.Worker], took)
			case !e.struck(dead.Exit+1, next.Enter, dead.Worker):
				longest[dead.Worker] = max(longest[dead.Worker], took)
			}
		}
	}
	return slices.Sorted(maps.Values(longest)), slices.Sorted(maps.Values(headless))
}

func (e *Evidence) beheaded(worker string) bool {
	return slices.ContainsFunc(e.Faults, func(f Struck) bool { return f.Kind == schedule.Beheading && f.Worker == worker })
}

// successor is who was granted the lock next, if somebody had been waiting since the
// holder died. It may have died since, but not while it waited.
func successor(group []*Section, dead *Section) (next *Section) {
	waited := false
	for _, s := range group {
		if s == dead || (s.Killed && s.Enter == 0) {
			continue
		}
		waited = waited || (s.Call < dead.Exit && waitedUntil(s) > dead.Exit)
		if s.Enter > dead.Exit && (next == nil || s.Enter < next.Enter) {
			next = s
		}
	}
	if !waited {
		return nil
	}
	return next
}
