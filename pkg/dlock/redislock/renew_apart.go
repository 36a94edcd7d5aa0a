package redislock

import (
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// withoutQueue returns the claims of a batch whose slot is moving, to be renewed without the queue, of which keys
// may not exist. One that waits, as far as the driver knows, may have been granted the lock. The scripts ignore one that
// was not.
func (r *renewal) withoutQueue(b *batch) []*batch {
	r.driver.mu.Lock()
	defer r.driver.mu.Unlock()
	exclusive, joint := &batch{moving: true}, &batch{moving: true, joint: true}
	for _, i := range b.claims {
		of := exclusive
		if _, ok := r.driver.joint[r.refs[i].ID]; ok {
			of = joint
		}
		of.claims = append(of.claims, i)
	}
	return slices.DeleteFunc([]*batch{exclusive, joint}, func(b *batch) bool { return len(b.claims) == 0 })
}

// split returns the parts of a batch of several keys that were refused together, or nil. A proxy refuses several keys,
// and a cluster does while their slot is moving: then each is sent alone. A server refuses all keys if the user may not
// access one of them: then halves are sent, until that one is alone.
func (b *batch) split(err error) []*batch {
	if err == nil || len(b.claims) == 1 || b.queued || b.moving {
		return nil
	}
	size := 1
	switch {
	case redisnode.DeniedKey(err):
		size = (len(b.claims) + 1) / 2
	case redis.IsTryAgainError(err), errors.Is(redisnode.Classify(err), driver.ErrInvalidKey):
	default:
		return nil
	}
	var parts []*batch
	for claims := range slices.Chunk(b.claims, size) {
		parts = append(parts, &batch{claims: claims})
	}
	return parts
}
