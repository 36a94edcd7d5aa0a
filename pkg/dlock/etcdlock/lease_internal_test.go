package etcdlock

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// claimOn returns a driver with a held claim on one lease.
func claimOn(ttl time.Duration) (*etcdDriver, *claim) {
	d, c := onTwoLeases()
	d.leaveOther(c)
	c.lease.ttl = ttl
	return d, c
}

func TestDurationsOfALease(t *testing.T) {
	for ttl, want := range map[time.Duration]int64{1: 1, time.Second - 1: 1, time.Second: 1, time.Second + 1: 2, time.Minute: 60} {
		if got := seconds(ttl); got != want {
			t.Errorf("%v: %d seconds, want %d", ttl, got, want)
		}
	}
	for secs, want := range map[int64]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 2 * time.Second} {
		if got := timeout(secs); got != want {
			t.Errorf("a call for a lease of %d s may take %v, want %v", secs, got, want)
		}
	}
	now := time.Now()
	l := &lease{ttl: 30 * time.Second, renewed: now}
	for after, want := range map[time.Duration][2]bool{ // aged and over
		0: {false, false}, 10 * time.Second: {false, false}, 10*time.Second + 1: {true, false}, 30*time.Second - 1: {true, false}, 30 * time.Second: {true, true},
	} {
		at := now.Add(after)
		if got := [2]bool{l.aged(at), l.over(at)}; got != want {
			t.Errorf("after %v, aged and over are %v, want %v", after, got, want)
		}
	}
	l.dead = true
	if !l.over(now) {
		t.Error("a dead lease is not over")
	}
}

// The deadline of a holder is the end of its lease. A waiter has one heartbeat from the call, and no longer than its lease.
func TestDeadlinesOfAClaim(t *testing.T) {
	const ttl = 30 * time.Second
	for name, tt := range map[string]struct {
		phase    driver.Phase
		queueTTL time.Duration
		sent     time.Duration // after the last keep-alive
		want     time.Duration // after the last keep-alive
		span     time.Duration
	}{
		"holder":                      {driver.Held, 0, 5 * time.Second, ttl, ttl},
		"waiter":                      {driver.Queued, 5 * time.Second, 5 * time.Second, 10 * time.Second, 5 * time.Second},
		"waiter on an old lease":      {driver.Queued, 5 * time.Second, 27 * time.Second, ttl, 5 * time.Second},
		"waiter with a long deadline": {driver.Queued, time.Hour, time.Second, ttl, ttl},
	} {
		d, c := claimOn(ttl)
		d.queues["k"] = &waitQueue{key: "k", changed: make(chan struct{}, 1)}
		c.phase, c.queueTTL = driver.Unknown, tt.queueTTL
		sent := c.lease.renewed.Add(tt.sent)
		st := d.record(c, position{phase: tt.phase, rev: 7, ahead: 3, asOf: 9}, sent)
		if st.Phase != tt.phase || !st.Until.Equal(c.lease.renewed.Add(tt.want)) || c.span != tt.span || !c.seen.Equal(sent) {
			t.Errorf("%s: %v until %v, which may be silent for %v, want %v and %v", name, st.Phase, st.Until.Sub(c.lease.renewed), c.span, tt.want, tt.span)
		}
		if held := tt.phase == driver.Held; held && (st.Token != 7 || st.Ahead != 0) || !held && (st.Token != 0 || st.Ahead != 3) {
			t.Errorf("%s: token %d, behind %d", name, st.Token, st.Ahead)
		}
	}
}

// An answer for a claim that has ended meanwhile neither returns it nor touches the claim that has its ID now. A claim that
// was swept is gone, and is known until it was removed.
func TestAnswerForAnEndedClaim(t *testing.T) {
	held := position{phase: driver.Held, rev: 7}
	d, c := claimOn(time.Minute)
	old := *c
	if st := d.record(&old, held, time.Now()); st.Phase != driver.Gone || d.claims[c.id] != c {
		t.Errorf("an old claim is %v, and the new one is known: %v", st.Phase, d.claims[c.id] == c)
	}
	c.swept = true
	if st := d.record(c, held, time.Now()); st.Phase != driver.Gone || d.claims[c.id] != c {
		t.Errorf("a swept claim is %v, and known: %v", st.Phase, d.claims[c.id] == c)
	}
	c.swept = false
	if st := d.record(c, position{phase: driver.Gone}, time.Now()); st.Phase != driver.Gone || len(d.claims) != 0 || len(c.lease.claims) != 0 {
		t.Errorf("%v, and %d claims are known", st.Phase, len(d.claims))
	}
}

// After an error, a claim is forgotten only if nothing of it is or may be stored: its key and its number may be used again.
func TestClaimsAfterAnError(t *testing.T) {
	refused, open := driver.Classify(errors.New("refused"), driver.Transient), errors.New("no answer")
	for name, tt := range map[string]struct {
		err         error
		rev         int64
		open        bool
		known, left bool // it is known, and counts as open
	}{
		"refused":                          {refused, 0, false, false, false},
		"refused, and stored before":       {refused, 7, false, true, false},
		"refused after one without answer": {refused, 0, true, true, true},
		"no answer":                        {open, 0, false, true, true},
		"the lease is gone":                {classify(rpctypes.ErrLeaseNotFound), 0, true, false, true},
	} {
		d, c := claimOn(time.Minute)
		c.phase, c.rev, c.open = driver.Unknown, tt.rev, tt.open
		d.submitFailed(tt.err, c)
		if known := d.claims[c.id] == c; known != tt.known || c.open != tt.left {
			t.Errorf("%s: known %v and open %v, want %v and %v", name, known, c.open, tt.known, tt.left)
		}
	}
}

