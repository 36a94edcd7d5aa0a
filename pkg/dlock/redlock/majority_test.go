package redlock

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// threeNodes returns a driver that calls no node: the test provides their answers, and what is to
// be removed from them stays in their lists.
func threeNodes() *redDriver {
	d := &redDriver{
		EventQueue: driver.NewEventQueue(4), majority: 2, nodes: []*node{{at: 0, sweeping: true}, {at: 1, sweeping: true}, {at: 2, sweeping: true}},
		claims: map[claimID]*claim{}, queues: map[string]*waitQueue{}, released: map[string]struct{}{},
	}
	d.workers.work = &d.work
	return d
}

// Only a majority decides a renewal.
func TestMajorityDecidesARenewal(t *testing.T) {
	const yes, no = true, false
	held, gone := driver.State{Phase: driver.Held, Token: 5}, driver.State{Phase: driver.Gone}
	for _, tt := range []struct {
		name string
		says []bool
		want driver.State
	}{
		{"one has it", []bool{yes}, driver.State{}},
		{"a majority has it", []bool{yes, yes}, held},
		{"a majority has it after all", []bool{no, yes, yes}, held},
		{"one lacks it", []bool{no}, driver.State{}},
		{"nodes differ", []bool{yes, no}, driver.State{}},
		{"a majority lacks it", []bool{no, no}, gone},
		{"a majority lacks it in the end", []bool{no, yes, no}, gone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := threeNodes()
			c := &claim{key: "k", id: "id", phase: driver.Held, token: 5, ttl: time.Minute, open: make([]int, 3)}
			d.claims[claimID{"k", "id"}] = c
			r := &renewal{driver: d, refs: []driver.Ref{{Key: "k", ID: "id", TTL: time.Minute}}, claims: []*claim{c}, states: make([]driver.State, 1)}
			h := &holding{renewal: r, batch: []int{0}, polls: make([]poll, 1), sent: time.Now()}
			for _, has := range tt.says {
				if has {
					h.polls[0].yes = append(h.polls[0].yes, 0)
				} else {
					h.polls[0].no++
				}
				h.decide(0)
			}
			got := r.states[0]
			if got.Phase != tt.want.Phase || got.Token != tt.want.Token || h.isDecided() != (got.Phase != driver.Unknown) {
				t.Errorf("%v with token %d, decided %v, want %v with token %d", got.Phase, got.Token, h.isDecided(), tt.want.Phase, tt.want.Token)
			}
			if (got.Phase == driver.Held) != got.Until.After(h.sent) {
				t.Errorf("%v until %v", got.Phase, got.Until.Sub(h.sent))
			}
			if kept := len(d.claims) > 0; kept != (got.Phase != driver.Gone) {
				t.Errorf("%v, and the driver keeps it: %v", got.Phase, kept)
			}
			for _, n := range d.nodes {
				if removes := len(n.leftover) > 0; removes != (got.Phase == driver.Gone) {
					t.Errorf("%v, and node %d is to remove it: %v", got.Phase, n.at, removes)
				}
			}
		})
	}
}

// The result of a release is certain when a majority agrees. If nodes failed and the others differ,
// the claim may have been held.
func TestMajorityDecidesARelease(t *testing.T) {
	for _, tt := range []struct {
		name                     string
		held, queued, gone, left int
		want                     driver.Phase // Unknown: not decided
	}{
		{"a majority had it", 2, 0, 0, 1, driver.Held},
		{"one had it", 1, 0, 0, 2, driver.Unknown},
		{"one had it, the others failed", 1, 0, 0, 0, driver.Unknown},
		{"nodes differ", 1, 0, 1, 1, driver.Unknown},
		{"nodes differ, and the last failed", 1, 0, 1, 0, driver.Held},
		{"a majority did not have it", 1, 0, 2, 0, driver.Gone},
		{"one showed that it waits", 0, 1, 1, 1, driver.Queued},
		{"one showed it, another had it", 1, 1, 0, 1, driver.Unknown},
		{"one did not have it", 0, 0, 1, 2, driver.Unknown},
		{"one did not have it, the others failed", 0, 0, 1, 0, driver.Unknown},
		{"all failed", 0, 0, 0, 0, driver.Unknown},
	} {
		m := &removal{driver: threeNodes(), held: tt.held, queued: tt.queued, gone: tt.gone}
		st, sure := m.verdict(tt.left)
		if st.Phase != tt.want || sure != (tt.want != driver.Unknown) {
			t.Errorf("%s: %v, certain %v, want %v", tt.name, st.Phase, sure, tt.want)
		}
	}
}

