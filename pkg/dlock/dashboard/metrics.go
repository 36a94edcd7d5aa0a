package dashboard

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// The metrics are written by hand: a library for them would be most of what a service with the page links.

// A tally is what a poller has counted. Its zero value is ready for use.
type tally struct {
	ok, failed         atomic.Int64 // readings
	checks, evictCalls atomic.Int64
	evictions          [len(evictionResults)]atomic.Int64

	mu      sync.Mutex
	buckets [len(readingBounds) + 1]int64 // readings by duration; the last has no bound
	sum     time.Duration
}

var (
	evictionResults = [...]string{resultEvicted, resultRefused, resultUnknown}
	readingBounds   = [...]time.Duration{
		time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	}
)

// reading counts one reading of all locks.
func (t *tally) reading(took time.Duration, failed bool) {
	if failed {
		t.failed.Add(1)
	} else {
		t.ok.Add(1)
	}
	bucket := 0
	for bucket < len(readingBounds) && took > readingBounds[bucket] {
		bucket++
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buckets[bucket]++
	t.sum += took
}

func (t *tally) eviction(result string) {
	for i, name := range evictionResults {
		if name == result {
			t.evictions[i].Add(1)
		}
	}
}

// The reasons for which a request is refused before it is served.
const (
	refusedHost = iota
	refusedOrigin
	refusedToken
)

var refusals = [...]string{refusedHost: "host", refusedOrigin: "origin", refusedToken: "token"}

// getMetrics answers in Prometheus' text format with what the page knows. It asks no backend.
func (h *Handler) getMetrics(w http.ResponseWriter, _ *http.Request) {
	leave, ok := h.enter(w)
	if !ok {
		fail(w, http.StatusServiceUnavailable, "closed", "the page is closed")
		return
	}
	defer leave()
	var e exposition
	e.family("dlock_page_viewers", "gauge", "Pages that are open in a browser.")
	e.sample("", float64(len(h.slots)))
	e.family("dlock_page_possible_deadlocks", "gauge", "Rings of owners that wait for each other, at most 20.")
	e.sample("", float64(len(*h.currentRings())))
	e.family("dlock_page_refused_requests_total", "counter", "Requests under a foreign host name, from another site, or without the token.")
	for i, reason := range refusals {
		e.sample("", float64(h.refused[i].Load()), "reason", reason)
	}
	all := make([]state, len(h.sources))
	for i, p := range h.sources {
		all[i] = p.state()
	}
	e.readings(all)
	e.contents(all)
	e.ownLocks(all)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(e.String())) // the client has gone
}

// A state is what is known of a source at one time.
type state struct {
	*poller
	snapshot *snapshot
	labels   []string

	waiters, leaders, failed int
	jobs                     map[string]int // by state
}

func (p *poller) state() state {
	s := state{poller: p, snapshot: p.current(), labels: []string{"source", p.name, "backend", string(p.client.Backend())}, jobs: map[string]int{}}
	for _, r := range s.snapshot.rows {
		s.waiters += len(r.queue)
		if r.Leader != nil && r.HolderCount > 0 {
			s.leaders++
		}
		if r.Job == nil {
			continue
		}
		s.jobs[r.Job.State]++
		if !r.Job.Last.OK {
			s.failed++
		}
	}
	return s
}

