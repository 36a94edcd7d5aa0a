package redislock

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// The stored data is layout 3 of docs/backends/redis.md. A change needs a new layout number, and a
// new suffix for each key whose content has changed. A process of another version then never reads
// data in the wrong format, and the lock itself still excludes it.

const separator = redisnode.Separator

// names are the keys of one lock. They share one cluster slot.
type names struct {
	lock, counter, queue, waiters, holders, gap, tombstones string

	bySlot bool // the counter is that of the slot
}

func (n names) tombstone(id string) string { return n.tombstones + id }

// namesOf returns the keys of a lock, all in the slot of the lock. The lock itself has the name
// that the user chose, byte for byte, so that plain clients use the same key.
func (d *redisDriver) namesOf(key string) (names, error) {
	lock := d.prefix + key
	base, placed := redisnode.Siblings(lock)
	if !placed && d.cluster != nil {
		return names{}, fmt.Errorf("%w: %q has braces, so its queue cannot be in the same cluster slot", driver.ErrInvalidKey, key)
	}
	const y, r, j, g, b = separator + "y", separator + "r", separator + "j", separator + "g", separator + "b"
	all, each := base+y+base+r+base+j+base+g+base+b, len(base)+len(y) // one allocation
	part := func(i int) string { return all[i*each : (i+1)*each] }
	bySlot := d.bySlot.Load()
	return names{
		lock: lock, counter: counterOf(lock, bySlot), queue: part(0), waiters: part(1), holders: part(2), gap: part(3), tombstones: part(4), bySlot: bySlot,
	}, nil
}

// counterOf returns the key of the last token, which many locks share: those of a slot on a cluster.
// It does not depend on the prefix, because Clients with other prefixes may lock the same name.
func counterOf(lock string, bySlot bool) string {
	slot := slotOf(lock)
	if bySlot {
		return counterPrefix + "{" + slotTag(slot) + "}"
	}
	return counterKeys[slot%counters]
}

// counters is how many counters a server has that is not in a cluster. Claims that reserve many tokens
// move a counter ahead of the time; with one for all locks, it could stay ahead.
const (
	counters      = 64
	counterPrefix = "dlock:token" + separator
)

var counterKeys = func() (keys [counters]string) {
	for i := range keys {
		keys[i] = counterPrefix + strconv.Itoa(i)
	}
	return keys
}()

// isHiddenCluster reports whether a call failed because its keys are in different slots: the client is
// that of a single server, but there is a cluster behind it. The call must then be made again.
func (d *redisDriver) isHiddenCluster(n names, err error) bool {
	if n.bySlot || !errors.Is(err, driver.ErrInvalidKey) {
		return false
	}
	d.bySlot.Store(true)
	return true
}
