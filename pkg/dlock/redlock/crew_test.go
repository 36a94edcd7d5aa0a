package redlock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Goroutines are used again and leave when they have nothing to do, although others work, and when the
// driver is closed. No function is lost.
func TestCrew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var work sync.WaitGroup
		c := crew{work: &work}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := 0
		staff := func(want int) { // of those that have nothing to do
			t.Helper()
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.idle) != want {
				t.Errorf("%d goroutines are idle, want %d", len(c.idle), want)
			}
		}
		gate := make(chan struct{})
		for range 20 {
			c.run(ctx, func() { <-gate })
		}
		staff(0)
		close(gate)
		staff(20)
		for range 30 { // one after the other, all by the same
			c.run(ctx, func() { done++ })
			time.Sleep(idleTime / 10)
		}
		staff(1)
		for range 10 {
			c.run(ctx, func() { done++ })
			time.Sleep(2 * idleTime)
		}
		staff(0)
		c.run(ctx, func() { done++ })
		staff(1)
		cancel()
		staff(0)
		c.run(ctx, func() { done++ })
		work.Wait()
		if done != 42 {
			t.Errorf("%d of 42 functions were run", done)
		}
	})
}
