package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
)

// A status is the exit code of a command that failed, as the record of its run says it.
type status int

func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// runEvery runs the command unless it has run within the interval, on any host.
func (r *run) runEvery(signals <-chan os.Signal) error {
	if r.Name == "file" {
		return usage(r.cmd, "--every needs a backend with leases, such as Redis or etcd: a lock that is a file ends with its process")
	}
	job, err := once.New(r.client, r.key, r.every, r.jobOptions()...)
	if err != nil {
		return backendError(err)
	}
	asked, cancel := context.WithCancelCause(r.cmd.Context())
	defer cancel(nil)
	unwatch, stop := r.watchWait(signals, cancel), r.reporter.waits(r.session, r.key)
	endWait := sync.OnceFunc(func() {
		stop()
		unwatch()
	})
	defer endWait()
	var code int
	var failed error // that the command could not be run, or had to be ended
	ran, err := job.Do(asked, func(ctx context.Context) error {
		endWait()
		var s signalled
		if errors.As(context.Cause(asked), &s) { // it came with the lock
			failed = &exit{exitSignal + int(s.number()), nil}
			return failed
		}
		r.guard, _ = dlock.FromContext(ctx)
		r.taken = time.Now()
		r.reporter.event(event{What: "acquired", Token: r.guard.Token()})
		if code, failed = r.supervise(signals); failed != nil {
			return failed
		}
		if code != 0 {
			return status(code)
		}
		return nil
	})
	endWait()
	switch {
	case ran:
		return r.finishEvery(code, failed, err)
	case err != nil:
		return waitError(asked, err)
	}
	return r.skip()
}

func (r *run) jobOptions() []once.Option {
	opts := []once.Option{once.WithLease(r.ttl), once.WithInfo(r.info()), once.WithWait(r.everyWait())}
	if r.retry {
		opts = append(opts, once.WithRetry())
	}
	return opts
}

// everyWait is what is left of --wait, which includes connecting.
func (r *run) everyWait() time.Duration {
	if !r.limited() {
		return r.wait
	}
	return min(r.wait, max(time.Until(r.giveUp), 0))
}

// finishEvery reports what else went wrong in a run whose command has ended.
func (r *run) finishEvery(code int, failed, err error) error {
	rest := withoutStatus(err)
	if errors.Is(rest, once.ErrNotRecorded) {
		r.reporter.event(event{What: "not-recorded", Error: oneLine(rest)})
	}
	switch {
	case failed != nil:
		return failed
	case errors.Is(rest, dlock.ErrOwnershipLost):
	case errors.Is(rest, once.ErrNotRecorded):
		rest = nil // it is reported
	}
	return r.conclude(code, rest)
}

// withoutStatus returns the errors of a run except the command's own.
func withoutStatus(err error) error {
	joined, ok := err.(interface{ Unwrap() []error }) // only the outermost
	if !ok {
		return nil
	}
	var rest []error
	for _, e := range joined.Unwrap() {
		var own status
		var ended *exit
		if !errors.As(e, &own) && !errors.As(e, &ended) {
			rest = append(rest, e)
		}
	}
	return errors.Join(rest...)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// brief is oneLine, cut: a collector may answer with a whole page.
func brief(err error) string {
	const most = 300
	text := []rune(oneLine(err))
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}

// skip says why the command does not run now, and when it will be due.
func (r *run) skip() error {
	ctx, cancel := context.WithTimeout(r.cmd.Context(), 2*leastPatience)
	defer cancel()
	r.skipped = true
	e := event{What: "skipped"}
	var last *lastRun
	if admin, err := r.client.Admin(); err == nil {
		last = findLastRun(ctx, admin, r.key)
	}
	began := "it is not due"
	for _, c := range r.inspect(ctx, r.key) {
		if c.Phase != dlock.PhaseHeld {
			continue
		}
		next := seconds(c.Remaining)
		e.Holder, e.Next = &holder{c.Info, c.Age.Seconds()}, &next
		began = fmt.Sprintf("began %s ago by %s and has not ended", age(c.Age), lockreader.Describe(c.Info))
		if last != nil && last.ago <= c.Age { // the record of the run that has locked the key
			began = last.text()
		}
		began += "; next in " + age(c.Remaining)
		break
	}
	e.Last, e.Error = last, began
	if r.asJSON {
		e.Error = ""
	}
	r.reporter.event(e)
	if r.cmd.Flags().Changed("conflict-exit-code") && r.conflict != 0 {
		return &exit{r.conflict, nil}
	}
	return nil
}

// A lastRun is the newest record of a job. Its JSON is documented in docs/cli.md.
type lastRun struct {
	Ended time.Time `json:"ended"`
	Took  float64   `json:"took_seconds"`
	OK    bool      `json:"ok"`
	Error string    `json:"error,omitempty"`
	Owner string    `json:"owner,omitempty"`
	Host  string    `json:"host,omitempty"`
	PID   int       `json:"pid,omitempty"`

	ago    time.Duration
	result string
}

// findLastRun returns nil if there is no record, or it cannot be read.
func findLastRun(ctx context.Context, admin *dlock.Admin, key string) *lastRun {
	runs, err := once.RunsOf(ctx, admin, key)
	if err != nil || len(runs) == 0 {
		return nil
	}
	r := &runs[0]
	return &lastRun{
		Ended: r.Ended, Took: seconds(r.Took), OK: r.OK, Error: r.Error, Owner: r.Owner, Host: r.Host, PID: r.PID,
		ago: time.Since(r.Ended), result: r.Result(),
	}
}

func (l *lastRun) text() string {
	return fmt.Sprintf("ran %s ago by %s, %s", age(l.ago), lockreader.Describe(dlock.Info{Owner: l.Owner, Host: l.Host, PID: l.PID}), l.result)
}
