package dashboard

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A snapshot is the locks of a source at one time. It never changes. Snapshots share the rows of
// locks that have not changed.
type snapshot struct {
	seq    uint64
	began  time.Duration // after the start of the Handler: when the reading of the rows began
	at     time.Time     // when the rows were read; zero before the first reading
	tried  time.Time     // when the reading ended, in success or not
	rows   map[string]*row
	more   bool // there are more locks than were read
	answer time.Duration
	round  time.Duration
	err    string // why the last reading failed; the rows are those before it
}

// readAt is when the rows were read, in milliseconds since 1970; 0 before the first reading.
func (s *snapshot) readAt() int64 {
	if s.at.IsZero() {
		return 0
	}
	return s.at.UnixMilli()
}

// sorted returns the rows by key.
func (s *snapshot) sorted() []*row {
	rows := make([]*row, 0, len(s.rows))
	for _, key := range slices.Sorted(maps.Keys(s.rows)) {
		rows = append(rows, s.rows[key])
	}
	return rows
}

// A row is a lock as the list shows it. Times are in milliseconds since 1970, by the clock of this
// process.
type row struct {
	Key          string  `json:"key"`
	Mode         string  `json:"mode,omitempty"`
	Limit        int     `json:"limit,omitempty"`
	Token        string  `json:"token,omitempty"` // the greatest of the holders
	Holders      []claim `json:"holders"`         // the first of them, by token
	HolderCount  int     `json:"holder_count"`
	Waiters      *int    `json:"waiters"` // nil if the backend does not know
	WaitingSince int64   `json:"waiting_since,omitempty"`
	Error        string  `json:"error,omitempty"`
	part

	holders, queue []claim // all
}

// A claim is a holder or a waiter. It is comparable.
type claim struct {
	Mode    string `json:"mode"`
	Limit   int    `json:"limit,omitempty"`
	Token   string `json:"token,omitempty"`
	Owner   string `json:"owner,omitempty"`
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Purpose string `json:"purpose,omitempty"`
	Trace   string `json:"trace,omitempty"`
	Since   int64  `json:"since,omitempty"` // 0 if it is not known
	// WithWait says that Since is when the holder began to wait: since when it holds is not known.
	WithWait bool  `json:"with_wait,omitempty"`
	Until    int64 `json:"until,omitempty"`    // the end of the lease; 0 without one, or if it is not known
	Lease    int64 `json:"lease_ms,omitempty"` // the longest lease seen, for the bar

	seen time.Duration // after the start of the Handler: when the first reading that shows it had ended; 0 before
}

// shownHolders is how many holders of a lock are in the list.
const shownHolders = 5

func newRow(e *lockreader.Entry, backend dlock.BackendType) *row {
	r := &row{Key: e.Key, Holders: []claim{}}
	if e.Err != nil {
		r.Error = e.Err.Error()
		return r
	}
	for i := range e.Claims {
		c := newClaim(&e.Claims[i], e.At)
		if e.Claims[i].Phase != dlock.PhaseHeld {
			r.queue = append(r.queue, c)
			continue
		}
		if r.Token == "" || greater(c.Token, r.Token) {
			r.Token = c.Token
		}
		r.Mode, r.Limit = c.Mode, c.Limit
		r.holders = append(r.holders, c)
	}
	slices.SortStableFunc(r.holders, byToken)
	r.finish(backend)
	return r
}

// byToken gives holders an order that renewals do not change: a backend may order them by the ends
// of their leases.
func byToken(a, b claim) int {
	return cmp.Or(cmp.Compare(number(a.Token), number(b.Token)), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID))
}

func (r *row) finish(backend dlock.BackendType) {
	r.HolderCount, r.WaitingSince = len(r.holders), firstWait(r.queue)
	r.Holders = append([]claim{}, r.holders[:min(shownHolders, len(r.holders))]...)
	if n := len(r.queue); backend != dlock.BackendFile { // whose waiters only their own processes know
		r.Waiters = &n
	}
}

// firstWait returns since when the claim that has waited longest waits; 0 if that is not known.
func firstWait(queue []claim) int64 {
	first := int64(0)
	for i := range queue {
		if since := queue[i].Since; since > 0 && (first == 0 || since < first) {
			first = since
		}
	}
	return first
}

// greater compares tokens, which are numbers without a leading zero.
func greater(a, b string) bool {
	if len(a) != len(b) {
		return len(a) > len(b)
	}
	return a > b
}

