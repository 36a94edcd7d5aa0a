package trial

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
)

const healWithin = time.Minute

// inject carries out a plan. When a fault took longer to heal than planned, all that
// follows is later by that much.
func (t *trial) inject(ctx context.Context, plan []schedule.Fault) error {
	begin := time.Now()
	for i, f := range plan {
		if err := sleepUntil(ctx, begin.Add(f.At)); err != nil {
			return err
		}
		t.progress("fault %d of %d: %s for %v", i+1, len(plan), f.Kind, f.For)
		struck, err := t.strike(ctx, f)
		if err != nil {
			return fmt.Errorf("fault %v: %w", f, err)
		}
		t.evidence.Faults = append(t.evidence.Faults, struck)
		if late := time.Since(begin) - f.At - f.For; late > 0 {
			begin = begin.Add(late)
		}
		next := begin.Add(t.spec.Length)
		if i+1 < len(plan) {
			next = begin.Add(plan[i+1].At)
		}
		if err := t.lookAround(ctx, next); err != nil {
			return err
		}
	}
	return sleepUntil(ctx, begin.Add(t.spec.Length))
}

func sleepUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// strike makes a fault, waits, and heals it.
func (t *trial) strike(ctx context.Context, f schedule.Fault) (oracle.Struck, error) {
	if t.spec.Mode == schedule.Kills {
		at, err := t.victim(ctx, f.Target)
		if err != nil {
			return oracle.Struck{}, err
		}
		f.Target = at
	}
	s := oracle.Struck{Fault: f, From: mono.Now()}
	begin := time.Now()
	inject := t.top.Inject
	if f.Kind.OnWorkers() || f.Kind.Kills() {
		s.Worker = t.crew.workers[f.Target%len(t.crew.workers)].name
		inject = t.crew.inject
	}
	if f.Kind == schedule.Beheading {
		inject = t.behead
	}
	t.log.Add(event.Event{At: s.From, Kind: event.Fault, Note: string(f.Kind)})
	heal, err := inject(ctx, f)
	s.Hit = mono.Now()
	if err != nil {
		return s, err
	}
	err = sleepUntil(ctx, begin.Add(f.For))
	healing, cancel := context.WithTimeout(context.WithoutCancel(ctx), healWithin)
	defer cancel()
	if healErr := heal(healing); err == nil {
		err = healErr
	}
	s.To = mono.Now()
	t.log.Add(event.Event{At: s.To, Kind: event.Heal, Note: string(f.Kind)})
	return s, err
}

// inject strikes one worker.
func (c *crew) inject(_ context.Context, f schedule.Fault) (func(context.Context) error, error) {
	position := f.Target % len(c.workers)
	m := c.workers[position]
	if !m.Running() {
		return nil, m.crashed()
	}
	if f.Kind.Kills() {
		if err := m.Kill(); err != nil {
			return nil, err
		}
		return func(context.Context) error { return c.replace(position) }, nil
	}
	return func(context.Context) error { return m.Resume() }, m.Pause()
}

// behead strikes a worker and, at the same moment, the leader of the servers.
func (t *trial) behead(ctx context.Context, f schedule.Fault) (func(context.Context) error, error) {
	back, err := t.top.Inject(ctx, f)
	if err != nil {
		return nil, err
	}
	replace, err := t.crew.inject(ctx, f)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return errors.Join(replace(ctx), back(ctx)) }, nil
}
