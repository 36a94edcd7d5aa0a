package oracle

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ceyewan/genesis/lab/internal/schedule"
)

// MaxHistory is how many operations on one key the checker is given. The other
// oracles see those that come after.
const MaxHistory = 2000

const (
	checkTimeout = 20 * time.Second
	never        = math.MaxInt64
)

// An operation is what the model of a lock knows. An acquire that was granted has
// its fence as the output.
type operation struct {
	kind  opKind
	owner int
	limit int // of holders at a time: 1 for an exclusive lock, 0 for readers
}

type opKind uint8

const (
	acquire opKind = iota
	release        // that was confirmed: the lock was the owner's until then
	// end is the end of a lock that may come at any time from then on.
	end
	// grant is an acquire of a lock that may end at any time.
	grant
	// again is a call by the owner for what it has, which gets the token that it has.
	again
)

// A lockState is the holder of a lock. Those that share it are in others, in a form that can be
// compared.
type lockState struct {
	owner  int // 0: free, or shared
	fence  int64
	limit  int
	others string
}

// holds says whether an owner is among the holders.
func (s lockState) holds(owner int) bool {
	return s.owner == owner || strings.Contains(s.others, member(owner))
}

// without is the state after one of the holders left.
func (s lockState) without(owner int) lockState {
	if s.owner == owner {
		return lockState{fence: s.fence}
	}
	s.others = strings.Replace(s.others, member(owner), "", 1)
	if s.others == "" {
		return lockState{fence: s.fence}
	}
	return s
}

// with is the state after another entered, and whether there was room.
func (s lockState) with(op operation, fence int64) (bool, lockState) {
	free := s.owner == 0 && s.others == ""
	if op.limit == 1 {
		return free && fence > s.fence, lockState{owner: op.owner, fence: fence}
	}
	room := free || (s.owner == 0 && s.limit == op.limit && (op.limit == 0 || strings.Count(s.others, ";") < op.limit))
	all := append(strings.SplitAfter(s.others, ";"), member(op.owner))
	slices.Sort(all)
	return room && fence > s.fence, lockState{fence: fence, limit: op.limit, others: strings.Join(all, "")}
}

func member(owner int) string { return fmt.Sprintf(" %d;", owner) }

// model is a lock whose grants carry growing tokens.
var model = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, output any) (bool, any) {
		s, op := state.(lockState), input.(operation)
		switch op.kind {
		case acquire:
			return s.with(op, output.(int64))
		case release:
			return s.holds(op.owner), s.without(op.owner)
		case grant:
			fence := output.(int64)
			return fence > s.fence, lockState{fence: fence}
		case end:
			if s.holds(op.owner) {
				return true, s.without(op.owner)
			}
		case again:
			return s.owner == op.owner && output.(int64) == s.fence, s
		}
		return true, s
	},
}

// History checks each key against the model and returns how many operations it
// checked and how many it had to leave out.
func (e *Evidence) history(sections []*Section) (found []Violation, checked, left int) {
	for key, group := range byKey(sections, false) {
		slices.SortFunc(group, func(a, b *Section) int { return compare(a.Call, b.Call) })
		var ops []porcupine.Operation
		for i, s := range group {
			ops = append(ops, e.operations(i+1, s)...)
		}
		if len(ops) > MaxHistory {
			left += len(ops) - MaxHistory
			ops = truncate(ops)
		}
		checked += len(ops)
		switch porcupine.CheckOperationsTimeout(model, ops, checkTimeout) {
		case porcupine.Illegal:
			found = append(found, Violation{Oracle: "history", Key: key, From: e.From, To: e.To, Detail: fmt.Sprintf("%d operations are not those of a lock", len(ops))})
		case porcupine.Unknown:
			found = append(found, Violation{Oracle: "history", Key: key, Detail: fmt.Sprintf("%d operations could not be checked within %v", len(ops), checkTimeout)})
		default:
		}
	}
	return found, checked, left
}

// truncate keeps the operations that began first. An end that is cut off does no
// harm: whatever came after it is cut off as well, but what had begun before it must
// not be missed, so all ends of the kept acquires stay.
func truncate(ops []porcupine.Operation) []porcupine.Operation {
	kept := map[int]bool{}
	var out []porcupine.Operation
	for _, op := range ops {
		in := op.Input.(operation)
		if in.kind != release && in.kind != end && in.kind != again && len(out) < MaxHistory-2 {
			kept[in.owner] = true
		}
		if kept[in.owner] {
			out = append(out, op)
		}
	}
	return out
}

// operations are what one attempt means to the model. Beyond the assumptions a lock
// may end at any time after it was granted, which may be before its holder knows of
// it, and only its token is judged. A lock that is not released by a call that says so, by
// Do, with a least hold, by an Unlock that does not wait, by its lease or by Close, ends at some time after the section. An attempt without
// a grant means nothing: if it had the lock without knowing, that had ended before the next
// grant, so whatever is allowed with it is allowed without. The same holds for what a call for
// several keys had, and gave up, before it was granted all.
func (e *Evidence) operations(owner int, s *Section) []porcupine.Operation {
	op := func(kind opKind, from, to int64, fence int64) porcupine.Operation {
		return porcupine.Operation{ClientId: owner, Input: operation{kind, owner, s.limit()}, Call: from, Output: fence, Return: to}
	}
	if s.Enter == 0 {
		return nil
	}
	if e.Mode == schedule.Beyond {
		return []porcupine.Operation{op(grant, s.Asked, s.Enter, s.Fence)}
	}
	all := []porcupine.Operation{op(acquire, s.Call, s.Enter, s.Fence)}
	for _, a := range s.Again {
		if a.Note == "" && (!s.Lost || a.At < s.Learned) && (!s.Parted || a.At < s.Exit) {
			all = append(all, op(again, a.At-a.Dur, a.At, a.Fence))
		}
	}
	confirmed := s.Released != 0 && s.Unlock == "" && s.Verb != "do" && s.Verb != "do-all" && s.Plan.MinHold == 0 && !s.Plan.Async && !s.Plan.Leave
	if confirmed && !s.Lost && !s.Parted {
		return append(all, op(release, s.Exit, s.Released, 0))
	}
	return append(all, op(end, max(s.Exit, s.Call), never, 0))
}

// limit is how many may hold the lock together.
func (s *Section) limit() int {
	if s.Plan.Mode == "" {
		return 1
	}
	return s.Plan.Limit
}
