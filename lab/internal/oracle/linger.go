package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/schedule"
)

// A StoredClaim is a claim that was stored a second after a fault had been healed, at some
// time from Before to After.
type StoredClaim struct {
	Before, After int64
	Key           string
	PID           int
	Phase         string
	Token         int64
	Purpose       string // by which its owner named it
	Left          time.Duration
}

// CleanupTime is how soon after a call returned, and the last fault was healed or a Client
// closed, nothing of it may be left that it did not grant.
const CleanupTime = time.Second

// unreplicated is how long before a master was killed a call may have been answered that
// its replica never saw: the master answers first, and may be off the processor in between.
const unreplicated = 100 * time.Millisecond

// lingering finds claims of which no call knows: all calls of their process on that
// key had returned, and what was held released, a second before.
func (e *Evidence) lingering(sections []*Section) (found []Violation) {
	pids, dead := e.pids(), map[int]int64{}
	for _, f := range e.Faults {
		if f.Kind.Kills() {
			dead[pids[f.Worker]] = f.From
		}
	}
	for _, s := range e.Stored {
		if at, killed := dead[s.PID]; (killed && at <= s.After) || s.Left <= 0 {
			continue
		}
		last, grant := e.calls(sections, pids, s)
		if one := together(sections, s.Purpose, s.Key); one != nil && !e.isRedlock() {
			last = one
		}
		owner := last
		// A batch may have been handed over, and a closed redlock leaves a node that is away alone.
		if grant != nil && e.Setup.Batch == 0 && !e.isRedlock() {
			owner = grant
		}
		if owner != nil && (e.ended(owner) == 0 || e.ended(owner)+int64(CleanupTime) >= s.Before) || e.releaseLost(grant, last, s) {
			continue
		}
		found = append(found, Violation{
			Oracle: "lingering", claim: fmt.Sprint(s.Key, s.PID, s.Phase, s.Token), Key: s.Key, From: s.Before - int64(CleanupTime), To: s.After, Workers: e.workersOf(s.PID), at: e.lastChance(owner, s),
			Detail: fmt.Sprintf("a %s claim of process %d with token %d, which has no call on this key any more, is left for %v; %s",
				s.Phase, s.PID, s.Token, s.Left, e.story(cmp.Or(grant, last), s)),
		})
	}
	return found
}

// pids are the processes of the workers.
func (e *Evidence) pids() map[string]int {
	pids := map[string]int{}
	for _, ev := range e.Events {
		pids[ev.Worker] = ev.PID
	}
	return pids
}

func (e *Evidence) isRedlock() bool {
	return e.Topology == schedule.Redlock3 || e.Topology == schedule.Redlock5
}

// end is when the last call of an attempt returned, 0 if it has not.
func (s *Section) end() int64 {
	if s.Failed != "" {
		return s.Exit
	}
	return s.Released
}

// ended is when nothing of an attempt is to be stored any more: at its end, after its least
// hold, and when a Client that was closed meanwhile is. What that left, its lease ends.
func (e *Evidence) ended(s *Section) int64 {
	end := s.end()
	if end == 0 {
		return 0
	}
	least := int64(0)
	if s.Enter != 0 && s.Plan.MinHold > 0 {
		least = s.Enter + s.Plan.MinHold
		end = max(end, least)
	}
	// An Unlock that waits returns when its first attempt is over, which a fault may keep from an answer.
	if s.Enter != 0 && s.Plan.Async && s.Failed == "" && e.unreached(s.Worker, s.Key, end, end+int64(slack)) {
		end += e.releaseTimeout(s)
	}
	if s.Enter != 0 && s.Plan.Leave {
		end = e.leaseEnd(end, s.longest())
	}
	at := end
	for _, c := range e.closings[s.Worker] {
		if c.to < s.Call {
			continue
		}
		if c.from <= at {
			end = max(end, c.to)
		}
		left := c.unknown || c.from < least || (e.isRedlock() && e.unreached(s.Worker, s.Key, min(at, c.from), c.to))
		if left && !e.hasCalm(s.Worker, at, c.from) { // there was no time to remove it before
			end = max(end, e.leaseEnd(c.to, e.longestLease()))
		}
	}
	return end
}

