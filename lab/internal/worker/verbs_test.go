package worker

import (
	"testing"
	"testing/synctest"
	"time"
)

// The context of a call ends when the oracles think it does, unless WithWait is to end the wait before.
func TestWhenTheContextOfACallEnds(t *testing.T) {
	const ttl = 2 * time.Second
	for name, tt := range map[string]struct {
		task task
		want time.Duration
	}{
		"a wait":             {task{verb: acquire, wait: time.Second}, time.Second},
		"a wait of Do":       {task{verb: do, wait: time.Second}, time.Second},
		"no wait":            {task{verb: tryLock, wait: time.Second}, ttl},
		"WithWait":           {task{verb: acquire, wait: time.Second, hasWait: true}, time.Second + ttl},
		"WithWait of Do":     {task{verb: do, wait: time.Second, hasWait: true}, time.Second + ttl},
		"WithWait(0) of Do":  {task{verb: do, hasWait: true}, ttl},
		"WithWait(0) of All": {task{verb: acquireAll, hasWait: true, keys: []string{"a", "b"}}, ttl},
		"a caller that left": {task{verb: do, wait: time.Second, hasWait: true, cancel: time.Millisecond}, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.task.ttl = ttl
				began := time.Now()
				ctx, _, cancel := tt.task.patient(t.Context())
				defer cancel()
				<-ctx.Done()
				if got := time.Since(began); got != tt.want {
					t.Errorf("after %v, want %v", got, tt.want)
				}
			})
		})
	}
}
