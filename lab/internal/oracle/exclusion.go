package oracle

import (
	"fmt"
	"slices"
	"time"

	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/store"
)

// overlaps finds sections of one key that were entered before another had been left, and
// that may not be inside together.
func overlaps(sections []*Section) (found []Violation) {
	for key, group := range byKey(sections, true) {
		slices.SortFunc(group, func(a, b *Section) int { return compare(a.Enter, b.Enter) })
		var inside []*Section // at the moment
		for _, s := range group {
			if s.Exit <= s.Enter { // it was over when it was granted
				continue
			}
			inside = slices.DeleteFunc(inside, func(other *Section) bool { return other.Exit <= s.Enter })
			if other := s.against(inside); other != nil {
				end := min(s.Exit, other.Exit)
				found = append(found, Violation{
					Oracle: "overlap", Key: key, From: s.Enter, To: end, Workers: []string{other.Worker, s.Worker}, writers: s.writes() && slices.ContainsFunc(inside, (*Section).writes),
					Detail: fmt.Sprintf("%s (fence %d) and %s (fence %d) were inside together for %v", other.Attempt, other.Fence, s.Attempt, s.Fence, time.Duration(end-s.Enter)),
				})
			}
			inside = append(inside, s)
		}
	}
	return found
}

// against is one of those inside that exclude s, the one that stays longest,
// or nil. Readers may be inside together, and as many with a permit as there are permits.
func (s *Section) against(inside []*Section) (worst *Section) {
	permits := 0
	for _, other := range inside {
		together := s.isTogether(other)
		if together && s.Plan.Limit > 0 {
			permits++
			together = permits < s.Plan.Limit
		}
		if !together && (worst == nil || other.Exit > worst.Exit) {
			worst = other
		}
	}
	return worst
}

// isTogether says whether both may be inside, if there are permits for them.
func (s *Section) isTogether(other *Section) bool {
	return s.Plan.Mode != "" && s.Plan.Mode == other.Plan.Mode && s.Plan.Limit == other.Plan.Limit
}

// writes says whether a section writes to the stores: those that share a lock only read.
func (s *Section) writes() bool { return s.Plan.Mode == "" }

func compare(a, b int64) int { return int(min(max(a-b, -1), 1)) }

// stopped ends the sections whose lease was not renewed, and ended while their worker was stopped,
// when it was stopped: it did nothing from then on, and left as soon as it went on. No client can
// do more, and a fenced store refuses its writes.
func (e *Evidence) stopped(sections []*Section) {
	for _, s := range sections {
		if !s.Plan.Fixed || !s.Lost || s.Enter == 0 {
			continue
		}
		soonest, latest := e.soonestEnd(s), e.latestEnd(s)
		for _, f := range e.Faults {
			asleep := f.Worker == s.Worker && !f.Kind.Kills()
			ended := soonest <= f.To && f.From <= latest
			if asleep && ended && s.Enter < f.From && f.From < s.Exit && s.Exit <= f.To+int64(slack) {
				s.Exit = f.From
			}
		}
	}
}

// turns finds the locks that were handed over inside a process, beyond the assumptions: whoever
// gets such a lock has a token of the turn, which may be smaller than what a new master has
// granted since. No client can know of that, and a fenced store refuses its writes.
func (e *Evidence) turns(sections []*Section) {
	if e.Mode != schedule.Beyond || e.Setup.Batch == 0 {
		return
	}
	for _, group := range byKey(sections, true) {
		slices.SortFunc(group, func(a, b *Section) int { return compare(a.Fence, b.Fence) })
		for i, s := range group {
			for _, first := range slices.Backward(group[:i]) {
				if s.Fence-first.Fence >= int64(e.Setup.Batch) {
					break
				}
				if first.Worker == s.Worker {
					s.Asked = min(s.Asked, first.Asked)
				}
			}
		}
	}
}

// fences finds tokens that do not grow: whoever calls after another was granted the
// lock must get a greater one.
func fences(sections []*Section) (found []Violation) {
	for key, group := range byKey(sections, true) {
		granted := slices.Clone(group)
		slices.SortFunc(group, func(a, b *Section) int { return compare(a.Asked, b.Asked) })
		slices.SortFunc(granted, func(a, b *Section) int { return compare(a.Enter, b.Enter) })
		var greatest *Section // among those granted before the call
		next := 0
		for _, s := range group {
			for ; next < len(granted) && granted[next].Enter < s.Asked; next++ {
				if greatest == nil || granted[next].Fence > greatest.Fence {
					greatest = granted[next]
				}
			}
			if greatest != nil && s.Fence <= greatest.Fence {
				found = append(found, Violation{
					Oracle: "fence", Key: key, From: s.Call, To: s.Enter,
					Detail: fmt.Sprintf("%s got %d after %s had got %d", s.Attempt, s.Fence, greatest.Attempt, greatest.Fence),
				})
			}
		}
	}
	return found
}

// stale finds writes that the fenced store accepted though a holder that came later
// had written before.
func (e *Evidence) stale(sections []*Section) (found []Violation) {
	byAttempt := map[string]*Section{}
	for _, s := range sections {
		byAttempt[s.Attempt] = s
	}
	latest := map[string]*Section{} // by key: of those that wrote, the last caller
	for _, w := range e.Writes {
		s := byAttempt[w.Attempt]
		if s == nil || s.Enter == 0 {
			continue
		}
		if before := latest[w.Key]; before != nil && before.Call > s.Enter {
			found = append(found, Violation{
				Oracle: "stale-write", Key: w.Key, From: w.At, To: w.At,
				Detail: fmt.Sprintf("the write of %s (fence %d) was accepted after that of %s (fence %d)", s.Attempt, s.Fence, before.Attempt, before.Fence),
			})
		}
		if before := latest[w.Key]; before == nil || s.Call > before.Call {
			latest[w.Key] = s
		}
	}
	if n := e.Counts.FencedLost; n > 0 {
		found = append(found, Violation{Oracle: "stale-write", Detail: fmt.Sprintf("%d updates of the fenced store were lost", n)})
	}
	return found
}

// unfenced judges the store that does not look at tokens. Inside the assumptions the
// lock alone must have kept it right, unless a write took longer than its lock lasted.
func (e *Evidence) unfenced(sections []*Section) (found []Violation) {
	byAttempt := map[string]*Section{}
	for _, s := range sections {
		byAttempt[s.Attempt] = s
	}
	for _, l := range e.Lost {
		x := Violation{
			Oracle: "store", Key: l.Write.Key, Detail: fmt.Sprintf("the write of %s (fence %d) overwrote that of %s (fence %d), which it had not seen",
				l.Write.Attempt, l.Write.Fence, l.Overwritten.Attempt, l.Overwritten.Fence),
		}
		for _, w := range []store.Write{l.Write, l.Overwritten} { // the latest of those that arrived after their section
			if s := byAttempt[w.Attempt]; s != nil && w.At > s.Exit && w.At-s.Exit > x.To-x.From {
				x.From, x.To, x.Workers = max(s.Exit, w.Sent), w.At, []string{s.Worker}
				x.Detail += fmt.Sprintf("; that of %s took %v to arrive, %v more than its section", w.Attempt, time.Duration(w.At-w.Sent), time.Duration(w.At-s.Exit))
			}
		}
		found = append(found, x)
	}
	return found
}
