package redlock

import (
	"fmt"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// errSilent: a call was not sent, since the node has not answered the last ones.
var errSilent = driver.Classify(fmt.Errorf("%w: the server has not answered lately", driver.ErrUnavailable), driver.Transient)

const (
	// silentAfter is how many calls in a row a node may leave unanswered.
	silentAfter = 3
	// probeSoonest and probeLatest are how often a silent node is tried at most: less
	// often the longer it is silent.
	probeSoonest = 20 * time.Millisecond
	probeLatest  = 250 * time.Millisecond
)

// A health keeps calls away from a node that does not answer: each of them would cost a
// connection and a time-out, and with many locks that is more than all the rest. One
// call at a time still goes through, and the first answer ends it.
type health struct {
	mu       sync.Mutex
	missed   int // in a row
	underway int
	probed   time.Time
}

// admits reports whether a call may go out.
func (h *health) admits() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.missed >= silentAfter {
		if h.underway > 0 || time.Since(h.probed) < h.pause() {
			return false
		}
		h.probed = time.Now()
	}
	h.underway++
	return true
}

// pause is how long a silent node is left alone. It runs under mu.
func (h *health) pause() time.Duration {
	return min(probeSoonest<<min(h.missed-silentAfter, 8), probeLatest)
}

// press is for a call that goes out without being admitted: the node is needed.
func (h *health) press() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.underway++
}

func (h *health) isSilent() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.missed >= silentAfter
}

func (h *health) note(answered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.underway--
	if h.missed++; answered {
		h.missed = 0
	}
}

// heard is note for a call that did not ask for admission.
func (h *health) heard(answered bool) {
	if !answered {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.missed = 0
}
