package dashboard

import (
	"container/list"
	"slices"
	"time"
)

// The history of the locks is what the snapshots have shown. Its size is bounded: locks that have
// not changed for longest are forgotten first.
const (
	maxHoldings    = 100     // of a lock
	maxHistories   = 10_000  // locks of a source
	maxAllHoldings = 100_000 // of all sources
)

// A holding is the time in which one claim held a lock.
type holding struct {
	claim
	// Ended is in milliseconds since 1970; 0 while the lock is held.
	Ended int64 `json:"ended,omitempty"`
	// Waited is how long the holder was seen waiting, in milliseconds; nil if it was not seen.
	Waited *int64 `json:"waited_ms,omitempty"`
	// Unsure says that the end was not read, for instance in a time without readings: Ended is when
	// the holder was last seen.
	Unsure bool `json:"unsure,omitempty"`
}

type lockHistory struct {
	key      string
	holdings []holding // the oldest first
}

type history struct {
	locks map[string]*list.Element // of *lockHistory
	order *list.List               // the last changed first
	count int                      // of all holdings
	most  int                      // holdings
}

// newHistory returns a history with at most so many holdings.
func newHistory(most int) *history {
	return &history{locks: map[string]*list.Element{}, order: list.New(), most: most}
}

// gapAfter is the time between two readings from which an end between them is not known.
func gapAfter(interval time.Duration) time.Duration { return max(10*interval, 10*time.Second) }

// observe adds what has changed from last to next.
func (h *history) observe(last, next *snapshot, gap time.Duration) {
	lastSeen := last.at.UnixMilli()
	unsure := next.at.Sub(last.at) > gap
	changes := next.since(last)
	for _, r := range changes.changed {
		h.change(last.rows[r.Key], r, next.at.UnixMilli(), lastSeen, unsure)
	}
	for _, key := range changes.removed {
		// While there are more locks than are read, a lock that is not among them may still be held.
		h.change(last.rows[key], &row{Key: key}, next.at.UnixMilli(), lastSeen, unsure || next.more)
	}
}

// change ends the holdings that are gone, and begins new ones.
func (h *history) change(before, now *row, at, lastSeen int64, unsure bool) {
	l := h.open(now.Key)
	h.count -= len(l.holdings)
	defer func() {
		h.count += len(l.holdings)
		h.shrink()
	}()
	began := int64(0) // of the first new holder
	for i := range now.holders {
		if c := &now.holders[i]; l.current(c) == nil && c.Since > 0 && !c.WithWait && (began == 0 || c.Since < began) {
			began = c.Since
		}
	}
	for i := range l.holdings {
		held := &l.holdings[i]
		if held.Ended > 0 || slices.ContainsFunc(now.holders, func(c claim) bool { return held.shows(&c) }) {
			continue
		}
		held.Ended, held.Unsure = at, unsure
		switch {
		case unsure:
			held.Ended = max(lastSeen, held.Since)
		case began >= held.Since && began > 0 && began < at && now.Mode == modeExclusive:
			held.Ended = began // the next holder says when it was free
		}
	}
	var left map[identity]*claim
	for _, c := range now.holders {
		if old := l.reopen(&c); old != nil {
			old.Lease, old.Until = c.Lease, c.Until
			continue
		}
		if left == nil {
			left = leftQueue(before, now)
		}
		l.add(holding{claim: c, Waited: waited(left, &c)})
	}
}

const modeExclusive = "exclusive"

// leftQueue returns the waiters of the last snapshot that wait no more, the first of each identity. It
// takes an index, because queues can be long.
func leftQueue(before, now *row) map[identity]*claim {
	left := map[identity]*claim{}
	if before == nil {
		return left
	}
	type group struct {
		identity
		token string
	}
	waiting := map[group][]int64{} // since when
	for i := range now.queue {
		w := &now.queue[i]
		g := group{w.identity(), w.Token}
		waiting[g] = append(waiting[g], w.Since)
	}
	for _, since := range waiting {
		slices.Sort(since)
	}
	for i := range before.queue {
		w := &before.queue[i]
		since := waiting[group{w.identity(), w.Token}]
		next, _ := slices.BinarySearch(since, w.Since-jitter)
		stays := next < len(since) && since[next] <= w.Since+jitter || w.Token != "" && len(since) > 0 // as claim.is
		if id := w.identity(); !stays && left[id] == nil {
			left[id] = w
		}
	}
	return left
}

// waited returns how long holder c waited, if the last snapshot shows it as a waiter.
func waited(left map[identity]*claim, c *claim) *int64 {
	w := left[c.identity()]
	if w == nil || c.WithWait {
		return nil
	}
	took := max(0, c.Since-w.Since)
	return &took
}

// shows reports whether c is the claim of this holding.
func (g *holding) shows(c *claim) bool {
	if g.Token != "" || c.Token != "" {
		return g.Token == c.Token
	}
	return g.is(c)
}

func (l *lockHistory) current(c *claim) *holding {
	for i := range l.holdings {
		if l.holdings[i].Ended == 0 && l.holdings[i].shows(c) {
			return &l.holdings[i]
		}
	}
	return nil
}

// reopen returns the holding of c, also if it was taken as ended without being sure.
func (l *lockHistory) reopen(c *claim) *holding {
	for i := range l.holdings {
		if held := &l.holdings[i]; held.Unsure && held.shows(c) {
			held.Ended, held.Unsure = 0, false
		}
	}
	return l.current(c)
}

// add drops the oldest holding that has ended to make room. If there is none, the new one is not kept.
func (l *lockHistory) add(g holding) {
	if len(l.holdings) >= maxHoldings {
		i := slices.IndexFunc(l.holdings, func(g holding) bool { return g.Ended > 0 })
		if i < 0 {
			return
		}
		l.holdings = slices.Delete(l.holdings, i, i+1)
	}
	l.holdings = append(l.holdings, g)
}

// shrink forgets the locks that have not changed for longest, but never the one that has just changed.
func (h *history) shrink() {
	for h.count > h.most && h.order.Len() > 1 {
		h.forgetOldest()
	}
}

func (h *history) forgetOldest() {
	l := h.order.Remove(h.order.Back()).(*lockHistory)
	delete(h.locks, l.key)
	h.count -= len(l.holdings)
}

// open returns the history of a lock, and forgets another if there are too many.
func (h *history) open(key string) *lockHistory {
	if e := h.locks[key]; e != nil {
		h.order.MoveToFront(e)
		return e.Value.(*lockHistory)
	}
	if len(h.locks) >= maxHistories {
		h.forgetOldest()
	}
	l := &lockHistory{key: key}
	h.locks[key] = h.order.PushFront(l)
	return l
}

// of returns a copy of the history of a lock.
func (h *history) of(key string) []holding {
	if e := h.locks[key]; e != nil {
		return slices.Clone(e.Value.(*lockHistory).holdings)
	}
	return []holding{}
}
