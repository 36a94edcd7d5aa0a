package oracle

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A Verdict is the judgement of a trial, and its figures.
type Verdict struct {
	Operations  int `json:"operations"` // acquisitions that were asked for
	Sections    int `json:"sections"`   // that were granted
	Checked     int `json:"checked"`    // operations through the model
	Unchecked   int `json:"unchecked"`  // left to the other oracles
	Overlaps    int `json:"overlaps"`   // beyond the assumptions they are no violation
	Losses      int `json:"losses"`
	LossesTimed int `json:"losses_timed"` // whose end at the server was seen
	LateLosses  int `json:"late_losses"`
	FalseLosses int `json:"false_losses"`
	Fences      int `json:"fence_regressions"`
	Stale       int `json:"stale_accepted"`
	Rejected    int `json:"stale_rejected"`
	Corrupted   int `json:"unfenced_lost_updates"`
	Ghosts      int `json:"ghosts"`
	Lingering   int `json:"lingering"`
	Looks       int `json:"looks"`     // at what is stored after a fault
	Ambiguous   int `json:"ambiguous"` // calls of the backend that had no answer
	Endured     int `json:"endured"`   // locks held while a server stood still
	Stalls      int `json:"stalls"`
	Reentries   int `json:"reentries"`     // calls inside a held lock for the same key
	Others      int `json:"other_masters"` // sections at other masters while one was in trouble

	Recoveries []time.Duration `json:"recoveries,omitempty"`
	Beheaded   []time.Duration `json:"beheaded,omitempty"`  // recoveries without a leader
	Handovers  []time.Duration `json:"handovers,omitempty"` // only where nothing disturbs
	Overruns   []time.Duration `json:"overruns,omitempty"`  // of all calls whose context ended
	Violations []Violation     `json:"violations,omitempty"`
	// Noted are the first overlaps beyond the assumptions.
	Noted []Violation `json:"noted,omitempty"`
}

// Passed says that nothing happened that must not.
func (v *Verdict) Passed() bool { return len(v.Violations) == 0 }

// Stalled says that something did, and that each time the machine may have been to blame. The
// trial proves nothing and is repeated.
func (v *Verdict) Stalled() bool {
	for _, x := range v.Violations {
		if !x.Stalled {
			return false
		}
	}
	return len(v.Violations) > 0
}

// Judge runs all oracles.
func (e *Evidence) Judge(minRate float64) *Verdict {
	e.findClosings()
	sections := e.Sections()
	v := &Verdict{Operations: len(sections), Rejected: e.Counts.Rejected, Corrupted: e.Counts.UnfencedLost}
	for _, s := range sections {
		if s.Enter != 0 {
			v.Sections++
		}
		if s.Lost && s.Enter != 0 {
			v.Losses++
		}
	}
	e.turns(sections)
	e.stopped(sections)
	over, fence, stale := overlaps(sections), fences(sections), e.stale(sections)
	late, timed := e.lateLosses(sections)
	history, checked, left := e.history(sections)
	v.Overlaps, v.Fences, v.Stale, v.LateLosses, v.LossesTimed = len(over), len(fence), len(stale), len(late), timed
	v.Checked, v.Unchecked = checked, left
	v.Recoveries, v.Beheaded = e.recoveries(sections)
	v.Looks, v.Ambiguous, v.Endured = e.Looks, e.ambiguous(), e.endured(sections)
	if e.Mode == schedule.Calm {
		v.Handovers = e.handovers(sections)
	}
	lingering := e.lingering(sections)
	overran, overruns := e.overruns(sections)
	v.Lingering, v.Overruns = len(lingering), overran
	v.Violations = append(append(append(fence, stale...), late...), history...)
	if e.Mode != schedule.Beyond {
		lost := e.falseLosses(sections)
		v.FalseLosses = len(lost)
		v.Violations = append(append(append(over, v.Violations...), lost...), e.unfenced(sections)...)
	} else {
		slices.SortFunc(over, func(a, b Violation) int { return compare(a.From, b.From) })
		v.Noted = over[:min(len(over), 20)]
	}
	ghosts := e.ghosts(sections)
	v.Ghosts = len(ghosts)
	v.Violations = append(append(v.Violations, e.idle(sections)...), ghosts...)
	v.Violations = append(append(v.Violations, lingering...), overruns...)
	v.Violations = append(append(v.Violations, e.rate(v.Sections, minRate)...), v.judgeCalls(e, sections)...)
	v.Stalls = e.excuse(v.Violations)
	v.Violations = onePerIdleTime(v.Violations)
	return v
}

