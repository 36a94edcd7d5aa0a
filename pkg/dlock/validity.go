package dlock

import (
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// lateCalls describes calls that were not answered and may still arrive at the backend: the
// shortest TTL among them, and the time after which none can arrive.
type lateCalls struct {
	shortest time.Duration
	until    int64
}

// safeLease returns the part of a lease that can be relied on: an unanswered call with a
// shorter TTL may arrive late and shorten the deadline. After the lifetime of a
// tombstone, such a call counts as lost.
func (cl *claim) safeLease(lease time.Duration) time.Duration {
	if cl.late == nil {
		return lease
	}
	if cl.client.now() > cl.late.until {
		cl.late = nil
		return lease
	}
	return min(lease, cl.late.shortest)
}

// recordUnanswered records a call that was not answered and may still arrive. The deadline
// that it would set counts from when it was sent, at the earliest.
func (c *Client) recordUnanswered(cl *claim, s sent) {
	if cl.late == nil {
		cl.late = &lateCalls{shortest: s.ttl}
	}
	cl.late.shortest = min(cl.late.shortest, s.ttl)
	cl.late.until = max(cl.late.until, after(c.now(), driver.TombstoneTTL(s.ttl)))
	if cl.validUntil == never {
		return
	}
	c.subtractSuspended(cl)
	cl.validUntil = min(cl.validUntil, after(s.at, s.ttl-cl.marginOf(s.ttl))-c.suspendedSince(s.suspended))
}

func (cl *claim) marginOf(lease time.Duration) time.Duration {
	return max(leastMargin(lease), cl.requestedMargin())
}

func leastMargin(lease time.Duration) time.Duration { return max(lease/20, 2*time.Millisecond) }

// interval returns the time from sending a call to the next renewal. It depends on the lease
// that the claim has at the backend: a waiter that was just granted the key has the rest
// of a heartbeat, and a longer TTL counts only after the backend has confirmed it.
func (cl *claim) interval(holds bool) time.Duration {
	i := cl.usable(cl.lease, holds) / 3
	if r := cl.client.cfg.RenewInterval; r > 0 && holds {
		i = min(i, r)
	}
	return i
}

// usable returns the part of a lease in which renewals must succeed. What a holder requested as a margin, beyond what every
// lock has, is no time for renewals. At most half of a TTL can be requested.
func (cl *claim) usable(lease time.Duration, holds bool) time.Duration {
	safe := cl.safeLease(lease)
	if !holds {
		return safe
	}
	return max(safe-(cl.marginOf(safe)-leastMargin(safe)), safe/2)
}

// renewTimeout returns how long one attempt to renew may take: a quarter of the usable lease, so that
// an attempt that hangs leaves time for another. A shorter requested TTL counts instead,
// so that the attempt ends before that TTL could.
func (cl *claim) renewTimeout() time.Duration {
	return cl.usable(min(cl.lease, cl.ttl), cl.phase >= granted) / 4
}

// sent records when a call was sent, by both clocks, and its TTL.
type sent struct {
	at, suspended int64
	ttl           time.Duration
}

func (c *Client) sentNow(ttl time.Duration) sent {
	return sent{at: c.now(), suspended: c.suspendedTotal(), ttl: ttl}
}

// setValidity sets the claim's validity from a call that was answered. Only such a call
// moves the deadline, so the validity also holds for a grant that is pushed later. Time that the
// machine was suspended during the call is subtracted here, because the scheduler only
// detects later suspends.
func (c *Client) setValidity(cl *claim, st driver.State, s sent) {
	suspended := c.suspendedSince(s.suspended)
	if cl.verify && st.Phase == driver.Held {
		c.verified(cl, st, s)
		return
	}
	cl.lease = s.ttl
	if st.Phase == driver.Queued {
		cl.lease = driver.Heartbeat(s.ttl)
	}
	if st.Lease > 0 {
		cl.lease = min(cl.lease, st.Lease)
	}
	holds := cl.phase >= held || st.Phase == driver.Held
	cl.renewAt = after(s.at, cl.interval(holds))
	until, safe := c.at(st.Until), cl.safeLease(cl.lease)
	if safe < cl.lease {
		until = endOf(safe, s, until, cl.lease)
	}
	if !st.Until.IsZero() {
		cl.renewAt = min(cl.renewAt, cl.renewalBefore(until, s.at, safe, holds))
	}
	if st.Phase == driver.Held && cl.noRenew && s.ttl == cl.ttl {
		cl.renewAt = never
	} else if overtaken := st.Phase == driver.Queued && cl.phase >= granted; suspended > 0 || (overtaken && cl.noRenew) { // see grant
		cl.renewAt = c.now()
	}
	switch {
	case st.Until.IsZero() && c.caps.Lease: // the driver leaves the computation to us
		until = after(s.at, safe)
	case st.Until.IsZero():
		cl.validUntil = never
		return
	}
	valid := until - int64(cl.marginOf(safe)) - suspended
	if st.Phase == driver.Queued && cl.phase >= granted { // a push of the grant overtook this answer
		c.subtractSuspended(cl)
		valid = max(valid, cl.validUntil)
	}
	cl.validUntil, cl.suspended = valid, s.suspended+suspended
}

// renewalBefore returns when to renew a claim that may share a lease, which is older than the call and so ends sooner. A driver may
// also have subtracted for clocks that drift: then the lease is not almost over, and a part of what is left passes first.
func (cl *claim) renewalBefore(until, sent int64, lease time.Duration, holds bool) int64 {
	third := until - int64(lease-cl.usable(lease, holds)/3)
	left := max(until-int64(cl.marginOf(lease))-sent, 0)
	return max(third, sent+left/10)
}

// endOf returns when a shorter lease ends that counts instead of the one of an answered call: a call that shortens it arrives
// later than that one was sent. What the driver has subtracted from the lease, as for clocks that drift, counts in proportion.
func endOf(shorter time.Duration, s sent, until int64, lease time.Duration) int64 {
	subtracted := max(after(s.at, lease)-until, 0)
	return after(s.at, shorter) - int64(float64(subtracted)*float64(shorter)/float64(lease))
}

// verified records that a claim is still held, without extending it.
func (c *Client) verified(cl *claim, st driver.State, s sent) {
	cl.verify, cl.renewAt = false, never
	if st.Until.IsZero() || cl.validUntil == never {
		return
	}
	c.subtractSuspended(cl)
	cl.validUntil = min(cl.validUntil, c.at(st.Until)-int64(cl.marginOf(s.ttl))-c.suspendedSince(s.suspended))
}

// expired reports whether ownership has ended by the local clocks.
func (cl *claim) expired(now int64) bool { return cl.remaining(now) <= 0 }

// placeExpired reports whether a waiter may have lost its place. A requested margin does not shorten it: it is for the holder.
func (cl *claim) placeExpired(now int64) bool {
	return cl.validUntil != never && cl.placeRemaining(now) <= 0
}

func (cl *claim) placeRemaining(now int64) time.Duration {
	lease := cl.safeLease(cl.lease)
	return cl.remaining(now) + cl.marginOf(lease) - leastMargin(lease)
}

func (cl *claim) remaining(now int64) time.Duration {
	if cl.validUntil == never {
		return time.Duration(never)
	}
	return time.Duration(cl.validUntil - now - cl.client.suspendedSince(cl.suspended))
}
