// Package oncerobfig wraps jobs of github.com/robfig/cron/v3, so that each run happens on one of several processes. A job
// is not told if its lock is lost, because it has no context: use once.Job itself where that matters.
package oncerobfig

import (
	"context"

	"github.com/robfig/cron/v3"

	"github.com/ceyewan/genesis/pkg/dlock/once"
)

// Wrap returns a JobWrapper that runs a job at most once per interval of the once.Job, on one of several processes. Use one
// once.Job for each job: cron.WithChain would let all jobs of a Cron share it. A panic of the job counts as a failed run,
// and is passed on, for instance to cron.Recover before this wrapper in the chain. The log, if it is not nil, gets what goes wrong
// with the lock, and a line of level info when a run is skipped.
func Wrap(job *once.Job, log cron.Logger) cron.JobWrapper {
	if log == nil {
		log = cron.DiscardLogger
	}
	return func(wrapped cron.Job) cron.Job {
		return cron.FuncJob(func() {
			ran, err := job.Do(context.Background(), func(context.Context) error {
				wrapped.Run()
				return nil
			})
			switch {
			case err != nil:
				log.Error(err, "once", "key", job.Key(), "ran", ran)
			case !ran:
				log.Info("skip", "key", job.Key())
			}
		})
	}
}
