package redislock

import (
	"context"
	"strconv"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

func (d *redisDriver) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	tombstone := "0"
	if r.Unanswered {
		tombstone = millis(driver.TombstoneTTL(r.TTL))
	}
	return d.remove(ctx, r.Key, r.ID, tombstone, "", mayInline)
}

// Evict is a release for which the token must match. The owner is notified.
func (d *redisDriver) Evict(ctx context.Context, key, id string, token int64) (driver.State, error) {
	if len(id) != idLength { // the holder is a plain client
		return driver.State{Phase: driver.Gone}, nil
	}
	return d.remove(ctx, key, id, "0", strconv.FormatInt(token, 10), notInline)
}

func (d *redisDriver) remove(ctx context.Context, key, id, tombstone, token string, mode callMode) (driver.State, error) {
	n, err := d.namesOf(key)
	if err != nil {
		return driver.State{}, err
	}
	d.forget(id) // whatever the answer: a released claim does not wait
	st, err := d.removeFrom(ctx, n, key, id, tombstone, token, mode)
	if d.isHiddenCluster(n, err) {
		n, _ = d.namesOf(key)
		st, err = d.removeFrom(ctx, n, key, id, tombstone, token, mode)
	}
	return st, err
}

func (d *redisDriver) removeFrom(ctx context.Context, n names, key, id, tombstone, token string, mode callMode) (driver.State, error) {
	keys, args := []string{n.lock, n.counter, n.queue, n.waiters, n.holders}, []any{id + unmarked}
	if tombstone != "0" || token != "" || d.settings.gap > 0 {
		keys, args = append(keys, n.tombstone(id), n.gap), append(args, tombstone, millis(d.settings.gap), token)
	}
	reply, err := d.call(ctx, releaseScript.Command(ctx, keys, args...), mode)
	if err != nil {
		return driver.State{}, err
	}
	a, err := parseAnswer(reply, driver.Ref{Key: key, ID: id}, time.Time{})
	if a.more {
		d.work.Go(func() { d.grantLater(n) })
	}
	return a.state, err
}

// grantLater continues a release that has dropped as many dead waiters as one script may. If it
// fails, the heartbeat of a waiter does the same.
func (d *redisDriver) grantLater(n names) {
	for range maxRepeats {
		ctx, cancel := context.WithTimeout(d.ctx, tripTimeout)
		cmd := renewQueueScript.Command(ctx, d.withGap(n, n.lock, n.counter, n.queue, n.waiters, n.holders), d.name, noChannel)
		reply, err := d.call(ctx, cmd, notInline)
		cancel()
		list, _ := reply.([]any)
		if err != nil || len(list) < 2 {
			return
		}
	}
}
