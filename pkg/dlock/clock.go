package dlock

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Times inside the engine are nanoseconds of the monotonic clock since the Client was
// created. They are smaller than a time.Time, and comparable.
//
// The monotonic clock stops while a Linux machine is suspended, but leases on a server
// continue. So a Client on a remote backend also reads the total time that the machine was
// suspended, records it with every answer, and subtracts later suspends from the validity.

const never = math.MaxInt64

// suspendCheckInterval is how often the scheduler checks for a suspend.
// suspendNoise is the error of reading two clocks one after the other.
const (
	suspendCheckInterval = int64(500 * time.Millisecond)
	suspendNoise         = int64(5 * time.Millisecond)
)

func (c *Client) now() int64 { return int64(time.Since(c.epoch)) }

func (c *Client) at(t time.Time) int64 { return int64(t.Sub(c.epoch)) }

// suspendedTotal returns how long this machine has been suspended in total, or 0 if suspended
// time does not count.
func (c *Client) suspendedTotal() int64 {
	if c.suspended == nil {
		return 0
	}
	return c.suspended()
}

// suspendedSince returns how long this machine was suspended since a reading of suspendedTotal.
func (c *Client) suspendedSince(reading int64) int64 {
	if c.suspended == nil {
		return 0
	}
	if grown := c.suspended() - reading; grown > suspendNoise {
		return grown
	}
	return 0
}

// subtractSuspended subtracts suspended time from a claim's validity, and reports whether there was
// any.
func (c *Client) subtractSuspended(cl *claim) bool {
	grown := c.suspendedSince(cl.suspended)
	cl.validUntil -= grown
	cl.suspended += grown
	return grown > 0
}

// A suspendClock caches how long this machine has been suspended, because a reading costs
// more than the rest of a local handoff.
type suspendClock struct {
	now  func() int64
	read func() int64

	mu        sync.Mutex
	at, value int64
}

func newSuspendClock(now, read func() int64) *suspendClock {
	return &suspendClock{now: now, read: read, at: -suspendCacheTime}
}

// suspendCacheTime is how long a reading is valid. A suspend and resume takes longer than that on
// the monotonic clock too, because processes are frozen before the devices are suspended, and
// thawed after the devices have resumed.
const suspendCacheTime = int64(200 * time.Microsecond)

func (s *suspendClock) suspended() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.now(); now-s.at >= suspendCacheTime {
		s.at, s.value = now, s.read()
	}
	return s.value
}

// after returns at + d, or never if that overflows.
func after(at int64, d time.Duration) int64 {
	if at > never-int64(d) {
		return never
	}
	return at + int64(d)
}

// pause returns how long a claim waits after the nth failure in a row. It doubles from the
// retry interval up to one second, with a jitter of a quarter in both directions.
func (c *Client) pause(id string, n int) time.Duration {
	d := min(c.cfg.RetryInterval<<min(n, 10), max(maxPause, c.cfg.RetryInterval))
	return d - d/4 + jitter(id, n, d/2)
}

// jitter returns a random time below a limit. It depends only on n and the claim's ID, which is
// random, so that a simulation can be replayed with any order of goroutines.
func jitter(id string, n int, limit time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	return time.Duration(rand.New(rand.NewPCG(h.Sum64(), uint64(n))).Int64N(int64(limit)))
}
