package redislock

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// undo releases a claim that too few replicas have confirmed, and returns the reason. If the
// release was not answered, the error has no class, so the engine cleans up. The release may
// arrive at any time, so the ID is retired: it is not used again.
func (d *redisDriver) undo(ctx context.Context, r driver.Ref, unconfirmed error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout(r.TTL))
	defer cancel()
	_, err := d.remove(ctx, r.Key, r.ID, "0", "", notInline)
	if err == nil {
		return unconfirmed
	}
	if driver.ClassOf(err) == driver.Ambiguous {
		d.retire(r.ID, driver.TombstoneTTL(r.TTL))
	}
	return fmt.Errorf("%w, and the claim was not released: %v", ErrTooFewReplicas, err) //nolint:errorlint // hides the class of err
}

// undoTimeout returns how long an undo may take: the claim has most of its lease left then.
func undoTimeout(ttl time.Duration) time.Duration { return min(ttl/3, 2*time.Second) }

// maxRetired is how many retired IDs are kept before those whose time has passed are dropped.
const maxRetired = 1024

func (d *redisDriver) retire(id string, span time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if len(d.retired) >= maxRetired {
		maps.DeleteFunc(d.retired, func(_ string, until time.Time) bool { return now.After(until) })
	}
	if d.retired == nil {
		d.retired = map[string]time.Time{}
	}
	d.retired[id] = now.Add(span)
}

// isRetired reports whether a claim with this ID must not be submitted.
func (d *redisDriver) isRetired(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.retired[id]
	return ok
}
