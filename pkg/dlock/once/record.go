package once

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/internal/recipes"
)

// A Run is the record of a run that has ended.
type Run struct {
	Ended time.Time     // by this process's clock, from the age that the backend reports
	Took  time.Duration // as the process that ran it measured it
	OK    bool
	Lost  bool   // it failed because its lock was lost
	Error string // of a run that failed; at most about 200 bytes

	Owner string // the program
	Host  string
	PID   int
}

// Began returns when the run began.
func (r Run) Began() time.Time { return r.Ended.Add(-r.Took) }

// Result returns the result and how long it took, such as "ok in 3.2s", "failed in 1s: exit status 1" or "lost in 1s: " and why.
func (r Run) Result() string {
	return recipes.Result{OK: r.OK, Lost: r.Lost, Took: r.Took, Error: r.Error}.String()
}

const maxPurpose = 256 // bytes, as in package dlock

// record stores what became of a run, as a shared lock on key+":runs" that is left to its lease.
func (r *running) record(ctx context.Context, took time.Duration, failed, lost error) error {
	if !r.records {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	failed = cmp.Or(failed, lost)
	result := Run{Took: took, OK: failed == nil, Lost: lost != nil}
	if failed != nil {
		result.Error = oneLine(failed.Error())
	}
	retention := r.retention
	if failed != nil && r.retries { // there may be many of them in one interval
		retention = min(retention, r.hold)
	}
	info := r.info
	info.Purpose = truncate(result.Result(), maxPurpose)
	guard, err := r.locks.Acquire(ctx, r.key+recipes.RunsSuffix,
		dlock.WithShared(), dlock.WithoutRenewal(), dlock.WithTTL(retention), dlock.WithWait(0), dlock.WithInfo(info))
	if err == nil {
		err = guard.Leave()
	}
	if err != nil && !errors.Is(err, dlock.ErrUnsupported) { // Redlock has no shared locks
		return fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	return nil
}

// oneLine returns text as a lock can store it.
func oneLine(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

// truncate cuts valid UTF-8 to at most n bytes.
func truncate(text string, n int) string {
	const dots = "…"
	if len(text) <= n {
		return text
	}
	n -= len(dots)
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + dots
}

// Last returns the newest run that has ended and whose record is still kept, and false if there is none. A run that lost its
// lock is older than one that began later, although it may have ended later. The Client must
// be created with dlock.WithAdmin; otherwise the error is dlock.ErrUnsupported. A run whose process died has no record: the
// key itself shows it, as long as it is locked.
func (j *Job) Last(ctx context.Context) (Run, bool, error) {
	runs, err := j.Runs(ctx)
	if err != nil || len(runs) == 0 {
		return Run{}, false, err
	}
	return runs[0], true, nil
}

// Runs returns the runs whose records are kept, the newest first. See Last.
func (j *Job) Runs(ctx context.Context) ([]Run, error) {
	admin, err := j.locks.Admin()
	if err != nil {
		return nil, err
	}
	return RunsOf(ctx, admin, j.key)
}

// RunsOf returns the runs of the job with this key whose records are kept, the newest first. It is for operators, who
// do not know the interval of the job.
func RunsOf(ctx context.Context, admin *dlock.Admin, key string) ([]Run, error) {
	if admin == nil {
		return nil, fmt.Errorf("%w: once: the Admin is nil", dlock.ErrInvalidConfig)
	}
	claims, err := admin.Inspect(ctx, key+recipes.RunsSuffix)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	slices.SortStableFunc(claims, func(a, b dlock.Claim) int { return cmp.Compare(a.Token, b.Token) })
	var runs []Run
	for i := range claims {
		if run, ok := runOf(&claims[i], now); ok {
			runs = append(runs, run)
		}
	}
	return recipes.Newest(runs, func(r Run) bool { return r.Lost }, Run.Began), nil
}

// runOf reads a record. Other locks on the same key are none.
func runOf(c *dlock.Claim, now time.Time) (Run, bool) {
	result, ok := recipes.ParseResult(c.Info.Purpose)
	run := Run{
		Ended: now.Add(-c.Age), Took: result.Took, OK: result.OK, Lost: result.Lost, Error: result.Error,
		Owner: c.Info.Owner, Host: c.Info.Host, PID: c.Info.PID,
	}
	return run, ok && c.Phase == dlock.PhaseHeld && c.Mode == dlock.ModeShared
}
