package dlock

import (
	"context"
	"testing"
	"time"
	"unsafe"

	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// The wall clock is set back or ahead while locks are held: no validity changes. In virtual time there is only one clock, so
// this takes real time.
func TestWallClockDecidesNothing(t *testing.T) {
	for name, by := range map[string]time.Duration{"back": -time.Hour, "ahead": time.Hour} {
		t.Run(name, func(t *testing.T) { setWallClockWhileHeld(t, by) })
	}
}

func setWallClockWhileHeld(t *testing.T, by time.Duration) {
	const ttl = time.Minute
	c, err := New(&Config{DefaultTTL: ttl}, WithBackend(memlock.New()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	long, brief := acquireFixed(t, c, "long", ttl), acquireFixed(t, c, "brief", 500*time.Millisecond)
	c.setWallClock(t, by)
	check := func(when string) {
		t.Helper()
		if left := long.Remaining(); left <= 0 || left > ttl || long.Err() != nil {
			t.Fatalf("%s, a lock of %v is valid for %v: %v", when, ttl, left, long.Err())
		}
	}
	check("after the clock was set")
	if left := brief.Remaining(); left > 500*time.Millisecond {
		t.Fatalf("a lock of 500 ms is valid for %v", left)
	}
	select {
	case <-brief.Done():
	case <-time.After(ttl / 2):
		t.Fatal("a lock of 500 ms does not end")
	}
	limit, cancel := context.WithTimeout(t.Context(), ttl/2)
	defer cancel()
	if err := long.Extend(limit, ttl); err != nil {
		t.Fatal(err)
	}
	check("after a renewal")
}

func acquireFixed(t *testing.T, c *Client, key string, ttl time.Duration) *Guard {
	t.Helper()
	g, err := c.Acquire(t.Context(), key, WithTTL(ttl), WithoutRenewal())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// setWallClock makes the wall clock jump, as far as the engine can see: times are measured from when the Client was made, and the wall
// part of that time moves the other way.
func (c *Client) setWallClock(t *testing.T, by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch = withWall(t, c.epoch, -by)
}

// withWall moves the wall part of a time by whole seconds, and not its monotonic part. Package time has no function for it.
func withWall(t *testing.T, at time.Time, by time.Duration) time.Time {
	t.Helper()
	const hasMonotonic = 1 << 63
	moved := at
	parts := (*struct {
		wall uint64
		ext  int64
	})(unsafe.Pointer(&moved))
	if parts.wall&hasMonotonic == 0 {
		return at.Add(by)
	}
	parts.wall += uint64(int64(by/time.Second)) << 30
	if got := moved.Round(0).Sub(at.Round(0)); got != by || moved.Sub(at) != 0 {
		t.Fatalf("the wall part moved by %v instead of %v, and the monotonic part by %v", got, by, moved.Sub(at))
	}
	return moved
}
