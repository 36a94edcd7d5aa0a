package etcdlock

import (
	"errors"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// onTwoLeases returns a driver with a held claim that is on one lease, and possibly on another as
// well: a move there was not answered.
func onTwoLeases() (*etcdDriver, *claim) {
	now := time.Now()
	newLease := func(id int64, ttl time.Duration) *lease {
		return &lease{seconds: id, ttl: ttl, renewed: now, claims: map[string]*claim{}}
	}
	c := &claim{key: "k", id: "id", own: "k/own", lease: newLease(60, time.Minute), other: newLease(30, 30*time.Second), otherBy: now.Add(time.Minute)}
	c.phase = driver.Held
	d := &etcdDriver{
		EventQueue: driver.NewEventQueue(4), claims: map[string]*claim{c.id: c}, owns: map[string]*claim{c.own: c},
		leases: map[int64]*lease{60: c.lease, 30: c.other}, queues: map[string]*waitQueue{}, numbers: map[string]*numbers{}, leasesToRevoke: map[*lease]bool{},
	}
	d.losses.wake = make(chan struct{}, 1)
	c.number = d.number(c.key)
	c.lease.claims[c.id], c.other.claims[c.id] = c, c
	return d, c
}

// A claim that may be on either of two leases is valid until the first of them ends.
func TestClaimOnTwoLeasesIsValidUntilTheFirstEnds(t *testing.T) {
	d, c := onTwoLeases()
	if until, lease := d.until(c); !until.Equal(c.other.end()) || lease != c.other.ttl {
		t.Errorf("valid for %v more than the shorter lease, which is one of %v", until.Sub(c.other.end()), lease)
	}
	c.lease, c.other = c.other, c.lease
	if until, lease := d.until(c); !until.Equal(c.lease.end()) || lease != 0 {
		t.Errorf("valid for %v more than its lease, which is one of %v", until.Sub(c.lease.end()), lease)
	}
	c.other.ttl, c.other.renewed = c.lease.ttl, c.lease.renewed.Add(-1)
	if until, lease := d.until(c); !until.Equal(c.other.end()) || lease != 0 {
		t.Errorf("valid for %v more than the older lease, which is one of %v", until.Sub(c.other.end()), lease)
	}
	c.other = nil
	if until, _ := d.until(c); !until.Equal(c.lease.end()) {
		t.Errorf("without another lease, valid for %v more than its lease", until.Sub(c.lease.end()))
	}
}

// A claim is lost with its lease, unless it may be on another lease that is alive.
func TestClaimIsLostWithItsLastLease(t *testing.T) {
	for name, first := range map[string]func(*claim) *lease{
		"its lease first": func(c *claim) *lease { return c.lease },
		"the other first": func(c *claim) *lease { return c.other },
	} {
		d, c := onTwoLeases()
		lost := func() bool { return len(d.losses.take()) > 0 }
		a := first(c)
		d.markLeaseDead(a)
		if lost() || d.claims[c.id] != c || d.leases[a.seconds] != nil {
			t.Errorf("%s: lost while one lease lives", name)
		}
		for _, l := range []*lease{c.lease, c.other} {
			if l != a {
				d.markLeaseDead(l)
			}
		}
		if !lost() || len(d.claims) != 0 || len(d.leases) != 0 {
			t.Errorf("%s: not lost with both leases", name)
		}
	}
	d, c := onTwoLeases()
	c.other = nil
	d.markLeaseDead(c.lease)
	if len(d.losses.take()) != 1 {
		t.Error("not lost with its only lease")
	}
	d, c = onTwoLeases()
	c.other, c.phase = nil, driver.Unknown
	d.markLeaseDead(c.lease)
	if len(d.losses.take()) != 0 {
		t.Error("what was never granted is told as lost")
	}
}

// A claim is renewed if every lease that it may be on was kept alive. Another lease that is gone
// does not count, and neither does one to which a move can no longer arrive.
func TestEveryLeaseOfAClaimIsKeptAlive(t *testing.T) {
	failed := errors.New("no answer")
	for _, tt := range []struct {
		name       string
		own, other error // of their keep-alives
		late       bool  // a move cannot arrive any more
		kept, both bool  // it is renewed; it may still be on both
	}{
		{"both are kept alive", nil, nil, false, true, true},
		{"its own is not", failed, nil, false, false, true},
		{"the other is not", nil, failed, false, false, true},
		{"neither is", failed, failed, false, false, true},
		{"the other is gone", nil, errLeaseGone, false, true, false},
		{"the other does not count any more", nil, failed, true, true, false},
		{"only the other is kept alive, and does not count", failed, nil, true, false, false},
	} {
		d, c := onTwoLeases()
		r := &renewal{driver: d, sent: time.Now(), errs: map[*lease]error{}}
		if tt.late {
			r.sent = c.otherBy.Add(time.Second)
		}
		other := c.other
		for l, err := range map[*lease]error{c.lease: tt.own, c.other: tt.other} {
			if err != nil {
				r.errs[l] = err
			}
		}
		kept := r.kept(c)
		if both := c.other != nil; kept != tt.kept || both != tt.both || (len(other.claims) > 0) != tt.both {
			t.Errorf("%s: renewed %v and on both %v, want %v and %v", tt.name, kept, both, tt.kept, tt.both)
		}
	}
}

// A claim that has moved to the lease of an earlier move, which was not answered, stays listed
// there: otherwise it would not be lost with that lease, and not be swept.
func TestClaimThatHasMovedStaysListed(t *testing.T) {
	d, c := onTwoLeases()
	from, to := c.lease, c.other
	d.attach(c, to)
	r := &renewal{driver: d, sent: c.otherBy.Add(time.Second), errs: map[*lease]error{}}
	if !r.kept(c) || c.lease != to || c.other != nil || to.claims[c.id] != c || len(from.claims) > 0 {
		t.Errorf("on lease %d of %d, listed by %d and %d leases", c.lease.seconds, to.seconds, len(to.claims), len(from.claims))
	}
}
