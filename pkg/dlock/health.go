package dlock

import (
	"cmp"
	"slices"
	"time"
)

// A Health is what a Client has seen of its own locks: how their renewal goes, and which of them it
// lost. No backend stores this; each process knows it of itself.
type Health struct {
	// Renewals and FailedRenewals count the renewals of held and waiting claims since New.
	// A failed one is no loss: it is repeated until the lease ends.
	Renewals, FailedRenewals int64
	// RecentRenewals and RecentFailedRenewals count those of the last HealthWindow.
	RecentRenewals, RecentFailedRenewals int64
	// RecentError is why a renewal failed in the last HealthWindow, the latest one; "" if none did.
	RecentError string
	// LeastSlack is the least share of a lease, from 0 to 1, that was left when the renewal of a
	// held lock was confirmed in the last HealthWindow. It is about 0.6 if all is well, and 0.3 with
	// the largest margin (WithMargin); near 0, locks are about to be lost. LeastSlackKey is the key
	// of that lock; "" means that no renewal was confirmed.
	LeastSlack    float64
	LeastSlackKey string
	// Losses counts the lost locks since New, by the reason of the metric dlock.losses. It has
	// every reason.
	Losses map[string]int64
	// LastLosses are the latest of them, the newest first, at most 100.
	LastLosses []Loss
}

// A Loss is a lock whose ownership ended before it was unlocked.
type Loss struct {
	At     time.Time
	Key    string
	Owner  string
	Token  int64
	Hold   time.Duration // from the acquisition to the loss
	Reason string        // as in Health.Losses: not_renewed, taken_away, max_hold or unlocked_late
	Cause  string        // the same, for people
}

// HealthWindow is the time that the recent values of a Health cover, to the nearest half minute.
const HealthWindow = 5 * time.Minute

// Health returns what the Client has seen of its own locks. It asks no backend.
func (c *Client) Health() Health {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.health.read(c.now())
}

const (
	healthPeriod = 30 * time.Second
	maxLosses    = 100
)

// healthRecord is what Health is read from. It is kept under mu, and its size is fixed but for the
// losses.
type healthRecord struct {
	renewals, failed int64
	recent           [HealthWindow / healthPeriod]healthCount
	losses           map[string]int64
	last             []Loss // the oldest first
}

// A healthCount counts during one period.
type healthCount struct {
	period           int64
	renewals, failed int64
	err              string
	slack            float64
	slackKey         string
}

// period returns the count of the present period.
func (h *healthRecord) period(now int64) *healthCount {
	n := now / int64(healthPeriod)
	p := &h.recent[n%int64(len(h.recent))]
	if p.period != n {
		*p = healthCount{period: n}
	}
	return p
}

// batch records the answers to a batch of renewals.
func (h *healthRecord) batch(now int64, answered, failed int, err error) {
	h.renewals += int64(answered)
	h.failed += int64(failed)
	p := h.period(now)
	p.renewals += int64(answered)
	p.failed += int64(failed)
	if failed > 0 {
		p.err = cmp.Or(err, errNoAnswer).Error()
	}
}

// confirmed records that a lock was renewed when this share of its lease was left.
func (h *healthRecord) confirmed(now int64, key string, slack float64) {
	if p := h.period(now); p.slackKey == "" || slack < p.slack {
		p.slack, p.slackKey = max(slack, 0), key
	}
}

func (h *healthRecord) lost(l Loss) {
	if h.losses == nil {
		h.losses = map[string]int64{}
	}
	h.losses[l.Reason]++
	if len(h.last) == maxLosses {
		h.last = slices.Delete(h.last, 0, 1)
	}
	h.last = append(h.last, l)
}

func (h *healthRecord) read(now int64) Health {
	all := Health{Renewals: h.renewals, FailedRenewals: h.failed, Losses: map[string]int64{}, LastLosses: slices.Clone(h.last)}
	slices.Reverse(all.LastLosses)
	for _, reason := range lossReasons {
		all.Losses[reason] = h.losses[reason]
	}
	last := now / int64(healthPeriod)
	for n := max(0, last-int64(len(h.recent))+1); n <= last; n++ {
		p := &h.recent[n%int64(len(h.recent))]
		if p.period != n {
			continue
		}
		all.RecentRenewals += p.renewals
		all.RecentFailedRenewals += p.failed
		if p.err != "" {
			all.RecentError = p.err
		}
		if p.slackKey != "" && (all.LeastSlackKey == "" || p.slack < all.LeastSlack) {
			all.LeastSlack, all.LeastSlackKey = p.slack, p.slackKey
		}
	}
	return all
}
