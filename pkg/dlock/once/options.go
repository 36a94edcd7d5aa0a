package once

import (
	"fmt"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// An Option changes a Job.
type Option func(*settings)

type settings struct {
	hold, lease, wait, retention time.Duration

	retries, records bool
	info             dlock.Info
}

// WithHold sets how long the key stays locked from the beginning of a run on, whatever the run does: the least time between
// two runs. It is at most the interval and at most 24 h. The default is the interval minus a tenth of it, and minus at
// most a minute: so much may the clocks of the processes differ without a run being skipped. From 12 h on, it is the interval
// minus 65 minutes, for the hour that is missing when summer time begins. An interval above 25 h needs this option. etcd rounds
// it up to seconds.
func WithHold(least time.Duration) Option { return func(s *settings) { s.hold = least } }

// WithLease sets how long the key outlives a process that dies in a run that takes longer than the hold. The default is
// 30 s, or the hold if that is shorter. A third of it, and at most ten seconds, is the time in which a run finds that its lock was
// taken away.
func WithLease(ttl time.Duration) Option { return func(s *settings) { s.lease = ttl } }

// WithWait makes Do wait until the job is due, at most this long and at most until its context ends. The default is to
// skip.
func WithWait(longest time.Duration) Option { return func(s *settings) { s.wait = longest } }

// WithRetry releases the key at once if the job fails, so that any process may try again. Without it, a job that fails has
// run. A process that dies does not release the key.
func WithRetry() Option { return func(s *settings) { s.retries = true } }

// WithRetention sets how long the record of a run is kept. The default is ten intervals; the most is 24 h.
func WithRetention(d time.Duration) Option { return func(s *settings) { s.retention = d } }

// WithoutRecord stores no record of the runs: see Job.Last. The record contains the text of the job's error. On Redlock
// there is never a record, because it has no shared locks.
func WithoutRecord() Option { return func(s *settings) { s.records = false } }

// WithInfo describes the process in the key and in the record. Empty fields keep the defaults: the program, the host, the
// process ID.
func WithInfo(info dlock.Info) Option { return func(s *settings) { s.info = info } }

// slack is how much earlier than an interval after its last run a job may run.
func slack(every time.Duration) time.Duration {
	if every >= halfDay {
		return summerSlack
	}
	return min(every/10, maxSlack)
}

// setDefaults fills in what is not set, and checks the result.
func (s *settings) setDefaults(every time.Duration) error {
	if s.hold == 0 {
		s.hold = every - slack(every)
		if s.hold > maxLease {
			return fmt.Errorf("an interval of %v needs WithHold, of at most %v", every, maxLease)
		}
	}
	if s.lease == 0 {
		s.lease = min(s.hold, dfltLease)
	}
	if s.retention == 0 {
		s.retention = maxLease
		if every < maxLease/recordsKept {
			s.retention = max(recordsKept*every, time.Second)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
		most  time.Duration
	}{
		{"WithHold", s.hold, min(every, maxLease)}, {"WithLease", s.lease, maxLease}, {"WithRetention", s.retention, maxLease},
	} {
		if d.value <= 0 || d.value > d.most {
			return fmt.Errorf("%s %v is not above 0 and at most %v", d.name, d.value, d.most)
		}
	}
	if s.wait < 0 {
		return fmt.Errorf("WithWait %v is negative", s.wait)
	}
	return nil
}
