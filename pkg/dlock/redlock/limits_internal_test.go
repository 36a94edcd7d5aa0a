package redlock

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A silent node is tried less and less often, but at least four times a second.
func TestSilentNodeIsProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h health
		for range silentAfter {
			if !h.admits() {
				t.Fatal("a call is not sent to a node that may answer")
			}
			h.record(false)
		}
		for _, want := range []time.Duration{0, 40, 80, 160, 250, 250} { // milliseconds; no probe was sent before the first
			if want > 0 {
				time.Sleep(want*time.Millisecond - time.Nanosecond)
				if h.admits() {
					t.Fatalf("a call is sent before %d ms have passed", want)
				}
				time.Sleep(time.Nanosecond)
			}
			if !h.admits() || h.admits() {
				t.Fatalf("after %d ms, not exactly one call is sent", want)
			}
			h.record(false)
		}
	})
}

// Scripts compare tokens up to 2^53 - 2 exactly.
func TestGreatestToken(t *testing.T) {
	for text, want := range map[string]bool{"9007199254740990": true, "9007199254740991": false, "-1": false, "0": true} {
		if _, ok := (&redDriver{}).token(text); ok != want {
			t.Errorf("%s is taken for a token: %v", text, ok)
		}
	}
}

// A driver that is closed starts no timer.
func TestClosedDriverStartsNothing(t *testing.T) {
	d := startQuiet(t)
	d.cancel = func() {}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nudgeLater(d.q, time.Hour); d.q.timer != nil {
		t.Error("a timer runs after Close")
	}
}

// A claim whose submission has failed is removed from the nodes that may have it, and the caller may not know of.
func TestAbandonedClaimIsRemoved(t *testing.T) {
	refused := driver.Classify(driver.ErrDenied, driver.Fatal)
	unsent := driver.Classify(&quorumError{cause: driver.ErrUnavailable}, driver.Transient)
	for _, tt := range []struct {
		name string
		err  error
		c    claim
		want bool
	}{
		{"one node may have it", refused, claim{open: []int{0, 0, 0}}, true},
		{"nothing was sent", unsent, claim{open: []int{0, 0, 0}}, false},
		{"a call may arrive", unsent, claim{open: []int{0, 1, 0}}, true},
		{"it is shown", unsent, claim{open: []int{0, 0, 0}, shown: true}, true},
		{"the caller releases it", errors.New("no answer"), claim{open: []int{0, 0, 0}}, false},
	} {
		d := threeNodes()
		d.abandon(&tt.c, tt.err)
		for _, n := range d.nodes {
			if removed := len(n.leftover) > 0; removed != tt.want {
				t.Errorf("%s: it is to be removed: %v", tt.name, removed)
			}
		}
	}
}

// What a lost round removes is announced only where it may have been announced that the lock is taken: when nodes were sent a
// token.
func TestLostRoundIsAnnouncedIfItWas(t *testing.T) {
	const channel = "dlock:p:k"
	for _, tt := range []struct {
		proposal, token int64
		want            string
	}{{7, 0, ""}, {7, 7, ""}, {7, 9, channel}, {0, 9, channel}} {
		n := &node{sweeping: true}
		r := &round{claim: &claim{names: names{channel: channel}}, proposal: tt.proposal, token: tt.token}
		if r.takeBackFrom(n); n.leftover[0].channel != tt.want {
			t.Errorf("proposal %d, token %d: announced in %q, want %q", tt.proposal, tt.token, n.leftover[0].channel, tt.want)
		}
	}
}

// A key that a plain client has locked on exactly a majority of the nodes has that holder.
func TestPlainClientHoldsWithAMajority(t *testing.T) {
	for on, want := range map[int]bool{1: false, 2: true, 3: true} {
		if _, ok := (&seen{on: on}).won(2); ok != want {
			t.Errorf("on %d nodes: %v", on, ok)
		}
	}
}

// A group that was refused is split into eight parts at most, none of which is larger than it needs to be.
func TestGroupIsSplitIntoEight(t *testing.T) {
	for n := 2; n < 40; n++ {
		parts, at := group{first: 3, end: 3 + n}.split(false), 3
		for _, p := range parts {
			if p.first != at || p.end <= p.first || p.end-p.first > (n+7)/8 {
				t.Errorf("%d claims are split into %v", n, parts)
			}
			at = p.end
		}
		if at != 3+n || len(parts) > 8 {
			t.Errorf("%d claims are split into %v", n, parts)
		}
	}
}

// The places in a queue begin behind the holder.
func TestPlacesInAQueue(t *testing.T) {
	d := startQuiet(t)
	next := &claim{}
	d.q.waiting = append(d.q.waiting, next)
	if first, second := d.q.ahead(d.c), d.q.ahead(next); first != 1 || second != 2 {
		t.Errorf("%d and %d are ahead", first, second)
	}
}

// A queue that nobody uses any more is forgotten when its holder has released the lock.
func TestFreedQueueIsForgotten(t *testing.T) {
	d := startQuiet(t)
	d.q.waiting, d.q.holder = nil, d.c
	d.q.users = 0
	d.freed(d.c, "k", &removal{})
	if len(d.queues) != 0 {
		t.Error("the queue is kept")
	}
}

// Of claims that wait, the oldest is shown first.
func TestOldestIsShownFirst(t *testing.T) {
	s := snapshot{claims: map[string]*seen{}}
	for id, age := range map[string]time.Duration{"a": time.Second, "b": 3 * time.Second, "c": 2 * time.Second} {
		s.claims[id] = &seen{Claim: driver.Claim{ID: id, Age: age, Phase: driver.Queued}, on: 1, leases: []time.Duration{time.Minute}}
	}
	var order string
	for _, c := range s.show(2, 0) {
		order += c.ID
	}
	if order != "bca" {
		t.Errorf("shown in the order %s", order)
	}
}

// A subscription that has ended takes no more channels.
func TestEndedSubscriptionWantsNothing(t *testing.T) {
	e := &startListening(t).nodes[0].subscription
	e.close()
	if e.want("another"); !e.wanted["another"].IsZero() {
		t.Error("a channel is wanted that nobody receives")
	}
}
