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

// maxOverrun is how long a call may return after its context has ended: 100 ms, and
// what a worker may have missed without having noticed.
const maxOverrun = 200 * time.Millisecond

// overruns are how late calls returned whose time was up, and those that were too late.
func (e *Evidence) overruns(sections []*Section) (all []time.Duration, found []Violation) {
	for _, s := range sections {
		end := s.Call + s.Patience
		never := s.Killed && s.Enter == 0 // until its process ended
		if s.Failed == "" && !never || s.Exit < end {
			continue
		}
		over := time.Duration(s.Exit - end)
		if !never && !e.asleep(s.Worker, s.Call, s.Exit) {
			all = append(all, over)
		}
		if limit := e.allowing(s.Worker, end+int64(maxOverrun)); s.Exit > limit {
			how := "returned"
			if never {
				how = "had not returned"
			}
			found = append(found, Violation{
				Oracle: "overrun", Key: s.Key, From: end, To: s.Exit, Workers: []string{s.Worker}, at: limit,
				Detail: fmt.Sprintf("%s %s %v after its context had ended", s.Attempt, how, over),
			})
		}
	}
	slices.Sort(all)
	return all, found
}

// unlockTimeout is how long a release is tried before its caller is let go: a third of the lease, at most
// two seconds, and what a call may return late, to a worker that is busy.
func (e *Evidence) unlockTimeout(s *Section) int64 {
	if s.Plan.Async || s.Plan.Leave { // nothing is waited for
		return int64(maxOverrun + slack)
	}
	return e.releaseTimeout(s) + int64(maxOverrun+slack)
}

// releaseTimeout is how long the first attempt of a release is waited for.
func (e *Evidence) releaseTimeout(s *Section) int64 {
	return min(cmp.Or(s.longest(), int64(e.TTL))/3, int64(2*time.Second))
}

// slowUnlocks finds releases that returned late, or not until their process ended.
func (e *Evidence) slowUnlocks(sections []*Section) (found []Violation) {
	for _, s := range sections {
		returned := s.Released
		if returned == 0 && s.Killed && !s.Lost { // the end of a lost one lies before that of its section
			returned = e.killed(s.Worker)
		}
		limit := e.allowing(s.Worker, s.Releasing+e.unlockTimeout(s))
		if s.Enter == 0 || s.Parted || returned <= limit {
			continue
		}
		found = append(found, Violation{
			Oracle: "overrun", Key: s.Key, From: s.Releasing, To: returned, Workers: []string{s.Worker}, at: limit,
			Detail: fmt.Sprintf("%s took %v to give the lock back by %s, or had not by then", s.Attempt, time.Duration(returned-s.Releasing), s.Verb),
		})
	}
	return found
}

// refusals finds calls that were to wait and were told that another holds the lock.
func (e *Evidence) refusals(sections []*Section) (found []Violation) {
	for _, s := range sections {
		waits := slices.Contains([]string{"acquire", "lock", "do", "acquire-all", "do-all"}, s.Verb)
		waited := s.Plan.HasWait && s.Exit >= s.Call+s.Plan.Wait
		if s.Failed == dlock.ErrLockHeldByOther.Error() && waits && !waited {
			found = append(found, Violation{
				Oracle: "refused", Key: s.Key, From: s.Call, To: s.Exit,
				Detail: fmt.Sprintf("%s was to wait by %s with %+v, and was told after %v that another holds the lock", s.Attempt, s.Verb, s.Plan, time.Duration(s.Exit-s.Call)),
			})
		}
	}
	return found
}

// maxEnd is how long a worker may take to end, on a busy machine: to unlock, and to close its Client.
const maxEnd = 2 * closeTimeout

// stuck finds workers that were told to end and did not.
func (e *Evidence) stuck() (found []Violation) {
	for _, s := range e.Stuck {
		found = append(found, Violation{
			Oracle: "stuck", From: s.From, To: s.To, Workers: []string{s.Worker}, at: s.From + int64(maxEnd),
			Detail: fmt.Sprintf("%s was told to end, and had to be killed after %v", s.Worker, time.Duration(s.To-s.From)),
		})
	}
	return found
}

// unconfirmed finds workers whose last Close left something to its lease although nothing was wrong.
func (e *Evidence) unconfirmed() (found []Violation) {
	for _, ev := range e.Events {
		from := ev.At - ev.Dur
		left := ev.Kind == event.Stop && ev.Note == dlock.ErrUnknownOutcome.Error()
		if left && !e.struck(from-int64(CleanupTime), ev.At, "") {
			found = append(found, Violation{
				Oracle: "unconfirmed", From: from, To: ev.At, Workers: []string{ev.Worker}, at: ev.At,
				Detail: fmt.Sprintf("%s closed its Client in %v and could not release all although nothing was wrong", ev.Worker, time.Duration(ev.Dur)),
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

// recoveries are the times from the death of a holder to the next one, where a worker
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

// successor is the call that was granted the lock next, if a worker had been waiting since the
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
