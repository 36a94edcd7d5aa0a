// Package oracle judges what happened in a trial.
package oracle

import (
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/store"
	"github.com/ceyewan/genesis/lab/internal/watch"
)

// Evidence is everything that is known of a trial.
type Evidence struct {
	Topology string
	Mode     schedule.Mode
	TTL      time.Duration
	Setup    schedule.Setup
	From, To int64 // when workers were at work
	Events   []event.Event
	Faults   []Struck
	Writes   []store.Write
	Counts   store.Counts
	Lost     []store.LostUpdate // of the unfenced store
	Deaths   []watch.Death
	Ghosts   []Ghost
	Stuck    []Stuck
	Stored   []StoredClaim
	Looks    int // how often the lab looked at what is stored

	closings map[string][]closing // by worker
}

// A Struck fault is one that was carried out.
type Struck struct {
	schedule.Fault
	From, To int64
	Hit      int64  // when it had been carried out
	Worker   string // the one it struck, if it struck a worker
}

// A Ghost is a claim that was stored though its process had closed its Client in
// good order, or one that has no end (nothing Left).
type Ghost struct {
	Key     string
	PID     int
	Phase   string
	Token   int64
	Purpose string // by which its owner named it
	Left    time.Duration
}

// A Stuck worker was told to end at From, and had to be killed, at To.
type Stuck struct {
	Worker   string
	From, To int64
}

// A Violation is something that must not happen. From and To are when.
type Violation struct {
	Oracle string `json:"oracle"`
	Key    string `json:"key,omitempty"`
	Detail string `json:"detail"`
	From   int64  `json:"from,omitempty"`
	To     int64  `json:"to,omitempty"`
	// Stalled: the machine did not give a process its time around then, so that
	// the trial was not inside the assumptions.
	Stalled bool `json:"stalled,omitempty"`
	// Workers are the processes whose doing it may be.
	Workers []string `json:"workers,omitempty"`

	writers bool    // those that overlap both write
	claim   string  // that is left, the same each time it is seen
	at      int64   // when it became a violation; 0: From
	reached float64 // how much of what is needed there was, if that is what is wrong
}

// A Section is one attempt: a call for a lock and what came of it.
type Section struct {
	Attempt, Key, Worker string
	Verb                 string
	Plan                 event.Plan
	Call                 int64
	Asked                int64 // when its lock was asked for: by the first of a turn; see turns
	Patience             int64 // how long the call may take
	Sent                 int64 // when the call that was granted at once was sent; 0: not known
	Enter                int64 // 0: never
	Exit                 int64 // or when its process was killed
	Learned              int64 // of the loss; Exit if there was none
	Released             int64 // 0: never returned
	Releasing            int64 // since when; Exit if it never returned
	Fence                int64
	Failed, Unlock       string // errors
	Lost, Killed         bool
	Parted               bool          // its own process closed the Client meanwhile
	Again                []event.Event // calls inside for the same key
	Extended             []event.Event
	Leased               string // the error of a call for its lease
}

// A grantKey names a grant: its key, its token, and who got it.
type grantKey struct {
	key    string
	fence  int64
	worker string
}

// Sections puts the events of each attempt together.
func (e *Evidence) Sections() []*Section {
	var all []*Section
	byAttempt := map[string]*Section{}
	open := map[string]map[*Section]bool{} // by worker
	sent := map[grantKey]int64{}
	for _, ev := range e.Events {
		if ev.Kind == event.Granted {
			sent[grantKey{ev.Key, ev.Fence, ev.Worker}] = ev.At - ev.Dur
		}
		if ev.Kind == event.Call {
			s := &Section{Attempt: ev.Attempt, Key: ev.Key, Worker: ev.Worker, Verb: ev.Verb, Call: ev.At, Asked: ev.At, Patience: ev.Dur}
			if ev.Plan != nil {
				s.Plan = *ev.Plan
			}
			all, byAttempt[ev.Attempt] = append(all, s), s
			if open[ev.Worker] == nil {
				open[ev.Worker] = map[*Section]bool{}
			}
			open[ev.Worker][s] = true
			continue
		}
		if s := byAttempt[ev.Attempt]; s != nil {
			if ev.Kind == event.Enter {
				s.Sent = sent[grantKey{ev.Key, ev.Fence, ev.Worker}]
			}
			if s.take(ev) {
				delete(open[ev.Worker], s)
			}
		}
	}
	for worker, left := range open {
		at := e.killed(worker)
		for s := range left {
			s.die(at)
		}
	}
	return all
}

// take applies an event and reports whether it was the last of the attempt.
func (s *Section) take(ev event.Event) (last bool) {
	switch ev.Kind {
	case event.Enter:
		s.Enter, s.Fence = ev.At, ev.Fence
	case event.Exit:
		s.Exit, s.Learned, s.Lost, s.Parted = ev.At, ev.At-ev.Dur, ev.Note == event.Lost, ev.Note == event.Parted
	case event.Again:
		s.Again = append(s.Again, ev)
	case event.Leased:
		s.Leased = ev.Note
	case event.Extended:
		s.Extended = append(s.Extended, ev)
	case event.Failed:
		s.Failed = ev.Note
		s.Exit = ev.At
		return true
	case event.Released:
		s.Released, s.Releasing, s.Unlock = ev.At, ev.At-ev.Dur, ev.Note
		return true
	default:
	}
	return false
}

// die ends an attempt whose process ended. What it had not done by then it never did.
func (s *Section) die(at int64) {
	s.Killed = true
	if s.Exit == 0 {
		s.Exit, s.Learned = at, at
	}
	s.Releasing = s.Exit
}

// killed is when a worker was killed, or the end of the trial.
func (e *Evidence) killed(worker string) int64 {
	for _, f := range e.Faults {
		if f.Kind.Kills() && f.Worker == worker {
			return f.From
		}
	}
	return e.To
}

// byKey groups the attempts that were granted, or all of them.
func byKey(sections []*Section, granted bool) map[string][]*Section {
	groups := map[string][]*Section{}
	for _, s := range sections {
		if !granted || s.Enter != 0 {
			groups[s.Key] = append(groups[s.Key], s)
		}
	}
	return groups
}

// allowing is when a worker must have done what it has to do by a time: later if it was stopped
// then, or just before.
func (e *Evidence) allowing(worker string, by int64) int64 {
	for moved := true; moved; {
		moved = false
		for _, f := range e.Faults {
			awake := f.To + int64(slack)
			if f.Worker == worker && !f.Kind.Kills() && f.From <= by && awake > by {
				by, moved = awake, true
			}
		}
	}
	return by
}

// asleep says whether a worker was stopped at some time in an interval.
func (e *Evidence) asleep(worker string, from, to int64) bool {
	for _, f := range e.Faults {
		if f.Worker == worker && !f.Kind.Kills() && f.From <= to && f.To >= from {
			return true
		}
	}
	return false
}