// A process needs the server while it calls it, may repeat a call, or has a claim that it renews.
func TestWhoNeedsTheServer(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(d *etcdDriver, c *claim)
		want   bool
	}{
		"a lock is held":         {func(*etcdDriver, *claim) {}, true},
		"nothing is held":        {func(d *etcdDriver, c *claim) { d.forget(c) }, false},
		"it is not renewed":      {func(_ *etcdDriver, c *claim) { c.fixed = true }, false},
		"its lease is over":      {func(_ *etcdDriver, c *claim) { c.lease.dead = true }, false},
		"a call is in progress":  {func(d *etcdDriver, c *claim) { d.forget(c); d.calls = 1 }, true},
		"a call has just ended":  {func(d *etcdDriver, c *claim) { d.forget(c); d.call()() }, true},
		"a call ended long ago":  {func(d *etcdDriver, c *claim) { d.forget(c); d.lastCall = time.Now().Add(-callStays) }, false},
		"another call goes on":   {func(d *etcdDriver, c *claim) { d.forget(c); d.call(); d.call()(); d.lastCall = time.Time{} }, true},
		"its lease was replaced": {func(_ *etcdDriver, c *claim) { c.lease.renewed = time.Now().Add(-c.lease.ttl) }, false},
	} {
		d, c := claimOn(time.Minute)
		tt.change(d, c)
		if got := d.needsServer(); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// State is dropped when nothing can need it any more, and not before.
func TestPruneSparesWhatIsInUse(t *testing.T) {
	const ttl = 2 * time.Minute // longer than a minute, so that it is what counts
	for name, tt := range map[string]struct {
		silent, over time.Duration // since the last call, and since the end of the lease
		forgotten    bool
	}{
		"in use":                   {0, -ttl, false},
		"asked for not long ago":   {ttl, 2 * ttl, false},
		"lease ended not long ago": {2 * ttl, ttl, false},
		"abandoned":                {ttl + 1, ttl + 1, true},
	} {
		d, c := claimOn(ttl)
		now := time.Now()
		c.seen, c.lease.renewed = now.Add(-tt.silent), now.Add(-tt.over-ttl)
		d.prune(now)
		if got := d.claims[c.id] == nil; got != tt.forgotten || c.lease.dead != tt.forgotten {
			t.Errorf("%s: forgotten %v, its lease is dead: %v", name, got, c.lease.dead)
		}
		if got := d.leases[60] == nil; got != tt.forgotten {
			t.Errorf("%s: its lease is forgotten: %v", name, got)
		}
	}
	d, c := claimOn(ttl)
	idle, revoked := c.lease, &lease{ttl: ttl, renewed: c.lease.renewed}
	d.forget(c)
	d.leasesToRevoke[revoked] = true
	d.prune(idle.end().Add(-1))
	if d.leases[60] != idle || !d.leasesToRevoke[revoked] {
		t.Error("a lease that is alive is forgotten")
	}
	d.prune(idle.end())
	if d.leases[60] != nil || len(d.leasesToRevoke) != 0 {
		t.Error("a lease that has ended is remembered")
	}
}

// Only the claim that keeps its own lease shows it.
func TestLeaseThatIsShown(t *testing.T) {
	d, c := claimOn(time.Minute)
	c.ownLease, c.lease.id = true, 7
	ref := driver.Ref{Key: c.key, ID: c.id}
	if id, ok := d.LeaseID(ref); id != 7 || !ok {
		t.Errorf("%d, %v", id, ok)
	}
	for name, r := range map[string]driver.Ref{"another key": {Key: "other", ID: c.id}, "another claim": {Key: c.key, ID: "other"}} {
		if id, ok := d.LeaseID(r); id != 0 || ok {
			t.Errorf("%s: %d, %v", name, id, ok)
		}
	}
	c.ownLease = false
	if id, ok := d.LeaseID(ref); id != 0 || ok {
		t.Errorf("a shared lease: %d, %v", id, ok)
	}
}

// A claim that waits in the process is not lost when its release has begun, or when another claim has its ID.
func TestWhatIsNoLoss(t *testing.T) {
	for name, change := range map[string]func(d *etcdDriver, c *claim){
		"its release has begun": func(_ *etcdDriver, c *claim) { c.ending = true },
		"it is another claim":   func(d *etcdDriver, c *claim) { d.claims[c.id] = &claim{} },
	} {
		d, c := claimOn(time.Minute)
		change(d, c)
		d.lose(c, 7)
		if len(d.losses.take()) != 0 || d.claims[c.id] == nil || c.lease.claims[c.id] != c {
			t.Errorf("%s: lost", name)
		}
	}
}
