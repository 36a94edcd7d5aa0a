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

// sleepCheck is how long after a suspend the scheduler detects it at the latest.
// suspendNoise is the error of reading two clocks one after the other.
const (
	sleepCheck   = int64(500 * time.Millisecond)
	suspendNoise = int64(5 * time.Millisecond)
)

func (c *Client) now() int64 { return int64(time.Since(c.epoch)) }

func (c *Client) at(t time.Time) int64 { return int64(t.Sub(c.epoch)) }

// sleptSoFar is the total time that this machine was suspended, or 0 where that does not
// count.
func (c *Client) sleptSoFar() int64 {
	if c.slept == nil {
		return 0
	}
	return c.slept()
}

// sleptSince is how long this machine was suspended since a reading of sleptSoFar.
func (c *Client) sleptSince(reading int64) int64 {
	if c.slept == nil {
		return 0
	}
	if grown := c.slept() - reading; grown > suspendNoise {
		return grown
	}
	return 0
}

// countSleep subtracts suspended time from a claim's validity, and reports whether there was
// any.
func (c *Client) countSleep(cl *claim) bool {
	grown := c.sleptSince(cl.slept)
	cl.valid -= grown
	cl.slept += grown
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
	return &suspendClock{now: now, read: read, at: -suspendFresh}
}

// suspendFresh is how long a reading is valid. A suspend and resume takes longer than that on
// the monotonic clock too, because processes are frozen before the devices are suspended, and
// thawed after the devices have resumed.
const suspendFresh = int64(200 * time.Microsecond)

func (s *suspendClock) slept() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.now(); now-s.at >= suspendFresh {
		s.at, s.value = now, s.read()
	}
	return s.value
}

// after adds without overflow.
func after(at int64, d time.Duration) int64 {
	if at > never-int64(d) {
		return never
	}
	return at + int64(d)
}

// pause is how long a claim waits after the nth failure in a row: doubling from the
// retry interval up to one second, spread by a quarter either way.
func (c *Client) pause(id string, n int) time.Duration {
	d := min(c.cfg.RetryInterval<<min(n, 10), max(maxPause, c.cfg.RetryInterval))
	return d - d/4 + spread(id, n, d/2)
}

// spread is a random time below a limit. It depends only on the claim's ID, which is random,
// and n, so that a simulation can be replayed with any order of goroutines.
func spread(id string, n int, limit time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	return time.Duration(rand.New(rand.NewPCG(h.Sum64(), uint64(n))).Int64N(int64(limit)))
}
