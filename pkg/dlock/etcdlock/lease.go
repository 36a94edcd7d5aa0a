package etcdlock

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A lease is what claims are attached to. Claims with the same TTL share a lease, so that one
// keep-alive serves any number of held locks. A claim that is not renewed has its own lease.
type lease struct {
	id      clientv3.LeaseID
	seconds int64 // as asked for
	own     bool  // of one claim
	alive   shared[struct{}]

	// Under etcdDriver.mu.
	ttl     time.Duration // as granted
	renewed time.Time     // when the last call was sent that the server answered
	dead    bool          // the server does not know it any more
	denied  error         // the last keep-alive was refused, because the user may not write to a key on it
	claims  map[string]*claim

	goneAt    int64 // the last revision at which a key on it was deleted by others
	verifying bool  // whether it is still there
}

// seconds rounds a TTL up to etcd's unit.
func seconds(ttl time.Duration) int64 {
	return int64((ttl + time.Second - 1) / time.Second)
}

// end returns the earliest time at which the lease can end.
func (l *lease) end() time.Time { return l.renewed.Add(l.ttl) }

// over reports whether the lease may have ended.
func (l *lease) over(now time.Time) bool { return l.dead || !now.Before(l.end()) }

// aged reports whether so much of the lease has passed that a claim that joins it would have too
// little time.
func (l *lease) aged(now time.Time) bool { return now.Sub(l.renewed) > l.ttl/3 }

// timeout returns how long a call that a lease depends on may take.
func timeout(secs int64) time.Duration {
	return min(time.Duration(secs)*time.Second, 2*time.Second)
}

// enter returns a claim that can be submitted: the one that was submitted under this ID before,
// while its lease is alive, or a new one.
func (d *etcdDriver) enter(ctx context.Context, r driver.Request) (*claim, error) {
	secs := seconds(r.TTL)
	d.mu.Lock()
	if c := d.claims[r.ID]; c != nil && c.key == r.Key && !c.lease.dead {
		c.seen = time.Now() // the claim is in use, whatever the result of this call
		c.ending = false
		d.mu.Unlock()
		return c, nil
	}
	d.mu.Unlock()
	l, err := d.leaseFor(ctx, secs, r.Fixed || r.OwnLease)
	if err != nil {
		return nil, unsent(err)
	}
	c := &claim{key: r.Key, id: r.ID, kind: kindOf(&r), fixed: r.Fixed, ownLease: r.OwnLease, queueTTL: r.QueueTTL, lease: l, seen: time.Now()}
	c.text = c.value(r.Info)
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.claims[r.ID]; old != nil {
		d.forget(old)
	}
	c.span, c.number = l.ttl, d.number(r.Key)
	c.own = d.ownKey(c.key, c.kind, c.number)
	d.claims[r.ID], d.owns[c.own] = c, c
	l.claims[r.ID] = c
	return c, nil
}

// isAlone reports whether no other claim uses the claim's lease.
func (c *claim) isAlone() bool { return c.fixed || c.ownLease }

// leaseFor returns the lease for a TTL, and requests a new one if none is alive.
func (d *etcdDriver) leaseFor(ctx context.Context, secs int64, own bool) (*lease, error) {
	if own {
		l, err := d.grant(ctx, secs)
		if err == nil {
			l.own = true
		}
		return l, err
	}
	d.mu.Lock()
	if l := d.leases[secs]; l != nil && !l.over(time.Now()) {
		d.mu.Unlock()
		return l, nil
	}
	call := d.grants[secs]
	if call == nil {
		call = &shared[*lease]{}
		d.grants[secs] = call
	}
	d.mu.Unlock()
	return call.do(ctx, d, timeout(secs), func(ctx context.Context) (*lease, error) {
		d.mu.Lock()
		l := d.leases[secs] // another call may have created it meanwhile
		usable := l != nil && !l.over(time.Now())
		d.mu.Unlock()
		if usable {
			return l, nil
		}
		l, err := d.grant(ctx, secs)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.leases[secs] = l
		return l, nil
	})
}

func (d *etcdDriver) grant(ctx context.Context, secs int64) (*lease, error) {
	sent := time.Now()
	resp, err := d.requestLease(ctx, secs)
	if err != nil {
		return nil, err
	}
	return &lease{id: resp.ID, seconds: secs, ttl: time.Duration(resp.TTL) * time.Second, renewed: sent, claims: map[string]*claim{}}, nil
}

