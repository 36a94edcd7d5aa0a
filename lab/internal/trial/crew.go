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
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/topology"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// A crew is the worker processes of a trial.
type crew struct {
	trial   *trial
	lives   int // processes started so far
	workers []*workerProcess
}

// A workerProcess is one worker process.
type workerProcess struct {
	*servers.Process
	name string
}

// ErrCrash says that a worker ended without being told to, or not in good order.
var ErrCrash = errors.New("a worker crashed")

func (m *workerProcess) crashed() error { return fmt.Errorf("%w: %s: %s", ErrCrash, m.name, m.Log()) }

func (c *crew) start(ctx context.Context, n int) error {
	for i := range n {
		m, err := c.spawn(i)
		if err != nil {
			return err
		}
		c.workers = append(c.workers, m)
	}
	return c.ready(ctx, c.workers)
}

// spawn starts this program again as a worker.
func (c *crew) spawn(position int) (*workerProcess, error) {
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
	p, err := servers.StartProcess(servers.ProcessOptions{Path: self, Args: []string{"worker", orders.Encode()}, StopWithin: stopWithin, Orderly: true})
	return &workerProcess{p, orders.Name}, err
}

// ready waits until workers have logged that they are.
func (c *crew) ready(ctx context.Context, workers []*workerProcess) error {
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
		for _, m := range workers {
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
	old := c.workers[position]
	c.workers[position] = m
	return old.Stop()
}

// stop asks all workers to finish and waits for them. It returns those that had to be killed.
func (c *crew) stop() (stuck []oracle.Stuck, err error) {
	var all sync.WaitGroup
	errs, ends := make([]error, len(c.workers)), make([]oracle.Stuck, len(c.workers))
	for i, m := range c.workers {
		all.Go(func() {
			ends[i], errs[i] = m.stop()
		})
	}
	all.Wait()
	for _, e := range ends {
		if e.Worker != "" {
			stuck = append(stuck, e)
		}
	}
	return stuck, errors.Join(errs...)
}

// stop asks a worker to finish. If it had to be killed, it says so by its name.
func (m *workerProcess) stop() (oracle.Stuck, error) {
	asked := mono.Now()
	err := m.Stop()
	switch {
	case err == nil:
		return oracle.Stuck{}, nil
	case errors.Is(err, servers.ErrKilled):
		return oracle.Stuck{Worker: m.name, From: asked, To: mono.Now()}, nil
	case errors.Is(err, servers.ErrExit):
		return oracle.Stuck{}, fmt.Errorf("%w: %s: %w", ErrCrash, m.name, err)
	}
	return oracle.Stuck{}, fmt.Errorf("worker %s: %w", m.name, err) // such as one that SIGKILL does not end
}

// killAll leaves none behind when a trial breaks off.
func (c *crew) killAll() {
	for _, m := range c.workers {
		_ = m.Kill()
		_ = m.Stop()
	}
}