// A round is won when a majority has accepted the token while the claim is valid, and continues
// only as long as a majority is possible.
func TestMajorityDecidesARound(t *testing.T) {
	const waits, wins, late, split, held, fails, hasTombstone = "goes on", "won", "too late", "split", "held by another", "no quorum", "tombstoned"
	for _, tt := range []struct {
		name      string
		votes     []ballot
		owners    map[string]int
		impatient bool
		late      bool
		want      string
	}{
		{"none has answered", []ballot{pending, pending, pending}, nil, false, false, waits},
		{"a majority has the claim only", []ballot{stored, stored, pending}, nil, false, false, waits},
		{"one has the token", []ballot{confirmed, confirming, stored}, nil, false, false, waits},
		{"a majority has the token", []ballot{confirmed, confirmed, taken}, map[string]int{"a": 1}, false, false, wins},
		{"a majority has the token when it is over", []ballot{confirmed, confirmed, confirmed}, nil, false, true, late},
		{"a majority has another claim", []ballot{taken, taken, pending}, map[string]int{"a": 2}, false, false, held},
		{"a majority has others", []ballot{taken, taken, pending}, map[string]int{"a": 1, "b": 1}, false, false, split},
		{"a majority has another claim, one has ours", []ballot{taken, taken, stored}, map[string]int{"a": 2}, false, false, split},
		{"nodes differ", []ballot{stored, taken, pending}, map[string]int{"a": 1}, false, false, waits},
		{"nodes differ, and the last is slow", []ballot{stored, taken, pending}, map[string]int{"a": 1}, true, false, split},
		{"nodes differ, and the last failed", []ballot{stored, taken, failed}, map[string]int{"a": 1}, false, false, split},
		{"one may yet name the holder", []ballot{taken, failed, pending}, map[string]int{"a": 1}, false, false, waits},
		{"a majority failed", []ballot{failed, failed, pending}, nil, false, false, waits},
		{"a majority failed, and the last is slow", []ballot{failed, failed, pending}, nil, true, false, fails},
		{"a majority failed, one has the claim", []ballot{failed, failed, stored}, nil, false, false, fails},
		{"one has its tombstone", []ballot{confirmed, confirmed, tombstoned}, nil, false, false, hasTombstone},
	} {
		d := threeNodes()
		r := &round{driver: d, claim: &claim{}, votes: tt.votes, owners: tt.owners, impatient: tt.impatient, token: 9, until: time.Now().Add(time.Hour)}
		if tt.late {
			r.until = time.Now()
		}
		for _, v := range tt.votes {
			if v == failed {
				r.tally.add(errSilent)
			}
		}
		out, over := r.verdict()
		var got string
		switch {
		case !over:
			got = waits
		case errors.Is(out.err, ErrLeaseExpired):
			got = late
		case errors.Is(out.err, ErrNoQuorum):
			got = fails
		case out.tombstoned:
			got = hasTombstone
		case out.won && out.token == 9 && out.until.Equal(r.until):
			got = wins
		case out.split:
			got = split
		case !out.won:
			got = held
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// Only a held and valid lock is stored on nodes that lack it: a lock that was released or has
// expired must not be stored again.
func TestOnlyWhatIsHeldIsFilledIn(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*redDriver, *claim)
		ok     bool
	}{
		"held":                {func(*redDriver, *claim) {}, true},
		"released":            {func(_ *redDriver, c *claim) { c.phase = driver.Gone }, false},
		"waiting":             {func(_ *redDriver, c *claim) { c.phase = driver.Queued }, false},
		"run out":             {func(_ *redDriver, c *claim) { c.until = time.Now().Add(-time.Second) }, false},
		"less than 1 ms left": {func(_ *redDriver, c *claim) { c.until = time.Now().Add(900 * time.Microsecond) }, false},
		"closed":              {func(d *redDriver, _ *claim) { d.closed = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := threeNodes()
				c := &claim{key: "k", id: "id", phase: driver.Held, token: 5, until: time.Now().Add(time.Second), open: make([]int, 3)}
				tt.change(d, c)
				left, token, number, ok := d.openFill(c, d.nodes[2:])
				if ok != tt.ok || (ok && (left != time.Second || token != 5 || number != d.rounds.Load())) {
					t.Errorf("%v, with token %d for %v in round %d", ok, token, left, number)
				}
				if opened := c.open[2] > 0; opened != ok || c.open[0]+c.open[1] > 0 {
					t.Errorf("calls under way: %v", c.open)
				}
			})
		})
	}
}

