package event

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/lab/internal/mono"
)

// StallFrom is the shortest gap that is logged.
const StallFrom = 100 * time.Millisecond

// LookEvery is how often a process looks at the clock.
const LookEvery = 10 * time.Millisecond

// EndingEvery is how often a process that is to end logs that it is run.
const EndingEvery = StallFrom

// WatchScheduling logs, until ctx ends, when this process was not given the processor:
// what happens then is the machine's doing.
func (l *Log) WatchScheduling(ctx context.Context) {
	tick := time.NewTicker(LookEvery)
	defer tick.Stop()
	for last := mono.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := mono.Now()
		if gap := now - last; gap > int64(StallFrom) {
			l.Add(Event{At: now, Kind: Stall, Dur: gap})
		}
		last = now
	}
}
