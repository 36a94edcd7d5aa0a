package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// maxReleaseDelay is how long a release whose caller does not wait is delayed, to be sent with another
// call.
const maxReleaseDelay = 200 * time.Microsecond

// ReleaseLater releases a claim together with the next call to its master, in one pipeline.
func (d *redisDriver) ReleaseLater(r driver.Ref, done func(driver.State, error)) {
	n, err := d.namesOf(r.Key)
	if err != nil {
		done(driver.State{}, err)
		return
	}
	d.forget(r.ID)
	cmd := d.releaseCommand(d.ctx, n, r.ID, tombstoneOf(r), "")
	p := &d.pipeliner
	if d.cluster != nil {
		p = d.pipelinerFor(d.ctx, n.lock)
	}
	p.sendLater(&pendingCall{cmd: cmd, answer: func(err error) {
		if !cmd.Answered(err) {
			cmd.Withdraw()
			done(driver.State{}, cmd.Classify(err))
			return
		}
		done(d.released(n, r.Key, r.ID, cmd.Val()))
	}})
}

// SendReleases sends the delayed releases to all masters.
func (d *redisDriver) SendReleases() {
	for _, p := range d.pipeliners() {
		p.mu.Lock()
		p.sendNow()
		p.mu.Unlock()
	}
}

// pipeliners returns all of them.
func (d *redisDriver) pipeliners() []*pipeliner {
	all := []*pipeliner{&d.pipeliner}
	if known := d.byMaster.byAddr.Load(); known != nil {
		for _, p := range *known {
			all = append(all, p)
		}
	}
	return all
}

// sendLater sends a call with the next one, or alone if there is none within maxReleaseDelay.
func (p *pipeliner) sendLater(c *pendingCall) {
	p.mu.Lock()
	if err := p.driver.ctx.Err(); err != nil {
		p.mu.Unlock()
		c.end(err)
		return
	}
	p.delayed = append(p.delayed, c)
	switch {
	case p.batching || len(p.delayed) >= maxBatch/2:
		p.sendNow()
	case p.delayTimer == nil:
		p.delayTimer = time.AfterFunc(p.driver.settings.releaseDelay, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.sendNow()
		})
	case len(p.delayed) == 1:
		p.delayTimer.Reset(p.driver.settings.releaseDelay)
	}
	p.mu.Unlock()
}

// stopTimer is called after the driver's context has ended: no timer starts work any more.
func (p *pipeliner) stopTimer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.delayTimer != nil {
		p.delayTimer.Stop()
	}
}

// sendNow sends the delayed calls. If too many round trips are in flight, the next
// one that ends does. The caller holds mu.
func (p *pipeliner) sendNow() {
	if len(p.delayed) == 0 || p.driver.ctx.Err() != nil {
		return
	}
	p.pending, p.delayed = append(p.delayed, p.pending...), nil
	if p.inFlight < maxInFlight {
		p.inFlight++
		p.start()
	}
}

// errPanicked is the error of calls whose pipeline did not return.
var errPanicked = errors.New("redislock: a hook of the client panicked")

// processWith carries out a command after the delayed ones, in one pipeline.
func processWith(ctx context.Context, client redis.UniversalClient, cmd *command, delayed []*pendingCall) error {
	if len(delayed) == 0 {
		return client.Process(ctx, cmd)
	}
	returned := false
	defer func() {
		for _, c := range delayed {
			err := c.cmd.Err()
			if !returned {
				err = errPanicked
			}
			c.end(err)
		}
	}()
	pipe := client.Pipeline()
	for _, c := range delayed {
		_ = pipe.Process(ctx, c.cmd)
	}
	_ = pipe.Process(ctx, cmd)
	redisnode.Execute(ctx, pipe)
	returned = true
	return cmd.Err()
}

// endLateCalls ends the calls that were not sent when the driver was closed.
func (d *redisDriver) endLateCalls() {
	for _, p := range d.pipeliners() {
		p.mu.Lock()
		left := append(p.delayed, p.pending...) //nolint:gocritic // both end here
		p.delayed, p.pending = nil, nil
		if p.delayTimer != nil {
			p.delayTimer.Stop()
		}
		p.mu.Unlock()
		for _, c := range left {
			if c.answer != nil {
				c.end(context.Canceled)
			}
		}
	}
}