// unreached says whether a worker may have been unable to reach a node in an interval: a fault struck
// the nodes or the worker itself, and was healed less than a second before, if at all. A closed
// redlock, which has removed a claim from a majority, leaves it on such a node to its lease.
func (e *Evidence) unreached(worker, key string, from, to int64) bool {
	return slices.ContainsFunc(e.Faults, func(f Struck) bool {
		strikes := (!f.Kind.OnWorkers() && !f.Kind.Unnoticed()) || f.Worker == worker
		if e.Topology == schedule.Cluster && e.spares(f, key) {
			return false
		}
		return strikes && f.From <= to && f.To+int64(CleanupTime) >= from
	})
}

// lastChance is until when a stored claim could have been removed: until it was seen, or until its Client
// was closed that had no second for it. On other backends Close says what it leaves.
func (e *Evidence) lastChance(owner *Section, s StoredClaim) int64 {
	if owner == nil || !e.isRedlock() {
		return s.Before
	}
	for _, c := range e.closings[owner.Worker] {
		if c.to >= owner.Call && c.to < s.Before && !e.hasCalm(owner.Worker, owner.end(), c.from) {
			return c.to
		}
	}
	return s.Before
}

// expiryLag is how long etcd may take to end a lease: it looks for those that are over twice a second, and a majority has to agree.
const expiryLag = time.Second

// leaseEnd is when a lease is over at the latest that is not renewed any more. A new leader
// of etcd, or one that is back, lets every lease begin anew that is still stored.
func (e *Evidence) leaseEnd(from, lease int64) int64 {
	end := from + lease
	if e.Topology != schedule.Etcd1 && e.Topology != schedule.Etcd3 {
		return end
	}
	for _, f := range e.Faults { // in their order
		if f.Kind.RestartsLeases() && f.From < end+int64(expiryLag) && f.To > from {
			end = max(end, f.To+lease)
		}
	}
	return end
}

// LeftUntil is until when servers may keep what a Client has left to its lease that was closed at a time.
func (e *Evidence) LeftUntil(closed int64) int64 {
	return e.leaseEnd(closed, e.longestLease()) + int64(expiryLag)
}

// hasCalm says whether a worker had a second in an interval in which nothing was wrong, so
// that what it had to release was released.
func (e *Evidence) hasCalm(worker string, from, to int64) bool {
	var faults []span
	for _, f := range e.Faults {
		if !f.Kind.OnWorkers() || f.Worker == worker {
			faults = append(faults, span{f.From, f.To})
		}
	}
	slices.SortFunc(faults, func(a, b span) int { return compare(a.from, b.from) })
	for _, f := range faults {
		if min(f.from, to)-from >= int64(CleanupTime) {
			return true
		}
		from = max(from, f.to)
	}
	return to-from >= int64(CleanupTime)
}

// calls finds, of the attempts of a process on the key of a stored claim, the one that ended last
// or has not, and the one that was granted what was seen.
func (e *Evidence) calls(sections []*Section, pids map[string]int, s StoredClaim) (last, grant *Section) {
	for _, one := range sections {
		if one.Key != s.Key || pids[one.Worker] != s.PID || one.Call > s.After {
			continue
		}
		if one.Enter != 0 && one.Fence == s.Token {
			grant = one
		}
		if last == nil || e.ended(one) == 0 || (e.ended(last) != 0 && e.ended(one) > e.ended(last)) {
			last = one
		}
	}
	return last, grant
}

// releaseLost says whether a claim is one whose release, by its owner or by Close, a master had
// answered when it was killed or deposed, and had not yet sent to its replica. Nothing can tell
// the client of that, and the claim ends with its lease. What was never granted by the master
// that the client knew, and still waits at the new one or was granted there, its last call tells. A
// call for several keys releases some that it has while it waits for others, and in the background when
// it has failed.
func (e *Evidence) releaseLost(grant, last *Section, s StoredClaim) bool {
	released := span{}
	switch {
	case grant != nil && grant.Unlock == "" && grant.Plan.Async: // answered some time after Unlock has returned
		released = span{grant.Released, grant.Released + int64(CleanupTime)}
	case grant != nil && grant.Unlock == "":
		released = span{grant.Released, grant.Released}
	case grant != nil:
		released = e.releasedByClose(grant)
	case last != nil && last.Plan.Together != "":
		released = span{last.Call, last.end() + int64(CleanupTime)}
	case last != nil:
		released = span{last.end(), last.end()}
	}
	return released.to != 0 && e.lossy(released.from, released.to, s.Before)
}

