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
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var work sync.WaitGroup
		w := workers{work: &work}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := 0
		idle := func(want int) { // of those that have nothing to do
			t.Helper()
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.idle) != want {
				t.Errorf("%d goroutines are idle, want %d", len(w.idle), want)
			}
		}
		gate := make(chan struct{})
		for range 20 {
			w.run(ctx, func() { <-gate })
		}
		idle(0)
		close(gate)
		idle(20)
		for range 30 { // one after the other, all by the same
			w.run(ctx, func() { done++ })
			time.Sleep(idleTime / 10)
		}
		idle(1)
		for range 10 {
			w.run(ctx, func() { done++ })
			time.Sleep(2 * idleTime)
		}
		idle(0)
		w.run(ctx, func() { done++ })
		idle(1)
		cancel()
		idle(0)
		w.run(ctx, func() { done++ })
		work.Wait()
		if done != 42 {
			t.Errorf("%d of 42 functions were run", done)
		}
	})
}
