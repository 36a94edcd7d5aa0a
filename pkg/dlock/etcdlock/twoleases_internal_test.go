package etcdlock

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// onTwoLeases is a driver with a held claim that is on one lease, and perhaps on another as well:
// a move there was not answered.
func onTwoLeases() (*etcdDriver, *claim) {
	now := time.Now()
	newLease := func(id int64, ttl time.Duration) *lease {
		return &lease{seconds: id, ttl: ttl, renewed: now, claims: map[string]*claim{}}
	}
	c := &claim{key: "k", id: "id", own: "k/own", lease: newLease(60, time.Minute), other: newLease(30, 30*time.Second), otherBy: now.Add(time.Minute)}
	c.phase = driver.Held
	d := &etcdDriver{
		Outbox: driver.NewOutbox(4), claims: map[string]*claim{c.id: c}, owns: map[string]*claim{c.own: c},
		leases: map[int64]*lease{60: c.lease, 30: c.other}, lines: map[string]*line{}, numbers: map[string]*numbers{}, leasesToRevoke: map[*lease]bool{},
	}
	d.losses.wake = make(chan struct{}, 1)
	c.number = d.number(c.key)
	c.lease.claims[c.id], c.other.claims[c.id] = c, c
	return d, c
}

// A claim that may be on either of two leases is valid until the first of them ends.
func TestClaimOnTwoLeasesIsValidUntilTheFirstEnds(t *testing.T) {
	d, c := onTwoLeases()
	if until := d.until(c); !until.Equal(c.other.end()) {
		t.Errorf("valid for %v more than the shorter lease", until.Sub(c.other.end()))
	}
	c.lease, c.other = c.other, c.lease
	if until := d.until(c); !until.Equal(c.lease.end()) {
		t.Errorf("valid for %v more than its lease", until.Sub(c.lease.end()))
	}
	c.other = nil
	if until := d.until(c); !until.Equal(c.lease.end()) {
		t.Errorf("without another lease, valid for %v more than its lease", until.Sub(c.lease.end()))
	}
}
