package dlock

import (
	"context"
	"log/slog"
	"time"

	"github.com/ceyewan/genesis/pkg/clog"
)

// What the Client reports. Claim IDs appear in none of it.

// safely keeps a panic of an injected logger away from the locks.
func (c *Client) safely(report func()) {
	defer func() { _ = recover() }()
	report()
}

func (c *Client) logAcquired(cl *claim, started int64) {
	c.logTook("lock acquired", "wait", cl, started)
}
func (c *Client) logReleased(cl *claim) { c.logTook("lock released", "hold", cl, cl.since) }

func (c *Client) logTook(msg, what string, cl *claim, from int64) {
	if c.quiet {
		return
	}
	c.safely(func() {
		if c.log.Enabled(context.Background(), slog.LevelInfo) {
			took := time.Duration(c.now() - from)
			c.log.Info(msg, clog.String("key", cl.key), clog.String("owner", cl.owner), clog.Int64("fence", cl.token), clog.Duration(what, took))
		}
	})
}

// logTrouble is for a call that goes on trying: it would wait without a word else. It
// speaks less and less often.
func (c *Client) logTrouble(key string, failures int, err error) {
	if c.quiet || failures&(failures-1) != 0 {
		return
	}
	c.safely(func() {
		c.log.Warn("backend fails", clog.String("key", key), clog.Int("attempts", failures), clog.Error(err))
	})
}

func (c *Client) logUnconfirmed(cl *claim, err error) {
	c.safely(func() {
		c.log.Warn("release not confirmed", clog.String("key", cl.key), clog.String("owner", cl.owner), clog.Int64("fence", cl.token), clog.Error(err))
	})
}

// logLoss and logRenewFailed run under mu, and write when it is free.
func (c *Client) logLoss(cl *claim, why string) {
	key, owner, token, hold := cl.key, cl.owner, cl.token, time.Duration(c.now()-cl.since)
	c.reports = append(c.reports, func() {
		c.log.Warn("ownership lost", clog.String("key", key), clog.String("owner", owner), clog.Int64("fence", token),
			clog.Duration("hold", hold), clog.String("reason", why))
	})
}

func (c *Client) logRenewFailed(failed, of int, err error) {
	c.reports = append(c.reports, func() {
		c.log.Warn("watchdog renew failed", clog.Int("claims", failed), clog.Int("of", of), clog.Error(err))
	})
}

func (c *Client) logGaveUp(key string, err error) {
	c.reports = append(c.reports, func() {
		c.log.Error("clean-up gave up; the lease ends the claim", clog.String("key", key), clog.Error(err))
	})
}

func (c *Client) logEvicted(key string, victim Claim) {
	c.safely(func() {
		c.log.Warn("lock evicted", clog.String("key", key), clog.Int64("fence", victim.Token),
			clog.String("owner", victim.Info.Owner), clog.String("host", victim.Info.Host), clog.Int("pid", victim.Info.PID))
	})
}