// readings writes how the sources were read.
func (e *exposition) readings(all []state) {
	e.family("dlock_page_readings_total", "counter", "Readings of all locks of a source, while the page was open.")
	for _, s := range all {
		e.sample("", float64(s.tally.ok.Load()), append(s.labels, "result", "ok")...)
		e.sample("", float64(s.tally.failed.Load()), append(s.labels, "result", "failed")...)
	}
	e.family("dlock_page_reading_duration_seconds", "histogram", "How long a reading of all locks took.")
	for _, s := range all {
		e.histogram(s.tally, s.labels)
	}
	e.family("dlock_page_backend_calls_total", "counter", "Questions to the backend, with retries.")
	for _, s := range all {
		lists, inspects := s.reader.Calls()
		for _, c := range []struct {
			name string
			n    int64
		}{{"list", lists}, {"inspect", inspects}, {"check", s.tally.checks.Load()}, {"evict", s.tally.evictCalls.Load()}} {
			e.sample("", float64(c.n), append(s.labels, "call", c.name)...)
		}
	}
	e.family("dlock_page_evictions_total", "counter", "Evictions that were asked for, by result.")
	for _, s := range all {
		for i, result := range evictionResults {
			e.sample("", float64(s.tally.evictions[i].Load()), append(s.labels, "result", result)...)
		}
	}
	e.family("dlock_page_readable", "gauge", "1 if the last reading succeeded, 0 if it failed; missing before the first one.")
	for _, s := range all {
		if s.snapshot.seq > 0 {
			e.sample("", truth(s.snapshot.err == ""), s.labels...)
		}
	}
	e.family("dlock_page_last_reading_timestamp_seconds", "gauge", "When the locks were last read; missing before.")
	for _, s := range all {
		if !s.snapshot.at.IsZero() {
			e.sample("", float64(s.snapshot.at.UnixMilli())/1000, s.labels...)
		}
	}
	e.family("dlock_page_findings", "gauge", "What the settings of the backend were found to be, by level; missing before the first check.")
	for _, s := range all {
		findings := s.currentFindings()
		if findings == nil {
			continue
		}
		for _, level := range lockreader.Levels {
			e.sample("", float64(countLevel(*findings, level)), append(s.labels, "level", string(level))...)
		}
	}
}

// contents writes what the last reading of the sources has shown.
func (e *exposition) contents(all []state) {
	for _, f := range []struct {
		name, help string
		value      func(state) float64
	}{
		{"dlock_page_locks", "Locks in the last reading.", func(s state) float64 { return float64(len(s.snapshot.rows)) }},
		{"dlock_page_locks_left_out", "1 if there are more locks than are read.", func(s state) float64 { return truth(s.snapshot.more) }},
		{"dlock_page_waiters", "Clients that wait for these locks, where the backend knows them.", func(s state) float64 { return float64(s.waiters) }},
		{"dlock_page_leaders", "Elections that have a leader.", func(s state) float64 { return float64(s.leaders) }},
		{"dlock_page_jobs_failed", "Jobs whose last run failed.", func(s state) float64 { return float64(s.failed) }},
	} {
		e.family(f.name, "gauge", f.help)
		for _, s := range all {
			if !s.snapshot.at.IsZero() {
				e.sample("", f.value(s), s.labels...)
			}
		}
	}
	e.family("dlock_page_jobs", "gauge", "Jobs by state.")
	for _, s := range all {
		for _, name := range []string{jobRuns, jobDone, jobDue} {
			if !s.snapshot.at.IsZero() {
				e.sample("", float64(s.jobs[name]), append(s.labels, "state", name)...)
			}
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func countLevel(findings []dlock.Finding, level dlock.Level) (n int) {
	for _, f := range findings {
		if f.Level == level {
			n++
		}
	}
	return n
}

// An exposition is a text in Prometheus' format.
type exposition struct {
	strings.Builder
	name string // of the family
}

func (e *exposition) family(name, kind, help string) {
	e.name = name
	fmt.Fprintf(e, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

var labelValue = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// sample writes a value with labels, given as name and value in turn.
func (e *exposition) sample(suffix string, value float64, labels ...string) {
	e.WriteString(e.name + suffix)
	for i := 0; i < len(labels); i += 2 {
		sign := ","
		if i == 0 {
			sign = "{"
		}
		fmt.Fprintf(e, `%s%s="%s"`, sign, labels[i], labelValue.Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD")))
	}
	if len(labels) > 0 {
		e.WriteByte('}')
	}
	e.WriteString(" " + strconv.FormatFloat(value, 'f', -1, 64) + "\n")
}

func (e *exposition) histogram(t *tally, labels []string) {
	t.mu.Lock()
	buckets, sum := t.buckets, t.sum
	t.mu.Unlock()
	n := int64(0)
	for i, bound := range readingBounds {
		n += buckets[i]
		e.sample("_bucket", float64(n), append(labels, "le", strconv.FormatFloat(bound.Seconds(), 'f', -1, 64))...)
	}
	n += buckets[len(readingBounds)]
	e.sample("_bucket", float64(n), append(labels, "le", "+Inf")...)
	e.sample("_sum", sum.Seconds(), labels...)
	e.sample("_count", float64(n), labels...)
}
