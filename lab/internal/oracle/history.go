package oracle

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// MaxHistory is how many operations on one key the checker is given. The other
// oracles see those that come after.
const MaxHistory = 2000

const (
	checkBound = 20 * time.Second
	never      = math.MaxInt64
)

// An operation is what the model of a lock knows. An acquire that was granted has
// its fence as the output.
type operation struct {
	kind  opKind
	owner int
}

type opKind uint8

const (
	acquire opKind = iota
	release        // that was confirmed: the lock was the owner's until then
	// end is the end of a lock that may come at any time from then on.
	end
	// maybe is an acquire without an answer. If it was granted it has ended since,
	// before anybody else was: it allows everything that is allowed without it.
	maybe
	// grant is an acquire of a lock that may end at any time.
	grant
)

type lockState struct {
	owner int // 0: free
	fence int64
}

// model is a lock whose grants carry growing tokens.
var model = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, output any) (bool, any) {
		s, op := state.(lockState), input.(operation)
		switch op.kind {
		case acquire:
			fence := output.(int64)
			return s.owner == 0 && fence > s.fence, lockState{op.owner, fence}
		case release:
			return s.owner == op.owner, lockState{0, s.fence}
		case grant:
			fence := output.(int64)
			return fence > s.fence, lockState{0, fence}
		case end:
			if s.owner == op.owner {
				return true, lockState{0, s.fence}
			}
		case maybe:
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
		switch porcupine.CheckOperationsTimeout(model, ops, checkBound) {
		case porcupine.Illegal:
			found = append(found, Violation{Oracle: "history", Key: key, From: e.From, To: e.To, Detail: fmt.Sprintf("%d operations are not those of a lock", len(ops))})
		case porcupine.Unknown:
			found = append(found, Violation{Oracle: "history", Key: key, Detail: fmt.Sprintf("%d operations could not be checked within %v", len(ops), checkBound)})
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
		if in.kind != release && in.kind != end && len(out) < MaxHistory-2 {
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
// it, and only its token is judged.
func (e *Evidence) operations(owner int, s *Section) []porcupine.Operation {
	op := func(kind opKind, from, to int64, fence int64) porcupine.Operation {
		return porcupine.Operation{ClientId: owner, Input: operation{kind, owner}, Call: from, Output: fence, Return: to}
	}
	if s.Enter == 0 {
		if s.Failed == dlock.ErrLockHeldByOther.Error() {
			return nil
		}
		return []porcupine.Operation{op(maybe, s.Call, never, 0)}
	}
	granted := op(acquire, s.Call, s.Enter, s.Fence)
	switch {
	case e.Mode == schedule.Beyond:
		return []porcupine.Operation{op(grant, s.Call, s.Enter, s.Fence)}
	case s.Released != 0 && s.Unlock == "" && !s.Lost:
		return []porcupine.Operation{granted, op(release, s.Exit, s.Released, 0)}
	}
	return []porcupine.Operation{granted, op(end, s.Exit, never, 0)}
}
