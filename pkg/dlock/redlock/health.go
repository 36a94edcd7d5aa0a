package redlock

import (
	"fmt"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// errSilent: a call was not sent, because the node did not answer the previous ones.
var errSilent = driver.Classify(fmt.Errorf("%w: the server has not answered lately", driver.ErrUnavailable), driver.Transient)

const (
	// silentAfter is the number of consecutive unanswered calls after which a node counts as
	// silent.
	silentAfter = 3
	// probeSoonest and probeLatest limit how often a silent node is tried: less often the longer it
	// is silent.
	probeSoonest = 20 * time.Millisecond
	probeLatest  = 250 * time.Millisecond
)

// A health keeps calls away from a node that does not answer: each call would cost a connection and
// a timeout, and with many locks that exceeds all other costs. One call at a time is still sent,
// and the first answer ends the restriction.
type health struct {
	mu       sync.Mutex
	missed   int // in a row
	underway int
	probed   time.Time
}

// admits reports whether a call may be sent.
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

// pause returns how long a silent node is not called. The caller holds mu.
func (h *health) pause() time.Duration {
	return min(probeSoonest<<min(h.missed-silentAfter, 8), probeLatest)
}

// press records a call that is sent without being admitted, because the node is needed.
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

func (h *health) record(answered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.underway--
	h.missed++
	if answered {
		h.missed = 0
	}
}

// heard records a call that did not ask for admission.
func (h *health) heard(answered bool) {
	if !answered {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.missed = 0
}