// A renewal that shortens a lease may arrive late on any node. Until it cannot arrive any more, a node
// counts with no more than that, however long the later renewals are.
func TestShorterLeaseCountsUntilItCannotArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := threeNodes()
		c := &claim{key: "k", id: "id", phase: driver.Held, token: 5, ttl: time.Hour}
		send := func(ttl time.Duration) (p *poll, arrived func(nodes ...int), renewed func(want time.Duration, nodes ...int)) {
			time.Sleep(time.Nanosecond)
			sent := time.Now()
			_, _, shorter := d.renewing(c, ttl)
			arrived = func(nodes ...int) {
				for _, n := range nodes {
					d.arrived(shorter, d.nodes[n])
				}
			}
			return &poll{shorter: shorter}, arrived, func(want time.Duration, nodes ...int) {
				t.Helper()
				st := d.renewed(c, driver.Ref{Key: "k", ID: "id", TTL: ttl}, sent, nodes)
				lease := want
				if want == ttl {
					lease = 0
				}
				if got := st.Until.Sub(sent); st.Phase != driver.Held || got != want-expiryRounding || st.Lease != lease {
					t.Errorf("renewed for %v by %v: %v for %v with a lease of %v, want %v", ttl, nodes, st.Phase, got, st.Lease, want-expiryRounding)
				}
			}
		}
		renew := func(ttl, want time.Duration, nodes ...int) {
			t.Helper()
			p, _, renewed := send(ttl)
			renewed(want, nodes...)
			d.drained(c, p)
		}
		renew(time.Hour, time.Hour, 0, 1)

		p, arrived, renewed := send(time.Minute)
		renewed(time.Minute, 0, 1)
		arrived(0, 1)
		d.drained(c, p)
		renew(time.Hour, time.Hour, 0, 1)            // a majority without the third, at which the shorter one may still arrive
		renew(time.Hour, time.Minute, 0, 2)          // and with it
		renew(time.Hour, time.Hour, 0, 1, 2)         // the other two are a majority
		renew(10*time.Minute, time.Minute, 2, 1)     // this one is shorter as well, and no answer to it is recorded
		renew(time.Hour, 10*time.Minute, 0, 1)       // so it may follow everywhere
		renew(time.Hour, time.Minute, 1, 2)          // and the first one at the third
		time.Sleep(driver.TombstoneTTL(time.Minute)) // the first one cannot
		renew(time.Hour, 10*time.Minute, 1, 2)
		time.Sleep(driver.TombstoneTTL(10 * time.Minute))
		renew(time.Hour, time.Hour, 1, 2)
		if len(c.shorter) > 0 {
			t.Errorf("%d shorter calls are left", len(c.shorter))
		}

		first, arrived, _ := send(time.Second)
		second, _, renewed := send(time.Hour)
		arrived(0, 1, 2)
		d.drained(c, first)
		renewed(time.Second, 0, 1, 2) // at some nodes, the first may have arrived after the second
		d.drained(c, second)
		renew(time.Hour, time.Hour, 0, 1)
	})
}

// A waiter that has missed its heartbeat is gone, also behind one that has not. It is removed from
// every node.
func TestLateWaiterBehindALivingOneIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := threeNodes()
		q := &waitQueue{key: "k"}
		d.queues["k"] = q
		ref := func(id string) driver.Ref { return driver.Ref{Key: "k", ID: id, TTL: time.Minute} }
		for _, n := range d.nodes {
			n.sweeping = true // so that what is to be removed stays to be seen
		}
		for _, id := range []string{"first", "second"} {
			c := &claim{key: "k", id: id, waits: true, phase: driver.Queued, ttl: time.Minute, open: make([]int, 3)}
			c.until = time.Now().Add(driver.Heartbeat(c.ttl))
			d.claims[claimID{"k", id}] = c
			q.waiting = append(q.waiting, c)
		}
		sort := func(refs ...driver.Ref) (r *renewal, firsts, others []int) {
			r = &renewal{driver: d, refs: refs, claims: make([]*claim, len(refs)), states: make([]driver.State, len(refs))}
			_, firsts, others = r.sort()
			return r, firsts, others
		}
		time.Sleep(driver.Heartbeat(time.Minute) - 1)
		if _, firsts, others := sort(ref("first")); len(firsts) != 1 || len(others) != 0 {
			t.Fatalf("%d try and %d wait on, want the first to try", len(firsts), len(others))
		}
		time.Sleep(time.Nanosecond)
		r, firsts, others := sort(ref("second"), ref("first"))
		if r.states[0].Phase != driver.Gone || len(firsts) != 1 || firsts[0] != 1 || len(others) != 0 {
			t.Errorf("the second is %v; %v try and %v wait on, want it gone and the first to try", r.states[0].Phase, firsts, others)
		}
		for i, n := range d.nodes {
			if len(n.leftover) != 1 || n.leftover[0].id != "second" {
				t.Errorf("node %d is to remove %v", i, n.leftover)
			}
		}
	})
}
