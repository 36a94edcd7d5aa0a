package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/topology"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// A crew is the worker processes of a trial.
type crew struct {
	trial *trial
	lives int // processes started so far
	mates []*mate
}

// A mate is one worker process.
type mate struct {
	*servers.Process
	name string
}

// ErrCrash says that a worker ended although nobody had told it to.
var ErrCrash = errors.New("a worker ended by itself")

func (m *mate) crashed() error { return fmt.Errorf("%w: %s: %s", ErrCrash, m.name, m.Log()) }

func (c *crew) start(ctx context.Context, n int) error {
	for i := range n {
		m, err := c.spawn(i)
		if err != nil {
			return err
		}
		c.mates = append(c.mates, m)
	}
	return c.ready(ctx, c.mates)
}

// spawn starts this program again as a worker.
func (c *crew) spawn(position int) (*mate, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t := c.trial
	c.lives++
	setup, backend := t.spec.Setup(), t.top.Workers()
	if setup.Rights == schedule.NoChannels && position%2 == 0 {
		backend.User = topology.MuteUser
	}
	orders := worker.Orders{
		Name: fmt.Sprintf("w%d.%d", position, c.lives), Backend: backend, Store: t.dir + "/store", Log: t.logPath(),
		Seed: t.spec.Seed + uint64(c.lives)<<32, TTL: t.evidence.TTL, Mode: t.spec.Mode, Started: t.started,
		Mutant: t.spec.Mutant, Position: position, Rest: cmp.Or(t.spec.Rest, DefaultRest), Setup: setup,
	}
	p, err := servers.StartProcess(servers.ProcessOptions{Path: self, Args: []string{"worker", orders.Encode()}, StopWithin: stopWithin})
	return &mate{p, orders.Name}, err
}

// ready waits until workers have logged that they are.
func (c *crew) ready(ctx context.Context, mates []*mate) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		started := map[string]bool{}
		events, err := event.Read(c.trial.logPath())
		if err != nil {
			return err
		}
		for _, e := range events {
			started[e.Worker] = started[e.Worker] || e.Kind == event.Start
		}
		missing := 0
		for _, m := range mates {
			if !m.Running() {
				return m.crashed()
			}
			if !started[m.name] {
				missing++
			}
		}
		if missing == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d workers do not begin", missing)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stopWithin is how long a worker may take to end: to unlock, and to close its Clients.
const stopWithin = 15 * time.Second

// replace starts another worker in the place of one that was killed.
func (c *crew) replace(position int) error {
	m, err := c.spawn(position)
	if err != nil {
		return err
	}
	old := c.mates[position]
	c.mates[position] = m
	return old.Stop()
}

// stop asks all workers to finish and waits for them.
func (c *crew) stop() error {
	var all sync.WaitGroup
	errs := make([]error, len(c.mates))
	for i, m := range c.mates {
		all.Go(func() {
			if !m.Running() {
				errs[i] = m.crashed()
				return
			}
			if err := m.Stop(); err != nil {
				errs[i] = fmt.Errorf("worker %s: %w", m.name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// killAll leaves none behind when a trial breaks off.
func (c *crew) killAll() {
	for _, m := range c.mates {
		_ = m.Kill()
		_ = m.Stop()
	}
}
