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

func (c *Client) logAcquired(cl *claim, waited time.Duration) {
	c.safely(func() {
		if c.log.Enabled(context.Background(), slog.LevelDebug) {
			c.log.Debug("lock acquired", clog.String("key", cl.key), clog.Int64("fence", cl.token), clog.Duration("wait", waited))
		}
	})
}

func (c *Client) logReleased(cl *claim, hold time.Duration) {
	c.safely(func() {
		if c.log.Enabled(context.Background(), slog.LevelDebug) {
			c.log.Debug("lock released", clog.String("key", cl.key), clog.Int64("fence", cl.token), clog.Duration("hold", hold))
		}
	})
}

func (c *Client) logUnconfirmed(cl *claim, err error) {
	c.safely(func() {
		c.log.Warn("release not confirmed", clog.String("key", cl.key), clog.Int64("fence", cl.token), clog.Error(err))
	})
}

// logLoss and logRenewFailed run under mu, and write when it is free.
func (c *Client) logLoss(cl *claim, why string) {
	key, token, hold := cl.key, cl.token, time.Duration(c.now()-cl.since)
	c.reports = append(c.reports, func() {
		c.log.Warn("ownership lost", clog.String("key", key), clog.Int64("fence", token),
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
