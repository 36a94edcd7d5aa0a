package dashboard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/internal/recipes"
)

// A status is how a source is.
type status struct {
	Source  string  `json:"source"`
	Backend string  `json:"backend"`
	Seq     uint64  `json:"seq"`
	At      int64   `json:"at"` // when it was last read, in milliseconds since 1970; 0 if never
	Locks   int     `json:"locks"`
	More    bool    `json:"more"` // there are more locks than were read
	Answer  float64 `json:"answer_ms"`
	Round   float64 `json:"round_ms"`
	Error   string  `json:"error,omitempty"`
}

func (p *poller) status(s *snapshot) status {
	return status{
		Source: p.name, Backend: string(p.client.Backend()), Seq: s.seq, At: s.readAt(), Locks: len(s.rows), More: s.more,
		Answer: milliseconds(s.answer), Round: milliseconds(s.round), Error: s.err,
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// known is the status of a source for an answer without a stream, which says what is missing.
func (p *poller) known(s *snapshot) status {
	st := p.status(s)
	if s.seq == 0 {
		st.Error = errNotRead.Error()
	}
	return st
}

// freshWithin limits how long a request waits for the first reading.
const freshWithin = lockreader.Timeout + 2*time.Second

// visit makes the sources read for as long as a request lasts, and waits until all are ready, or
// long enough: one source that hangs does not hide the others. It returns false if the request is
// answered.
func (h *Handler) visit(w http.ResponseWriter, r *http.Request, sources []*poller, ready func(*poller) bool) (leave func(), ok bool) {
	done, ok := h.enter(w)
	if !ok {
		fail(w, http.StatusServiceUnavailable, "closed", "the page is closed")
		return nil, false
	}
	changed, cancel := h.subscribe()
	leaves := []func(){cancel}
	for _, p := range sources {
		leaves = append(leaves, p.join())
	}
	leave = func() {
		for _, l := range leaves {
			l()
		}
		done()
	}
	ctx, cancelWait := context.WithTimeout(r.Context(), freshWithin)
	defer cancelWait()
	for {
		if !slices.ContainsFunc(sources, func(p *poller) bool { return !ready(p) }) {
			return leave, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return leave, true
		case <-h.closing.Done():
			leave()
			fail(w, http.StatusServiceUnavailable, "closed", "the page is closed")
			return nil, false
		}
	}
}

// named returns the source that the request names, or answers 404.
func (h *Handler) named(w http.ResponseWriter, name string) *poller {
	p := h.source(name)
	if p == nil {
		fail(w, http.StatusNotFound, "unknown_source", "there is no source of this name")
	}
	return p
}

// sourceLocks is the locks of a source.
type sourceLocks struct {
	status
	Rows []*row `json:"rows"`
}

// getLocks answers with the locks of all sources, or of one.
func (h *Handler) getLocks(w http.ResponseWriter, r *http.Request) {
	prefix := r.URL.Query().Get("prefix")
	answerFrom(h, w, r, func(s status, rows []*row) sourceLocks {
		return sourceLocks{s, slices.DeleteFunc(rows, func(r *row) bool { return !strings.HasPrefix(r.Key, prefix) })}
	})
}

// maxClaims is how many holders, and how many waiters, of a lock are shown.
const maxClaims = 1000

// A detail is everything about one lock.
type detail struct {
	Now     int64  `json:"now"`
	Source  string `json:"source"`
	Backend string `json:"backend"`
	At      int64  `json:"at"`
	// SourceError says why the last reading failed: the lock is as it was at At.
	SourceError string `json:"source_error,omitempty"`
	Interval    int64  `json:"interval_ms"`
	Started     int64  `json:"started"` // since when the history could be kept
	row
	Holders []claim   `json:"holders"` // the first 1,000, by token
	Queue   []claim   `json:"queue"`   // the first 1,000, in the order of the backend
	History []holding `json:"history"` // the oldest first
	Runs    []run     `json:"runs"`    // of a job: the newest 100 whose records are kept, the newest first
	// CannotEvict says why the holder cannot be evicted.
	CannotEvict string `json:"cannot_evict,omitempty"`
}

// getLock answers with one lock. A lock that is free has no holders and no queue.
func (h *Handler) getLock(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Query().Get("key")
	p := h.named(w, r.URL.Query().Get("source"))
	if p == nil {
		return
	}
	leave, ok := h.visit(w, r, []*poller{p}, (*poller).hasRead)
	if !ok {
		return
	}
	defer leave()
	rows, at, sourceErr, err := h.find(r.Context(), p, key)
	switch {
	case errors.Is(err, errBusy):
		fail(w, http.StatusServiceUnavailable, "busy", err.Error())
		return
	case errors.Is(err, dlock.ErrInvalidKey):
		fail(w, http.StatusBadRequest, "bad_key", err.Error())
		return
	case err != nil:
		fail(w, http.StatusBadGateway, "backend", "the backend cannot be read, so it is not known whether the lock is free: "+err.Error())
		return
	}
	found := rows[key]
	if found == nil {
		found = freeRow(key, p.client.Backend())
	}
	d := detail{
		Now: time.Now().UnixMilli(), Source: p.name, Backend: string(p.client.Backend()), At: at.UnixMilli(), SourceError: sourceErr,
		Interval: h.settings.interval.Milliseconds(), Started: h.started.UnixMilli(), row: *found,
		Holders: firstOf(found.holders), Queue: firstOf(found.queue), History: p.past(key),
	}
	runs := rows[jobKey(found)+recipes.RunsSuffix]
	d.Runs = runsOf(runs)
	if runs != nil {
		d.Job = runs.Job // also if the lock is free
	}
	if len(found.holders) > 0 {
		first := &found.holders[0]
		if err := lockreader.CannotEvict(p.client.Backend(), key, number(first.Token), first.info()); err != nil {
			d.CannotEvict = err.Error()
		}
	}
	answer(w, http.StatusOK, d)
}

var errNotRead = errors.New("the backend has not answered yet")

// listedTimeout limits how long the page of a lock that is in the list waits for the keys with its parts.
const listedTimeout = time.Second

// find returns rows with what is known of a key, when they were read, and why they were not read since. A key
// that is missing is free. If there are more locks than were read, the backend is asked for the key and those
// with its parts. If it takes long, what the list has of the key has to do.
func (h *Handler) find(ctx context.Context, p *poller, key string) (rows map[string]*row, at time.Time, sourceErr string, err error) {
	s := p.current()
	listed := func(key string) bool { return s.rows[key] != nil }
	switch {
	case s.err != "" && (s.at.IsZero() || !s.more && !listed(key)):
		return nil, s.at, "", errors.New(s.err)
	case s.at.IsZero():
		return nil, s.at, "", errNotRead
	case !s.more || !slices.ContainsFunc(relatedTo(key), func(k string) bool { return !listed(k) }):
		return s.rows, s.at, s.err, nil
	}
	if key == "" || len(key) > maxKey {
		return nil, s.at, "", fmt.Errorf("%w: it has %d bytes, not 1 to %d", dlock.ErrInvalidKey, len(key), maxKey)
	}
	if !listed(key) {
		rows, at, err = p.asker.ask(ctx, key)
		return rows, at, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, listedTimeout)
	defer cancel()
	asked, _, err := p.asker.ask(ctx, key)
	rows = s.rows
	if err == nil { // otherwise the list has to do
		rows = maps.Clone(asked)
		rows[key] = s.rows[key] // whose times are those of the list
		findParts(rows, s.rows, s.at)
	}
	return rows, s.at, s.err, nil
}

func freeRow(key string, backend dlock.BackendType) *row {
	r := &row{Key: key}
	r.finish(backend)
	return r
}

// firstOf returns as many claims as are shown; it is never nil.
func firstOf(claims []claim) []claim {
	if claims == nil {
		return []claim{}
	}
	return claims[:min(maxClaims, len(claims))]
}

func (c *claim) info() dlock.Info {
	return dlock.Info{Owner: c.Owner, Host: c.Host, PID: c.PID, Purpose: c.Purpose}
}

// health is how all sources are.
type health struct {
	Now     int64          `json:"now"`
	Sources []sourceHealth `json:"sources"`
	Rings   []ring         `json:"rings"`
}

type sourceHealth struct {
	status
	Level    dlock.Level     `json:"level"`
	Findings []dlock.Finding `json:"findings"`
	Own      *ownLocks       `json:"own_locks"`
}

// getHealth answers with the findings about all sources.
func (h *Handler) getHealth(w http.ResponseWriter, r *http.Request) {
	leave, ok := h.visit(w, r, h.sources, (*poller).hasChecked)
	if !ok {
		return
	}
	defer leave()
	all := health{Now: time.Now().UnixMilli(), Sources: []sourceHealth{}, Rings: *h.currentRings()}
	for _, p := range h.sources {
		findings := []dlock.Finding{}
		if known := p.currentFindings(); known != nil {
			findings = *known
		}
		all.Sources = append(all.Sources, sourceHealth{p.known(p.current()), lockreader.Worst(findings), findings, p.own.read()})
	}
	answer(w, http.StatusOK, all)
}