// together is the attempt on a key of the call for several keys that has this purpose, or nil.
func together(sections []*Section, purpose, key string) *Section {
	for _, s := range sections {
		if purpose != "" && s.Plan.Together == purpose && s.Key == key {
			return s
		}
	}
	return nil
}

// releasedByClose is when a Client was closed that held a lock, and had all answered.
func (e *Evidence) releasedByClose(s *Section) span {
	for _, c := range e.closings[s.Worker] {
		if !c.unknown && c.from <= s.end() && c.to >= s.Call {
			return span{c.from, c.to}
		}
	}
	return span{}
}

// lossy says whether in an interval a master was killed or deposed that may not have sent
// what it answered, before a given time.
func (e *Evidence) lossy(from, to, before int64) bool {
	return slices.ContainsFunc(e.Faults, func(f Struck) bool {
		loses := f.Kind.ReplacesMaster() && f.Kind != schedule.PlannedFailover
		return loses && f.From-int64(unreplicated) <= to && from <= f.Hit && f.From < before
	})
}

// story describes the call that left a stored claim, or the last one, and the last fault.
func (e *Evidence) story(call *Section, s StoredClaim) string {
	if call == nil {
		return "it never called"
	}
	ago := func(at int64) time.Duration { return time.Duration(s.Before - at).Round(time.Microsecond) }
	story := fmt.Sprintf("its last call, %s with %+v, began %v before, had token %d, left %v, gave it back %v and ended %v before",
		call.Verb, call.Plan, ago(call.Call), call.Fence, ago(call.Exit), ago(call.Released), ago(e.ended(call)))
	if err := call.Failed + call.Unlock; err != "" {
		story += fmt.Sprintf(" with %q", err)
	}
	for _, c := range e.closings[call.Worker] {
		if c.from < s.Before && c.to > call.Call {
			story += fmt.Sprintf("; its Client was closed from %v to %v before, all released: %v", ago(c.from), ago(c.to), !c.unknown)
		}
	}
	for _, ev := range e.Events {
		if ev.Kind == event.Logged && ev.Worker == call.Worker && ev.At >= call.Call && strings.Contains(ev.Note, call.Key) {
			story += fmt.Sprintf("; logged %v before: %s", ago(ev.At), ev.Note)
		}
	}
	for _, f := range slices.Backward(e.Faults) {
		if f.From < s.Before {
			return fmt.Sprintf("%s; the last fault was a %s from %v to %v before", story, f.Kind, ago(f.From), ago(f.To))
		}
	}
	return story
}

// longestHeartbeat is how long a claim that waits, or has just been granted, lives without
// its owner: driver.Heartbeat of a long lease.
const longestHeartbeat = 3 * time.Second

// overlong finds claims that are stored for longer than any of them may be, whatever the
// clock shows; and claims that carry what another has said of itself.
func (e *Evidence) overlong(sections []*Section) (found []Violation) {
	named := map[string]*Section{}
	for _, s := range sections {
		named[s.Attempt] = s
		if s.Plan.Together != "" {
			named[s.Plan.Together] = s
		}
	}
	for _, s := range e.Stored {
		limit := max(e.TTL, longestHeartbeat) + slack
		if sharesLease(s.Key) && s.Left > limit {
			found = append(found, Violation{
				Oracle: "overlong", Key: s.Key, From: s.Before, To: s.After, Workers: e.workersOf(s.PID),
				Detail: fmt.Sprintf("a %s claim of process %d with token %d is stored for another %v, at most %v is right", s.Phase, s.PID, s.Token, s.Left, limit),
			})
		}
		if one := named[s.Purpose]; one != nil && one.Key != s.Key && together(sections, s.Purpose, s.Key) == nil {
			found = append(found, Violation{
				Oracle: "info", Key: s.Key, From: s.Before, To: s.After,
				Detail: fmt.Sprintf("the claim of %s, which is for %s, is stored here", s.Purpose, one.Key),
			})
		}
	}
	return found
}
