package redislock

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// undo takes back a claim that too few replicas have confirmed, and returns the reason. If its
// release was not answered, the error has no class, and the caller cleans up. The release may
// arrive at any time, so the ID is not used again.
func (d *redisDriver) undo(ctx context.Context, r driver.Ref, short error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(r.TTL/3, 2*time.Second))
	defer cancel()
	_, err := d.remove(ctx, r.Key, r.ID, "0", "", patient)
	if err == nil {
		return short
	}
	if driver.ClassOf(err) == driver.Ambiguous {
		d.burn(r.ID, driver.TombstoneTTL(r.TTL))
	}
	return fmt.Errorf("%w, and the claim was not taken back: %v", ErrTooFewReplicas, err) //nolint:errorlint // its class is not that of the claim
}

// maxBurnt is how many burnt IDs are kept before those whose time has passed are dropped.
const maxBurnt = 1024

func (d *redisDriver) burn(id string, span time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if len(d.burnt) >= maxBurnt {
		maps.DeleteFunc(d.burnt, func(_ string, until time.Time) bool { return now.After(until) })
	}
	if d.burnt == nil {
		d.burnt = map[string]time.Time{}
	}
	d.burnt[id] = now.Add(span)
}

// isBurnt reports whether a claim must not be submitted any more.
func (d *redisDriver) isBurnt(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, burnt := d.burnt[id]
	return burnt
}
