package trial

import (
	"context"
	"slices"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// ghosts looks for claims of workers that ended in good order, and for claims of any
// that have no end.
func (t *trial) ghosts(ctx context.Context) (found []oracle.Ghost, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	time.Sleep(oracle.CleanupTime)
	events, err := event.Read(t.logPath())
	if err != nil {
		return nil, err
	}
	orderly := t.orderly(events, mono.Now())
	var endless []oracle.Ghost
	deadline := time.Now().Add(t.evidence.TTL + 3*time.Second)
	err = t.lookout.each(ctx, func(key string, c dlock.Claim) {
		ghost := oracle.Ghost{Key: key, PID: c.Info.PID, Phase: string(c.Phase), Token: c.Token, Purpose: c.Info.Purpose, Left: c.Remaining}
		switch {
		case orderly[c.Info.PID] && c.Remaining > 0:
			found = append(found, ghost)
		case c.Phase == dlock.PhaseHeld && c.Remaining <= 0:
			endless = append(endless, ghost)
		}
	})
	for _, s := range endless {
		if err == nil && t.stays(ctx, s, deadline) {
			found = append(found, s)
		}
	}
	return found, err
}

// orderly are the processes that have closed all their Clients, and of which nothing may be stored at a time. What
// a Client left that was closed before, its lease ends.
func (t *trial) orderly(events []event.Event, now int64) map[int]bool {
	orderly := map[int]bool{}
	for _, e := range events {
		orderly[e.PID] = orderly[e.PID] || (e.Kind == event.Stop && e.Note != dlock.ErrUnknownOutcome.Error())
	}
	for _, e := range events {
		if e.Kind == event.Closed && e.Note != "" && now <= t.evidence.LeftUntil(e.At) {
			orderly[e.PID] = false
		}
	}
	return orderly
}

// stays says whether a claim without time is still there when every lease must have
// ended. Servers tell the time that is left in whole seconds, and take a while to
// remove what has none.
func (t *trial) stays(ctx context.Context, s oracle.Ghost, deadline time.Time) bool {
	for {
		claims, err := t.lookout.admin.Inspect(ctx, s.Key)
		if err != nil || !slices.ContainsFunc(claims, func(c dlock.Claim) bool { return c.Token == s.Token && c.Remaining <= 0 }) {
			return false
		}
		if time.Now().After(deadline) {
			return true
		}
		if sleepUntil(ctx, time.Now().Add(100*time.Millisecond)) != nil {
			return false
		}
	}
}
