package faultproxy

import (
	"strings"
	"sync"
	"time"
)

// A direction is one of the two through the proxy.
type direction uint8

const (
	toServer direction = iota
	toClient
)

// faults is the current state of a proxy's faults.
type faults struct {
	mu      sync.Mutex
	now     faultSet
	changed chan struct{} // closed and replaced at every change
	healed  chan struct{} // the same, at every heal
}

// A faultSet is everything that Heal clears: its zero value is no fault.
type faultSet struct {
	directions [2]directionFaults
	refuse     bool
	late       bool // deliver what a client wrote before it closed
	mute       bool // drop published messages
	dropReply  int  // for so many requests to come
	duplicate  int  // so many requests to come
	rule       Rule
	calls      []*callFault
	callRule   CallRule
}

// directionFaults is what is wrong with one direction.
type directionFaults struct {
	delay time.Duration
	hole  bool
}

func newFaults() *faults {
	return &faults{changed: make(chan struct{}), healed: make(chan struct{})}
}

// set changes the faults and wakes all goroutines that wait under the old ones.
func (f *faults) set(change func(*faultSet)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.now)
	close(f.changed)
	f.changed = make(chan struct{})
}

// heal clears the faults.
func (f *faults) heal() {
	f.set(func(now *faultSet) {
		*now = faultSet{}
		close(f.healed)
		f.healed = make(chan struct{})
	})
}

// look returns the faults and a channel that is closed when they change.
func (f *faults) look() (faultSet, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.changed
}

// decide returns what to do with one request. args is nil if the proxy does not understand the
// bytes. The rule comes first; the counts apply to what it forwards.
func (f *faults) decide(args []string) Action {
	if state, _ := f.look(); state.rule != nil && len(args) > 0 {
		// Not under the lock: a rule may change the faults.
		cmd := append([]string{strings.ToUpper(args[0])}, args[1:]...)
		if action := state.rule(cmd); action.verb != verbForward {
			return action
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case take(&f.now.dropReply):
		return DropReply
	case take(&f.now.duplicate):
		return Twice
	default:
		return Forward
	}
}

// decideCall returns what to do with one gRPC call, and a channel that is closed when the fault is
// healed. The rule comes first.
func (f *faults) decideCall(path, mark string) (callFault, <-chan struct{}) {
	if state, _ := f.look(); state.callRule != nil {
		// Not under the lock, as in decide.
		if drop, until := state.callRule(path, mark); drop || until != nil {
			return callFault{drop: drop, until: until}, f.healing()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range f.now.calls {
		if fault.path == path && take(&fault.left) {
			return *fault, f.healed
		}
	}
	return callFault{drop: take(&f.now.dropReply)}, f.healed
}

// healing returns a channel that is closed by the next heal.
func (f *faults) healing() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.healed
}

// take counts down to zero and reports whether the count was above zero.
func take(left *int) bool {
	if *left <= 0 {
		return false
	}
	*left--
	return true
}
