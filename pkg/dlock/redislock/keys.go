package redislock

import (
	"fmt"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// The stored data is layout 2 of docs/backends/redis.md. A change needs a new layout number, and a
// new suffix for each key whose content has changed. A process of another version then never reads
// data in the wrong format, and the lock itself still excludes it.

const separator = redisnode.Separator

// names are the keys of one lock. They share one cluster slot.
type names struct{ lock, fence, queue, waiters, gap, tombstones string }

func (n names) tombstone(id string) string { return n.tombstones + id }

// namesOf returns the keys of a lock, all in the slot of the lock. The lock itself has the name
// that the user chose, byte for byte, so that plain clients use the same key.
func (d *redisDriver) namesOf(key string) (names, error) {
	lock := d.prefix + key
	base, placed := redisnode.Siblings(lock)
	if !placed && d.cluster != nil {
		return names{}, fmt.Errorf("%w: %q has braces, so its queue cannot be in the same cluster slot", driver.ErrInvalidKey, key)
	}
	const f, z, h, g, b = separator + "f", separator + "z", separator + "h", separator + "g", separator + "b"
	all, each := base+f+base+z+base+h+base+g+base+b, len(base)+len(f) // one allocation
	part := func(i int) string { return all[i*each : (i+1)*each] }
	return names{lock: lock, fence: part(0), queue: part(1), waiters: part(2), gap: part(3), tombstones: part(4)}, nil
}