// keepAlive restarts the deadline of a lease. It retries while there is time: other members may
// answer if one hangs. errLeaseGone means that the server does not know the lease. A shared lease that
// was denied is left to expire, because the claims on it that the user may write to move to another one.
func (d *etcdDriver) keepAlive(ctx context.Context, l *lease) error {
	limit := timeout(l.seconds)
	d.mu.Lock()
	denied := l.denied
	d.mu.Unlock()
	if denied != nil && !l.own {
		return denied
	}
	_, err := l.alive.do(ctx, d, limit, func(ctx context.Context) (struct{}, error) {
		for {
			err := d.keepAliveOnce(ctx, l, min(l.ttl/6, limit/2))
			if err == nil || errors.Is(err, errLeaseGone) || driver.ClassOf(err) == driver.Fatal || ctx.Err() != nil {
				return struct{}{}, err
			}
		}
	})
	timedOut := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if cause := d.alive.unconnected(); timedOut && cause != nil {
		return unreached(cause)
	}
	return err
}

// keepAliveOnce sends one keep-alive. If it is answered in time, the lease counts from when it was
// sent.
func (d *etcdDriver) keepAliveOnce(ctx context.Context, l *lease, within time.Duration) error {
	ask := d.alive.ask
	d.mu.Lock()
	if d.alive.lessor == nil || l.denied != nil { // another refusal would end the stream
		ask = d.askWithoutStream
	}
	d.mu.Unlock()
	sent, ttl, err := ask(ctx, l.id, within)
	d.mu.Lock()
	defer d.mu.Unlock()
	if isDenied(err) {
		l.denied = classify(err)
		if d.leases[l.seconds] == l { // the server lets no claim join it
			delete(d.leases, l.seconds)
		}
	}
	if err != nil {
		return classify(err)
	}
	l.denied = nil
	if ttl <= 0 {
		d.markLeaseDead(l)
		return classify(rpctypes.ErrLeaseNotFound)
	}
	if sent.After(l.renewed) {
		l.renewed, l.ttl = sent, time.Duration(ttl)*time.Second
	}
	return nil
}

// askWithoutStream does not use the stream of all leases. It is for leases that were denied, and for a client without a
// connection, such as the client of an embedded server: a stream costs nothing there.
func (d *etcdDriver) askWithoutStream(ctx context.Context, id clientv3.LeaseID, within time.Duration) (sent time.Time, ttl int64, err error) {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	sent = time.Now()
	resp, err := d.client.KeepAliveOnce(limited, id)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return sent, 0, nil
	case err != nil:
		sleep(ctx, jitter(within/8))
		return sent, 0, err
	}
	return sent, resp.TTL, nil
}

// joinRefused reports whether a claim was refused because the user may not write to another key on its lease. It can be
// submitted again, on another lease.
func (d *etcdDriver) joinRefused(ctx context.Context, c *claim, err error) bool {
	if !isDenied(err) || c.isAlone() {
		return false
	}
	d.mu.Lock()
	l, known := c.lease, d.claims[c.id] == c
	d.mu.Unlock()
	return !known && isDenied(d.keepAlive(ctx, l))
}

// sweep releases the claims on a lease that were not renewed for too long: other claims keep the
// lease alive, and it would keep these claims forever. After the attempt, such a claim is gone,
// because the release may arrive at any time.
func (d *etcdDriver) sweep(l *lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, c := range l.claims {
		if c.sweeping || (!c.swept && now.Sub(c.seen) <= c.span+min(c.span/3, time.Second)) {
			continue
		}
		c.swept, c.sweeping = true, true
		d.leaveQueue(c) // it is not served any more
		ref := driver.Ref{Key: c.key, ID: c.id, TTL: l.ttl, Unanswered: true}
		d.work.Go(func() {
			ctx, cancel := context.WithTimeout(d.ctx, time.Second)
			defer cancel()
			if err := d.releaseSilent(ctx, ref); err != nil {
				d.log.Warn("a silent claim could not be removed", "key", c.key, "error", err)
				d.mu.Lock()
				c.sweeping = false
				d.mu.Unlock()
			}
		})
	}
}

// releaseSilent is Release in the background.
func (d *etcdDriver) releaseSilent(ctx context.Context, r driver.Ref) (err error) {
	defer recoverPanic(&err)
	_, err = d.Release(ctx, r)
	return err
}

// forget drops a claim that is gone or was never stored. The caller holds mu.
func (d *etcdDriver) forget(c *claim) {
	if d.claims[c.id] != c {
		return
	}
	delete(d.claims, c.id)
	delete(d.owns, c.own)
	delete(c.lease.claims, c.id)
	d.giveNumber(c)
	if c.other != nil {
		d.leaveOther(c)
	}
	d.leaveQueue(c)
	if c.isAlone() {
		d.revokeLater(c.lease)
	}
}

func sleep(ctx context.Context, t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
