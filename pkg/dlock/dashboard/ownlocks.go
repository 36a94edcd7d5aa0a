package dashboard

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// ownLocks is what the Clients of this process have seen of their own locks. No backend stores it,
// so the page knows nothing of this kind about other processes.
type ownLocks struct {
	Renewals       int64            `json:"renewals"` // since the Clients were created
	Failed         int64            `json:"failed_renewals"`
	Window         int64            `json:"window_ms"` // the time of the recent values
	RecentRenewals int64            `json:"recent_renewals"`
	RecentFailed   int64            `json:"recent_failed_renewals"`
	RecentError    string           `json:"recent_error,omitempty"`
	LeastSlack     *float64         `json:"least_slack"` // the share of a lease; nil if nothing was renewed
	LeastSlackKey  string           `json:"least_slack_key,omitempty"`
	Losses         map[string]int64 `json:"losses"`      // by reason
	LastLosses     []loss           `json:"last_losses"` // the newest first
}

type loss struct {
	At     int64  `json:"at"`
	Key    string `json:"key"`
	Owner  string `json:"owner"`
	Token  string `json:"token"`
	Hold   int64  `json:"hold_ms"`
	Reason string `json:"reason"`
	Cause  string `json:"cause"`
}

// maxLosses is how many losses of a source are shown.
const maxLosses = 20

// An ownReader reads the health of Clients. Readers of the result compare pointers: it is another
// one only if something has changed.
type ownReader struct {
	clients []*dlock.Client

	mu     sync.Mutex
	latest *ownLocks
	at     time.Time
}

// read asks the Clients once per interval, however many viewers there are. It asks no backend, so it
// also tells what is lost while the backend hangs.
func (o *ownReader) read() *ownLocks {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.latest != nil && time.Since(o.at) < minInterval {
		return o.latest
	}
	if next := newOwnLocks(o.clients); o.latest == nil || !reflect.DeepEqual(next, o.latest) {
		o.latest = next
	}
	o.at = time.Now()
	return o.latest
}

func newOwnLocks(clients []*dlock.Client) *ownLocks {
	own := &ownLocks{Window: dlock.HealthWindow.Milliseconds(), Losses: map[string]int64{}, LastLosses: []loss{}}
	for _, c := range clients {
		own.add(c.Health())
	}
	own.sort()
	return own
}

func (own *ownLocks) add(h dlock.Health) {
	own.Renewals += h.Renewals
	own.Failed += h.FailedRenewals
	own.RecentRenewals += h.RecentRenewals
	own.RecentFailed += h.RecentFailedRenewals
	if h.RecentError != "" {
		own.RecentError = clip(h.RecentError)
	}
	if h.LeastSlackKey != "" && (own.LeastSlack == nil || h.LeastSlack < *own.LeastSlack) {
		own.LeastSlack, own.LeastSlackKey = &h.LeastSlack, h.LeastSlackKey
	}
	for reason, n := range h.Losses {
		own.Losses[reason] += n
	}
	for i := range h.LastLosses {
		l := &h.LastLosses[i]
		own.LastLosses = append(own.LastLosses, loss{
			At: l.At.UnixMilli(), Key: l.Key, Owner: clip(l.Owner), Token: strconv.FormatInt(l.Token, 10), Hold: l.Hold.Milliseconds(),
			Reason: l.Reason, Cause: clip(l.Cause),
		})
	}
}

// sort puts the newest losses first, and keeps as many as are shown.
func (own *ownLocks) sort() {
	slices.SortStableFunc(own.LastLosses, func(a, b loss) int { return cmp.Compare(b.At, a.At) })
	own.LastLosses = own.LastLosses[:min(maxLosses, len(own.LastLosses))]
}

// ownLocks writes what the Clients of this process have seen.
func (e *exposition) ownLocks(all []state) {
	e.family("dlock_page_renewals_total", "counter", "Renewals by the Clients of the page's process, by result.")
	for _, s := range all {
		own := s.own.read()
		e.sample("", float64(own.Renewals), append(s.labels, "result", "ok")...)
		e.sample("", float64(own.Failed), append(s.labels, "result", "failed")...)
	}
	e.family("dlock_page_least_slack_ratio", "gauge", "Least share of a lease that was left when a renewal was confirmed in the last five minutes; missing if none was.")
	for _, s := range all {
		if own := s.own.read(); own.LeastSlack != nil {
			e.sample("", *own.LeastSlack, s.labels...)
		}
	}
	e.family("dlock_page_losses_total", "counter", "Locks that the Clients of the page's process lost, by reason.")
	for _, s := range all {
		own := s.own.read()
		for _, reason := range slices.Sorted(maps.Keys(own.Losses)) {
			e.sample("", float64(own.Losses[reason]), append(s.labels, "reason", reason)...)
		}
	}
}
