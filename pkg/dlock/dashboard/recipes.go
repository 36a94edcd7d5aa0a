package dashboard

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/internal/recipes"
)

// What package election and package once store are locks, so the reading of all locks shows leaders
// and jobs, too: they cost no further question to the backend.

// The roles of locks that belong to an election or a job.
const (
	roleLeader = "leader" // of an election
	roleValue  = "value"  // carries the value of a leader
	roleJob    = "job"
	roleRuns   = "runs" // has the records of a job
)

// A leader is what the holder of an election's lock has published.
type leader struct {
	Value string `json:"value,omitempty"`
}

// A process is who holds a lock or has run a job.
type process struct {
	Owner string `json:"owner,omitempty"`
	Host  string `json:"host,omitempty"`
	PID   int    `json:"pid,omitempty"`
}

func (c *claim) process() process { return process{c.Owner, c.Host, c.PID} }

// The states of a job.
const (
	jobRuns = "running" // or its process has died, and its lease has not ended
	jobDone = "done"    // it has run, and is not due yet
	jobDue  = "due"     // the next process that schedules it runs it
)

// A job is what its records and its lock show.
type job struct {
	Key   string `json:"key"`
	State string `json:"state"`
	// Due is when its lock ends: no run begins earlier. It is in the past if the job is due; 0 if it is not known.
	Due    int64   `json:"due,omitempty"`
	Since  int64   `json:"since,omitempty"` // of the run that goes on
	Runner process `json:"runner,omitzero"` // of that run
	Last   run     `json:"last"`
}

// A run is the record of a run that has ended.
type run struct {
	Ended int64   `json:"ended"`
	Took  float64 `json:"took_ms"`
	OK    bool    `json:"ok"`
	Error string  `json:"error,omitempty"`
	process
	lost bool
}

func newRun(c *claim) (run, bool) {
	result, ok := recipes.ParseResult(c.Purpose)
	r := run{Ended: c.Since, Took: milliseconds(result.Took), OK: result.OK, Error: result.Error, process: c.process(), lost: result.Lost}
	return r, ok && c.Mode == modeShared
}

const modeShared = "shared"

// A part is what a lock is in an election or a job. Only the lock with the records has a job, because
// the job's own lock may be free.
type part struct {
	Role   string  `json:"role,omitempty"`
	Leader *leader `json:"leader,omitempty"`
	Job    *job    `json:"job,omitempty"`
}

func (p part) same(o part) bool {
	return p.Role == o.Role && sameValue(p.Leader, o.Leader) && sameValue(p.Job, o.Job)
}

func sameValue[T comparable](a, b *T) bool { return a == b || (a != nil && b != nil && *a == *b) }

// findParts sets the parts of all rows, which were read at this time. Rows of old are shared with earlier
// snapshots, so a row whose part differs is copied.
func findParts(rows, old map[string]*row, at time.Time) {
	for key, r := range rows {
		now := partOf(rows, r, old[key], at.UnixMilli())
		if now.same(r.part) {
			continue
		}
		copied := *r
		copied.part = now
		rows[key] = &copied
	}
}

func partOf(rows map[string]*row, r, old *row, at int64) part {
	if name, ok := strings.CutSuffix(r.Key, recipes.ValueSuffix); ok && isElection(rows, name) {
		return part{Role: roleValue}
	}
	if key, ok := strings.CutSuffix(r.Key, recipes.RunsSuffix); ok {
		if j := jobOf(key, r, rows[key], old, at); j != nil {
			return part{Role: roleRuns, Job: j}
		}
	}
	if isElection(rows, r.Key) {
		value, _ := valueOf(rows, r)
		return part{Role: roleLeader, Leader: &leader{value}}
	}
	if runs := rows[r.Key+recipes.RunsSuffix]; runs != nil && jobOf(r.Key, runs, r, nil, at) != nil {
		return part{Role: roleJob}
	}
	return part{}
}

// isElection reports whether candidates wait for the lock or hold it, or its holder has published a value.
func isElection(rows map[string]*row, name string) bool {
	r := rows[name]
	if r == nil {
		return false
	}
	isCandidate := func(c claim) bool { return c.Purpose == recipes.Candidate && c.Mode == modeExclusive }
	if slices.ContainsFunc(r.holders, isCandidate) || slices.ContainsFunc(r.queue, isCandidate) {
		return true
	}
	_, ok := valueOf(rows, r)
	return ok
}

// valueOf returns what the holder of the lock has published in its term.
func valueOf(rows map[string]*row, r *row) (string, bool) {
	carrier := rows[r.Key+recipes.ValueSuffix]
	if carrier == nil || len(carrier.holders) != 1 || len(r.holders) != 1 {
		return "", false
	}
	term, value, ok := recipes.ParseValue(carrier.holders[0].Purpose)
	if !ok || term != number(r.holders[0].Token) {
		return "", false
	}
	return value, true
}

