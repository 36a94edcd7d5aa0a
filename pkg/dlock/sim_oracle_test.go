package dlock_test

import (
	"context"
	"errors"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// What the simulator expects of everything that users are told.

// wakeGrace is how long after a suspend guards may take to learn of it.
const wakeGrace = 600 * time.Millisecond

// live reports whether the user may believe in its hold.
func (h *hold) live() bool { return !h.over && h.ctx.Err() == nil }

// fits reports whether two holds may be at a time.
func (h *hold) fits(o *hold) bool {
	for i := h.inside; i != nil; i = i.inside {
		if i == o {
			return true
		}
	}
	return h.mode != driver.Exclusive && o.mode == h.mode && o.limit == h.limit
}

// enter is for a user that has a lock from now on.
func (w *world) enter(h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tell("%s has %s, %s, token %d", h.user, h.key, h.mode, h.token)
	before := w.lastAlone[h.key] // tokens of those who have a key together come in any order
	if h.mode == driver.Exclusive {
		before = w.last[h.key]
	}
	if h.inside == nil && h.token <= before && !w.evicted[h.token] {
		w.bug("token", "%s has token %d of %s after %d", h.user, h.token, h.key, before)
	}
	w.last[h.key] = max(w.last[h.key], h.token)
	if h.mode == driver.Exclusive {
		w.lastAlone[h.key] = max(w.lastAlone[h.key], h.token)
	}
	beside := 0
	for _, o := range w.holds[h.key] {
		if !o.live() {
			continue
		}
		if o.mode == driver.Permit && h.inside == nil {
			beside++
		}
		if !h.fits(o) {
			w.conflict(h, o)
		}
	}
	if h.mode == driver.Permit && beside >= h.limit && time.Since(w.lastWake) > wakeGrace && !w.anyEvicted(h.key) {
		w.bug("overlap", "%s has permit %d of %d of %s", h.user, beside+1, h.limit, h.key)
	}
	w.holds[h.key] = append(w.holds[h.key], h)
}

// anyEvicted reports whether a hold of a key that is still believed in was evicted.
func (w *world) anyEvicted(key string) bool {
	for _, o := range w.holds[key] {
		if o.live() && w.evicted[o.token] {
			return true
		}
	}
	return false
}

// conflict is for two holds that exclude each other. After a suspend the first may not
// have learned of its end yet; after an eviction it may not, unless the same Client was
// granted the key.
func (w *world) conflict(h, o *hold) {
	if (w.evicted[o.token] || w.evicted[h.token]) && o.client != h.client {
		return
	}
	if time.Since(w.lastWake) > wakeGrace {
		w.bug("overlap", "%s has token %d of %s while %s has token %d", h.user, h.token, h.key, o.user, o.token)
		return
	}
	w.mail.Go(func() {
		elapse(wakeGrace)
		w.mu.Lock()
		defer w.mu.Unlock()
		if h.live() && o.live() && !w.evicted[o.token] {
			w.bug("overlap", "%s has token %d of %s, and after the wake-up %s has token %d", h.user, h.token, h.key, o.user, o.token)
		}
	})
}

// leave is for a user that is about to give its lock back, or was told that it lost it.
func (w *world) leave(h *hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.over = true
	w.tell("%s leaves %s, token %d: %v", h.user, h.key, h.token, context.Cause(h.ctx))
}

// saw notes what the store says of a claim, and what it has on that key.
func (w *world) saw(key, id string, st driver.State) {
	if st.Phase == driver.Held {
		w.mu.Lock()
		w.grants[id] = grant{key, st.Token}
		w.mu.Unlock()
	}
	w.look(key)
}

// look takes a sample of what is stored on a key.
func (w *world) look(key string) {
	d, err := w.store.Open(driver.Options{})
	if err != nil {
		return
	}
	claims, _ := d.(driver.Admin).Inspect(context.Background(), key)
	_ = d.Close()
	s := sample{at: w.now()}
	for _, c := range claims {
		s.left = append(s.left, stored{c.Info.Purpose, s.at + c.Left})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken[key] = append(w.taken[key], s)
}

// takenByOther reports whether the store had a claim of another call on a key, at some time
// from a time on until now.
func (w *world) takenByOther(key, purpose string, from time.Duration) bool {
	for _, h := range w.holds[key] {
		if h.live() { // evicted, and nobody has told it yet
			return true
		}
	}
	samples := w.taken[key]
	for i := len(samples) - 1; i >= 0; i-- {
		for _, c := range samples[i].left {
			if c.purpose != purpose && c.until >= from {
				return true
			}
		}
		if samples[i].at < from {
			return false
		}
	}
	return false
}

// releases checks, when a claim is given back, that nobody believes in it any more.
func (w *world) releases(link string, r driver.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g, ok := w.grants[r.ID]
	if !ok || g.key != r.Key {
		return
	}
	next := w.nextGrant(g)
	for _, h := range w.holds[r.Key] {
		if h.token >= g.token && h.token < next && h.ctx.Err() == nil && h.inside == nil {
			w.bug("release", "%s gives token %d of %s back while the context of %s lives", link, g.token, r.Key, h.user)
		}
	}
}

// nextGrant is the token of the grant of a key that follows one, or one beyond all.
func (w *world) nextGrant(g grant) int64 {
	next := int64(1) << 62
	for _, o := range w.grants {
		if o.key == g.key && o.token > g.token {
			next = min(next, o.token)
		}
	}
	return next
}

// refused checks the error of a call that did not get a lock.
func (w *world) refused(user string, call wish, err error, patient context.Context) { //nolint:revive // the call comes first
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tell("%s does not get %s: %v", user, call.key, err)
	switch {
	case errors.Is(err, dlock.ErrLockHeldByOther) && !w.takenByOther(call.key, call.purpose, call.asked):
		w.bug("lie", "%s was told that %s is held, and nobody had it since %v: %v", user, call.key, call.asked, err)
	case errors.Is(err, context.DeadlineExceeded) && patient.Err() == nil:
		w.bug("lie", "%s was told that its context is over, and it is not: %v", user, err)
	case w.calm && !call.bounded && patient.Err() == nil && errors.Is(err, dlock.ErrUnknownOutcome) && !errors.Is(err, dlock.ErrClosed):
		w.bug("lie", "%s was told that an outcome is unknown, and nothing fails: %v", user, err)
	}
}
