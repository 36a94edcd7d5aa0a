package dlock

import (
	"context"
	"log/slog"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
)

// What the Client reports. Claim IDs appear in none of it.

// unobserved reports whether nothing was injected that anything is reported to.
func (c *Client) unobserved() bool { return c.quiet && c.meters == nil && c.tracer == nil }

// report queues what came up under mu; unlock sends it to the reporter.
func (c *Client) report(run func()) { c.reports = append(c.reports, report{run: run}) }

func (c *Client) logAcquired(g *Guard, started int64) {
	c.logTook("lock acquired", "wait", g, started)
}
func (c *Client) logReleased(g *Guard) { c.logTook("lock released", "hold", g, g.since) }

// logTook runs on the goroutine of the user's call.
func (c *Client) logTook(msg, what string, g *Guard, from int64) {
	if c.quiet {
		return
	}
	safely(func() {
		if c.log.Enabled(context.Background(), slog.LevelInfo) {
			took := time.Duration(c.now() - from)
			c.log.Info(msg, clog.String("key", g.claim.key), clog.String("owner", g.claim.owner()), clog.Int64("fence", g.token), clog.Duration(what, took))
		}
	})
}

// logTrouble is for a call that goes on trying: it would wait without a word else. It
// speaks less and less often.
func (c *Client) logTrouble(key string, failures int, err error) {
	if c.quiet || failures&(failures-1) != 0 {
		return
	}
	c.reporter.add([]report{{run: func() {
		c.log.Warn("backend fails", clog.String("key", key), clog.Int("attempts", failures), clog.Error(err))
	}}})
}

// logPermitsDiffer is for a waiter that another number of permits keeps waiting.
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
		c.log.Warn("release not confirmed", clog.String("key", g.claim.key), clog.String("owner", g.claim.owner()), clog.Int64("fence", g.token), clog.Error(err))
	})
}

// reportLoss and those that follow run under mu.
func (c *Client) reportLoss(g *Guard, reason, why string) {
	c.measure(measurement{of: measuredLoss, label: reason})
	if c.quiet {
		return
	}
	key, owner, token, hold := g.claim.key, g.claim.owner(), g.token, time.Duration(c.now()-g.since)
	c.report(func() {
		c.log.Warn("ownership lost", clog.String("key", key), clog.String("owner", owner), clog.Int64("fence", token),
			clog.Duration("hold", hold), clog.String("reason", why))
	})
}

// logMinHoldCut is for a lock that was unlocked, and did not stay taken for its least time.
func (c *Client) logMinHoldCut(cl *claim) {
	if c.quiet {
		return
	}
	key, owner, token := cl.key, cl.owner(), cl.guard.token
	c.report(func() {
		c.log.Warn("minimum hold cut short", clog.String("key", key), clog.String("owner", owner), clog.Int64("fence", token))
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
			c.log.Error("clean-up gave up; the lease ends the claim", clog.String("key", key), clog.Error(err))
		})
	}
}

func (c *Client) logDropped(reports int) {
	c.log.Warn("reports dropped: the logger, meter or tracer did not return in time", clog.Int("reports", reports))
}

// A driverLogger takes the log lines of a Driver, which may come from the path that
// renews, to the reporter.
type driverLogger struct {
	slog.Handler
	reporter *reporter
}

// Enabled says yes: the user's handler is asked by the reporter.
func (driverLogger) Enabled(context.Context, slog.Level) bool { return true }

func (d driverLogger) Handle(ctx context.Context, r slog.Record) error {
	ctx = context.WithoutCancel(ctx) // it may be over by then
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

func (c *Client) logEvicted(key string, victim Claim) {
	safely(func() {
		c.log.Warn("lock evicted", clog.String("key", key), clog.Int64("fence", victim.Token),
			clog.String("owner", victim.Info.Owner), clog.String("host", victim.Info.Host), clog.Int("pid", victim.Info.PID))
	})
}
