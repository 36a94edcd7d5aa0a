package dlock

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Reports of the Client. They never contain a claim ID.

// unobserved reports whether no logger, meter or tracer was injected, so that usual calls have nothing to report.
func (c *Client) unobserved() bool { return c.warnsOnly && c.meters == nil && c.tracer == nil }

// report queues a report under mu; unlock sends it to the reporter.
func (c *Client) report(run func()) { c.reports = append(c.reports, report{run: run}) }

func (c *Client) logAcquired(g *Guard, started int64) {
	c.logDuration("lock acquired", "wait", g, started)
}
func (c *Client) logReleased(g *Guard) { c.logDuration("lock released", "hold", g, g.since) }

// logDuration runs on the goroutine of the user's call.
func (c *Client) logDuration(msg, what string, g *Guard, from int64) {
	if c.warnsOnly {
		return
	}
	safely(func() {
		if !c.log.Enabled(context.Background(), c.cfg.lockLevel()) {
			return
		}
		c.logLock(msg, g, clog.Duration(what, time.Duration(c.now()-from)))
	})
}

// logLock logs a usual event of a lock.
func (c *Client) logLock(msg string, g *Guard, more ...clog.Field) {
	fields := append([]clog.Field{clog.String("key", g.claim.key), clog.String("owner", g.claim.owner()), clog.Int64("token", g.token)}, more...)
	if c.cfg.LockLogLevel == "debug" {
		c.log.Debug(msg, fields...)
	} else {
		c.log.Info(msg, fields...)
	}
}

// logRetry logs a failure of a call that is retried: the first, second, fourth, eighth and so on. Thousands of callers that
// wait would log the same cause, so there is a limit for all of them.
func (c *Client) logRetry(key string, failures int, err error) {
	if c.quiet || failures&(failures-1) != 0 {
		return
	}
	skipped, ok := c.retryLog.next(c.now())
	if !ok {
		return
	}
	c.reporter.add([]report{{run: func() {
		fields := []clog.Field{clog.String("key", key), clog.Int("attempts", failures), clog.Error(err)}
		if skipped > 0 {
			fields = append(fields, clog.Int("skipped", skipped))
		}
		c.log.Warn("backend fails", fields...)
	}}})
}

// retryLines is how many failures of retried calls a Client logs in a second.
const retryLines = 16

// A retryLog limits how often failures of retried calls are logged.
type retryLog struct {
	mu      sync.Mutex
	since   int64 // when the current second began
	lines   int   // that were logged in it
	skipped int   // since the last line
}

// next reports whether a failure is logged, and how many were not since the last that was.
func (l *retryLog) next(now int64) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now-l.since >= int64(time.Second) || l.lines == 0 {
		l.since, l.lines = now, 0
	}
	if l.lines == retryLines {
		l.skipped++
		return 0, false
	}
	l.lines++
	skipped, l.skipped = l.skipped, 0
	return skipped, true
}

// logPermitsDiffer logs that a waiter uses another number of permits than the holder.
func (c *Client) logPermitsDiffer(key string, asked, held int) {
	c.reporter.add([]report{{run: func() {
		c.log.Warn("the number of permits differs from the holder's", clog.String("key", key), clog.Int("asked", asked), clog.Int("held", held))
	}}})
}

func (c *Client) logUnconfirmed(g *Guard, err error) {
	if c.quiet {
		return
	}
	safely(func() {
		c.log.Warn("release not confirmed", clog.String("key", g.claim.key), clog.String("owner", g.claim.owner()), clog.Int64("token", g.token), clog.Error(err))
	})
}

// reportLoss and the functions down to logGaveUp run under mu.
func (c *Client) reportLoss(g *Guard, reason, why string) {
	l := Loss{
		At: time.Now(), Key: g.claim.key, Owner: g.claim.owner(), Token: g.token, Hold: time.Duration(c.now() - g.since),
		Reason: reason, Cause: why,
	}
	c.health.lost(l)
	c.measure(measurement{of: measuredLoss, label: reason})
	if c.quiet {
		return
	}
	c.report(func() {
		c.log.Error("ownership lost", clog.String("key", l.Key), clog.String("owner", l.Owner), clog.Int64("token", l.Token),
			clog.Duration("hold", l.Hold), clog.String("reason", why))
	})
}

// logMinHoldCut logs that an unlocked lock ended before its minimum hold.
func (c *Client) logMinHoldCut(cl *claim) {
	if c.quiet {
		return
	}
	key, owner, token := cl.key, cl.owner(), cl.guard.token
	c.report(func() {
		c.log.Warn("minimum hold cut short", clog.String("key", key), clog.String("owner", owner), clog.Int64("token", token))
	})
}

func (c *Client) logRenewFailed(failed, of int, err error) {
	if !c.quiet {
		c.report(func() {
			c.log.Warn("watchdog renew failed", clog.Int("claims", failed), clog.Int("of", of), clog.Error(err))
		})
	}
}

func (c *Client) logGaveUp(key string, err error) {
	if !c.quiet {
		c.report(func() {
			c.log.Error("cleanup gave up; the lease ends the claim", clog.String("key", key), clog.Error(err))
		})
	}
}

func (c *Client) logDropped(reports int) {
	c.log.Warn("reports dropped: the logger, meter or tracer did not return in time", clog.Int("reports", reports))
}

// A driverLogger passes the log records of a Driver to the reporter, because they may come
// from the path that renews.
type driverLogger struct {
	slog.Handler
	reporter *reporter
}

// Enabled returns true: the reporter calls Enabled of the user's handler.
func (driverLogger) Enabled(context.Context, slog.Level) bool { return true }

func (d driverLogger) Handle(ctx context.Context, r slog.Record) error {
	ctx = context.WithoutCancel(ctx) // it may have ended when the reporter runs
	d.reporter.add([]report{{run: func() {
		if d.Handler.Enabled(ctx, r.Level) {
			_ = d.Handler.Handle(ctx, r)
		}
	}}})
	return nil
}

func (d driverLogger) WithAttrs(attrs []slog.Attr) slog.Handler {
	return driverLogger{d.Handler.WithAttrs(attrs), d.reporter}
}

func (d driverLogger) WithGroup(name string) slog.Handler {
	return driverLogger{d.Handler.WithGroup(name), d.reporter}
}

func (c *Client) logEvicted(key string, victim driver.Claim) {
	safely(func() {
		c.log.Warn("lock evicted", clog.String("key", key), clog.Int64("token", victim.Token),
			clog.String("owner", victim.Info.Owner), clog.String("host", victim.Info.Host), clog.Int("pid", victim.Info.PID))
	})
}