// jobOf returns the job whose records are the holders of runs, or nil if there are none. lock is the
// job's own lock, nil while it is free. old is runs as it was read before; at is the time of this reading.
func jobOf(key string, runs, lock, old *row, at int64) *job {
	last, ok := lastRun(runs)
	if !ok {
		return nil
	}
	j := &job{Key: key, State: jobDue, Last: last}
	if lock == nil || len(lock.holders) == 0 {
		if old != nil && old.Job != nil {
			j.Due = min(old.Job.Due, at) // it may have been released early
		}
		return j
	}
	holder := &lock.holders[0]
	j.State, j.Due = jobDone, holder.Until
	if last.process != holder.process() || last.Ended+jitter < holder.Since {
		j.State, j.Since, j.Runner = jobRuns, holder.Since, holder.process()
	}
	return j
}

// lastRun returns the newest record.
func lastRun(runs *row) (run, bool) {
	all := runsOf(runs)
	if len(all) == 0 {
		return run{}, false
	}
	return all[0], true
}

// maxRuns is how many records of a job are shown.
const maxRuns = 100

// runsOf returns the newest records, the newest first. Holders are sorted by token.
func runsOf(runs *row) []run {
	if runs == nil {
		return []run{}
	}
	var all []run
	for i := max(len(runs.holders)-maxRuns, 0); i < len(runs.holders); i++ {
		if r, ok := newRun(&runs.holders[i]); ok {
			all = append(all, r)
		}
	}
	began := func(r run) time.Time {
		return time.UnixMilli(r.Ended).Add(-time.Duration(r.Took * float64(time.Millisecond)))
	}
	return append([]run{}, recipes.Newest(all, func(r run) bool { return r.lost }, began)...)
}

// jobKey returns the key of the job that the lock belongs to.
func jobKey(r *row) string {
	if r.Role == roleRuns {
		return r.Job.Key
	}
	return r.Key
}

// A leadership is an election as the API lists it.
type leadership struct {
	Key        string `json:"key"`
	Term       string `json:"term,omitempty"` // missing without a leader
	Value      string `json:"value,omitempty"`
	Since      int64  `json:"since,omitempty"`
	WithWait   bool   `json:"with_wait,omitempty"`
	Candidates *int   `json:"candidates"` // that wait; nil if the backend does not know
	process
}

func (r *row) leadership() leadership {
	l := leadership{Key: r.Key, Value: r.Leader.Value, Candidates: r.Waiters}
	if len(r.holders) > 0 {
		h := &r.holders[0]
		l.Term, l.Since, l.WithWait, l.process = h.Token, h.Since, h.WithWait, h.process()
	}
	return l
}

type sourceLeaders struct {
	status
	Leaders []leadership `json:"leaders"`
}

// getLeaders answers with the elections of all sources, or of one.
func (h *Handler) getLeaders(w http.ResponseWriter, r *http.Request) {
	answerFrom(h, w, r, func(s status, rows []*row) sourceLeaders {
		all := sourceLeaders{s, []leadership{}}
		for _, r := range rows {
			if r.Leader != nil {
				all.Leaders = append(all.Leaders, r.leadership())
			}
		}
		return all
	})
}

type sourceJobs struct {
	status
	Jobs []*job `json:"jobs"`
}

// getJobs answers with the jobs of all sources, or of one.
func (h *Handler) getJobs(w http.ResponseWriter, r *http.Request) {
	answerFrom(h, w, r, func(s status, rows []*row) sourceJobs {
		all := sourceJobs{s, []*job{}}
		for _, r := range rows {
			if r.Job != nil {
				all.Jobs = append(all.Jobs, r.Job)
			}
		}
		slices.SortFunc(all.Jobs, func(a, b *job) int { return cmp.Compare(a.Key, b.Key) })
		return all
	})
}

// answerFrom answers with what do makes of the locks of all sources, or of the one that the request
// names. They are sorted by key.
func answerFrom[T any](h *Handler, w http.ResponseWriter, r *http.Request, do func(status, []*row) T) {
	sources, query := h.sources, r.URL.Query()
	if query.Has("source") {
		p := h.named(w, query.Get("source"))
		if p == nil {
			return
		}
		sources = []*poller{p}
	}
	leave, ok := h.visit(w, r, sources, (*poller).hasRead)
	if !ok {
		return
	}
	defer leave()
	all := []T{}
	for _, p := range sources {
		s := p.current()
		all = append(all, do(p.known(s), s.sorted()))
	}
	answer(w, http.StatusOK, map[string]any{"now": time.Now().UnixMilli(), "sources": all})
}