// judgeCalls judges what callers ask for besides the key, and what one master does to others.
func (v *Verdict) judgeCalls(e *Evidence, sections []*Section) (found []Violation) {
	again, n := e.reentries(sections)
	others, m := e.slowed(sections)
	v.Reentries, v.Others = n, m
	return slices.Concat(again, others, e.overstayed(sections), e.cutShort(sections), e.gone(sections), leases(sections), e.overlong(sections), e.slowCloses(), e.slowUnlocks(sections), e.failures(sections), e.refusals(sections), e.stuck(), e.unconfirmed(), e.denied(sections))
}

// keptByPlan says whether a claim is one with a least hold that Close has left to its lease, or that its holder has.
func (e *Evidence) keptByPlan(sections []*Section, g Ghost) bool {
	return slices.ContainsFunc(sections, func(s *Section) bool {
		least := s.Enter + s.Plan.MinHold
		if s.Plan.Leave && s.Key == g.Key && s.Fence == g.Token {
			return int64(g.Left) <= s.longest()
		}
		return s.Key == g.Key && s.Fence == g.Token && s.Plan.MinHold > 0 && e.closing(s.Worker, s.Enter, least)
	})
}

// lostGhost says whether a claim is one whose release was lost in a failover.
func (e *Evidence) lostGhost(sections []*Section, g Ghost) bool {
	stored, granted := StoredClaim{Before: math.MaxInt64, Token: g.Token}, false
	for _, s := range sections {
		if s.Key == g.Key && s.Fence == g.Token && s.Enter != 0 {
			granted = true
			if e.releaseLost(s, nil, stored) {
				return true
			}
		}
	}
	if granted {
		return false
	}
	if one := together(sections, g.Purpose, g.Key); one != nil {
		return e.releaseLost(nil, one, stored)
	}
	pids := e.pids()
	return slices.ContainsFunc(sections, func(s *Section) bool {
		ofIt := s.Key == g.Key && pids[s.Worker] == g.PID && s.Plan.Together == "" && (g.Purpose == "" || g.Purpose == s.Attempt)
		try := strings.HasPrefix(s.Verb, "try-") || (s.Plan.HasWait && s.Plan.Wait == 0)
		refused := try && s.Failed == dlock.ErrLockHeldByOther.Error() // nothing was stored
		return ofIt && s.Enter == 0 && s.Failed != "" && !refused && s.end()+e.longestLease() >= e.To && e.releaseLost(nil, s, stored)
	})
}

// ghostStory describes the attempt that was granted what is left.
func (e *Evidence) ghostStory(sections []*Section, g Ghost) string {
	for _, s := range sections {
		if s.Key != g.Key || s.Fence != g.Token || s.Enter == 0 {
			continue
		}
		before := func(at int64) time.Duration { return time.Duration(e.To - at).Round(time.Millisecond) }
		story := fmt.Sprintf("; %s got it by %s %v before the end, with %+v, left it %v and gave it back %v before the end with %q",
			s.Attempt, s.Verb, before(s.Enter), s.Plan, before(s.Exit), before(s.Released), s.Unlock)
		for _, c := range e.closings[s.Worker] {
			story += fmt.Sprintf("; a Client was closed from %v to %v before", before(c.from), before(c.to))
		}
		for _, ev := range e.Events {
			if ev.Kind == event.Logged && ev.Worker == s.Worker && strings.Contains(ev.Note, g.Key) {
				story += fmt.Sprintf("; logged %v before: %s", before(ev.At), ev.Note)
			}
		}
		return story
	}
	return fmt.Sprintf("; no attempt was given its token %d; its purpose is %q", g.Token, g.Purpose)
}

func (e *Evidence) ghosts(sections []*Section) (found []Violation) {
	for _, g := range e.Ghosts {
		if g.Left > 0 && (e.keptByPlan(sections, g) || e.lostGhost(sections, g)) {
			continue
		}
		why := fmt.Sprintf("a %s claim of process %d, which had closed its Client, is left for %v", g.Phase, g.PID, g.Left)
		if g.Left <= 0 {
			why = fmt.Sprintf("a %s claim of process %d has no end", g.Phase, g.PID)
		}
		why += e.ghostStory(sections, g)
		found = append(found, Violation{Oracle: "ghost", Key: g.Key, Detail: why})
	}
	return found
}

// rate refuses trials in which too little happened to prove anything.
func (e *Evidence) rate(sections int, least float64) []Violation {
	got := float64(sections) / time.Duration(e.To-e.From).Seconds()
	if got >= least {
		return nil
	}
	return []Violation{{
		Oracle: "rate", From: e.From, To: e.To, reached: got / least,
		Detail: fmt.Sprintf("%.1f sections per second, at least %.1f are needed", got, least),
	}}
}
