package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
)

// maxEnqueuing is how many claims are submitted to queues at a time: a server refuses calls when thousands are under way,
// and answers too late when they are repeated. A call that takes longer than slowEnqueue does not count any more, because the
// member that it was sent to may hang.
const (
	maxEnqueuing = 64
	slowEnqueue  = 200 * time.Millisecond
)

// errManyEnqueuing: the caller left before its claim could be submitted.
var errManyEnqueuing = errors.New("other claims of this process are being submitted")

// takeRoom waits until a claim may be submitted to a queue. The caller must call leave when that has been done.
func (d *etcdDriver) takeRoom(ctx context.Context, wait bool) (leave func(), err error) {
	if err := d.awaitRoom(ctx, wait); err != nil {
		return nil, err
	}
	free := sync.OnceFunc(func() { <-d.enqueuing })
	slow := time.AfterFunc(slowEnqueue, free)
	return func() {
		slow.Stop()
		free()
	}, nil
}

// needsRoom reports whether a claim may be submitted to a queue only after a lease has been granted for it alone. It then has
// room before that: a lease for each attempt that finds no room would burden a busy server more than the claim.
func (d *etcdDriver) needsRoom(r driver.Request) bool {
	if !r.Wait || (!r.Fixed && !r.OwnLease) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.claims[r.ID] == nil
}

// awaitRoom waits until a claim may be submitted to a queue. If the claim waits for its lock, awaitRoom leaves time for the call
// itself, and the engine asks again: nothing has failed. Near the end of the wait it does not, because no call would succeed any more.
func (d *etcdDriver) awaitRoom(ctx context.Context, wait bool) error {
	select {
	case d.enqueuing <- struct{}{}:
		return nil
	default:
	}
	var half <-chan time.Time
	if end, limited := ctx.Deadline(); wait && limited && time.Until(end) > nearTheEnd {
		t := time.NewTimer(time.Until(end) / 2)
		defer t.Stop()
		half = t.C
	}
	var why error
	select {
	case d.enqueuing <- struct{}{}:
		return nil
	case <-half:
		why = sharedtimeout.ErrNoRoom
	case <-ctx.Done():
		why = ctx.Err()
	}
	return driver.Classify(fmt.Errorf("%w: %w: %w", driver.ErrNotReady, errManyEnqueuing, why), driver.Transient) // nothing was sent
}

const nearTheEnd = 500 * time.Millisecond
