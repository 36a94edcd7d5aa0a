package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

const (
	maxStreams = 256
	heartbeat  = 5 * time.Second
	maxRows    = 1000 // in an event, so that none has many megabytes
)

// A viewer is one stream of server-sent events. It remembers the last snapshot of each source that
// it has sent, and sends the difference to the newest: what a slow viewer has missed is skipped.
type viewer struct {
	*Handler
	w        http.ResponseWriter
	control  *http.ResponseController
	sent     []*snapshot
	findings []*[]dlock.Finding
	own      []*ownLocks
	rings    *[]ring
}

// hello is the first event.
type hello struct {
	Now      int64    `json:"now"`
	Started  int64    `json:"started"`
	Interval int64    `json:"interval_ms"`
	MaxLocks int      `json:"max_locks"`
	Evict    bool     `json:"evict"`
	Sources  []status `json:"sources"`
}

// An update leads from one snapshot of a source to the next. The first one has all locks. A large
// one comes in parts, which have the same Seq.
type update struct {
	Now int64 `json:"now"`
	status
	Full    bool     `json:"full"`
	Changed []*row   `json:"changed"`
	Removed []string `json:"removed"`
}

// stream sends events until the viewer leaves or the Handler is closed.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request) {
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		fail(w, http.StatusServiceUnavailable, "too_many_viewers", "too many pages are open")
		return
	}
	leave, ok := h.enter(w)
	if !ok {
		fail(w, http.StatusServiceUnavailable, "closed", "the page is closed")
		return
	}
	defer leave()
	changed, cancel := h.subscribe()
	defer cancel()
	for _, p := range h.sources {
		defer p.join()()
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	v := &viewer{
		Handler: h, w: w, control: http.NewResponseController(w),
		sent: make([]*snapshot, len(h.sources)), findings: make([]*[]dlock.Finding, len(h.sources)),
		own: make([]*ownLocks, len(h.sources)),
	}
	if err := v.control.Flush(); errors.Is(err, http.ErrNotSupported) {
		fail(w, http.StatusInternalServerError, "no_flush", "a handler in front of the page cannot flush: its ResponseWriter needs Flush or Unwrap")
		return
	}
	if v.greet() != nil {
		return
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for v.sendChanges() == nil {
		select {
		case <-changed:
		case <-beat.C:
			if v.send("beat", map[string]int64{"now": time.Now().UnixMilli()}) != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-h.closing.Done():
			return
		}
	}
}

func (v *viewer) greet() error {
	s := &v.settings
	first := hello{
		Now: time.Now().UnixMilli(), Started: v.started.UnixMilli(), Interval: s.interval.Milliseconds(),
		MaxLocks: s.maxLocks, Evict: s.evict, Sources: []status{},
	}
	for _, p := range v.sources {
		first.Sources = append(first.Sources, p.status(p.current()))
	}
	return v.send("hello", first)
}

// sendChanges sends what has changed since it was last called.
func (v *viewer) sendChanges() error {
	for i, p := range v.sources {
		if s := p.current(); s.seq > 0 && s != v.sent[i] {
			if err := v.sendUpdate(p, v.sent[i], s); err != nil {
				return err
			}
			v.sent[i] = s
		}
		if f := p.currentFindings(); f != v.findings[i] {
			if err := v.send("findings", map[string]any{"source": p.name, "findings": *f}); err != nil {
				return err
			}
			v.findings[i] = f
		}
		if own := p.own.read(); own != v.own[i] {
			if err := v.send("own_locks", map[string]any{"source": p.name, "own_locks": own}); err != nil {
				return err
			}
			v.own[i] = own
		}
	}
	if r := v.currentRings(); r != v.rings {
		if err := v.send("rings", map[string]any{"rings": *r}); err != nil {
			return err
		}
		v.rings = r
	}
	return nil
}

func (v *viewer) sendUpdate(p *poller, last, s *snapshot) error {
	u := update{Now: time.Now().UnixMilli(), status: p.status(s), Full: last == nil}
	if last == nil {
		last = &snapshot{}
	}
	d := s.since(last)
	u.Removed = append([]string{}, d.removed...)
	for {
		n := min(maxRows, len(d.changed))
		u.Changed, d.changed = append([]*row{}, d.changed[:n]...), d.changed[n:]
		if err := v.send("update", u); err != nil || len(d.changed) == 0 {
			return err
		}
		u.Full, u.Removed = false, []string{}
	}
}

// send writes one event. JSON has no line breaks, so it fits into one field.
func (v *viewer) send(event string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	v.limitWriting(v.control, writeTimeout)
	if _, err := fmt.Fprintf(v.w, "event: %s\ndata: %s\n\n", event, text); err != nil {
		return err
	}
	return v.control.Flush()
}
