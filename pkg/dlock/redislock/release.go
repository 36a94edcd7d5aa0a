package redislock

import (
	"context"
	"strconv"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

func (d *redisDriver) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	return d.remove(ctx, r.Key, r.ID, tombstoneOf(r), "", mayInline)
}

// tombstoneOf returns how many milliseconds the tombstone of a claim lasts, or "0" without one.
func tombstoneOf(r driver.Ref) string {
	if !r.Unanswered {
		return "0"
	}
	return millis(driver.TombstoneTTL(r.TTL))
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
	reply, err := d.call(ctx, d.releaseCommand(ctx, n, id, tombstone, token), mode)
	if err != nil {
		return driver.State{}, err
	}
	return d.released(n, key, id, reply)
}

func (d *redisDriver) releaseCommand(ctx context.Context, n names, id, tombstone, token string) *command {
	keys, args := []string{n.lock, n.counter, n.queue, n.waiters, n.holders}, []any{id + unmarked}
	if tombstone != "0" || token != "" || d.settings.gap > 0 {
		keys, args = append(keys, n.tombstone(id), n.gap), append(args, tombstone, millis(d.settings.gap), token)
	}
	return releaseScript.Command(ctx, keys, args...)
}

// released reads the answer to a release.
func (d *redisDriver) released(n names, key, id string, reply any) (driver.State, error) {
	a, err := parseAnswer(reply, driver.Ref{Key: key, ID: id}, time.Time{})
	if a.more {
		d.work.Go(func() { d.grantLater(n) })
	}
	return a.state, err
}

// grantLater continues a release that has dropped as many dead waiters as one script may. If it
// fails, the heartbeat of a waiter does the same.
func (d *redisDriver) grantLater(n names) {
	defer func() { _ = recover() }() // a hook of the client, which no caller could recover
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