func newClaim(from *dlock.Claim, at time.Time) claim {
	c := claim{
		Mode: string(from.Mode), Limit: from.Limit, Owner: clip(from.Info.Owner), Host: clip(from.Info.Host),
		PID: from.Info.PID, Purpose: clip(from.Info.Purpose), Trace: clip(from.Trace),
	}
	if from.Token > 0 {
		c.Token = strconv.FormatInt(from.Token, 10) // a number of JavaScript has 53 bits
	}
	if from.Age > 0 || from.Info != (dlock.Info{}) { // nothing is known of a claim of another library
		c.Since = at.Add(-from.Age).UnixMilli()
	}
	if from.Remaining > 0 {
		c.Until, c.Lease = at.Add(from.Remaining).UnixMilli(), from.Remaining.Milliseconds()
	}
	return c
}

// maxText is how many bytes of a text are kept. Package dlock writes less, but others may write to the store.
const maxText = 1024

func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

// see dates the claims that no earlier reading has shown.
func (r *row) see(at time.Duration) {
	for _, claims := range [][]claim{r.holders, r.queue} {
		for i := range claims {
			if claims[i].seen == 0 {
				claims[i].seen = at
			}
		}
	}
}

// jitter is how much the same time can differ between two readings.
const jitter = 400 // milliseconds

// datePromotions corrects since when the holders hold on a backend that counts the time of a holder
// from when it began to wait. at is when r was read, and lastAt when old was, which is nil if the
// lock was free. A change in a longer time than gap has no date.
func (r *row) datePromotions(old *row, at, lastAt int64, gap time.Duration) {
	for i := range r.holders {
		c := &r.holders[i]
		switch {
		case old != nil && slices.ContainsFunc(old.holders, func(o claim) bool { return o.is(c) }): // steady keeps its times
		case old != nil && at-lastAt <= gap.Milliseconds() && slices.ContainsFunc(old.queue, func(o claim) bool { return o.sameOwner(c) && within(o.Since, c.Since) }):
			c.Since = at
		default:
			c.WithWait = c.Since > 0 && (lastAt == 0 || c.Since < lastAt-jitter)
		}
	}
	copy(r.Holders, r.holders)
}

// countsWaits reports whether a backend counts the time of a holder from when it began to wait.
func countsWaits(backend dlock.BackendType) bool { return backend == dlock.BackendEtcd }

// steady returns old if the lock has not changed since, and otherwise r with the times of the
// claims that have stayed.
func (r *row) steady(old *row) *row {
	if old == nil {
		return r
	}
	keepTimes(r.holders, old.holders)
	keepTimes(r.queue, old.queue)
	copy(r.Holders, r.holders)
	r.WaitingSince = firstWait(r.queue)
	if r.same(old) {
		return old
	}
	return r
}

func (r *row) same(o *row) bool {
	return r.Mode == o.Mode && r.Limit == o.Limit && r.Token == o.Token && r.Error == o.Error &&
		slices.Equal(r.holders, o.holders) && slices.Equal(r.queue, o.queue)
}

// maxSkips is how many claims that are gone keepTimes skips at a time. Times of later claims are
// sent again.
const maxSkips = 256

// keepTimes copies the times of the claims in old to now where they differ only by jitter.
func keepTimes(now, old []claim) {
	used := 0 // claims keep their order, so those before it are gone
	for i := range now {
		for j := used; j < min(len(old), used+maxSkips); j++ {
			if !now[i].is(&old[j]) {
				continue
			}
			now[i].Since, now[i].WithWait, now[i].seen, used = old[j].Since, old[j].WithWait, old[j].seen, j+1
			if now[i].Until > 0 {
				now[i].Lease = max(now[i].Lease, old[j].Lease)
			}
			if within(now[i].Until, old[j].Until) {
				now[i].Until = old[j].Until
			}
			break
		}
	}
}

// is reports whether two readings show the same claim. A token is that of one holder.
func (c *claim) is(o *claim) bool {
	return c.Token == o.Token && c.sameOwner(o) && (c.Token != "" || within(c.Since, o.Since))
}

func (c *claim) sameOwner(o *claim) bool { return c.identity() == o.identity() }

// An identity is what the claims of one owner with one purpose have in common.
type identity struct {
	owner, host, purpose, mode string
	pid                        int
}

func (c *claim) identity() identity { return identity{c.Owner, c.Host, c.Purpose, c.Mode, c.PID} }

func within(a, b int64) bool { return a-b <= jitter && b-a <= jitter }

// A difference is what leads from one snapshot of a source to another.
type difference struct {
	changed []*row
	removed []string
}

// since returns what has changed after old.
func (s *snapshot) since(old *snapshot) difference {
	var d difference
	for key, r := range s.rows {
		if old.rows[key] != r {
			d.changed = append(d.changed, r)
		}
	}
	for key := range old.rows {
		if s.rows[key] == nil {
			d.removed = append(d.removed, key)
		}
	}
	return d
}
