// Package trial runs one schedule against one topology and judges what happened.
package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/store"
	"github.com/ceyewan/genesis/lab/internal/topology"
	"github.com/ceyewan/genesis/lab/internal/watch"
)

// A Spec says what to run. Together with the code it is all that a replay needs.
type Spec struct {
	Seed     uint64        `json:"seed"`
	Topology string        `json:"topology"`
	Mode     schedule.Mode `json:"mode"`
	Length   time.Duration `json:"length"`
	Mutant   string        `json:"mutant,omitempty"`
	// Rest is how long a worker rests at most between two locks; 0: DefaultRest.
	Rest time.Duration `json:"rest,omitempty"`
}

// DefaultRest keeps one trial busy. Where several run at once they need more rest.
const DefaultRest = 10 * time.Millisecond

// Setup is how workers of this trial are configured.
func (s Spec) Setup() schedule.Setup {
	setup := schedule.SetupFor(s.Seed, s.Topology, s.Mode)
	if s.Mutant != "" {
		return setup.Plain()
	}
	return setup
}

func (s Spec) String() string {
	text := fmt.Sprintf("%s/%s seed %d, %v", s.Topology, s.Mode, s.Seed, s.Length)
	if s.Mutant != "" {
		text += ", mutant " + s.Mutant
	}
	return text
}

// A Progress hears what a trial does.
type Progress func(format string, args ...any)

// minRate is how many sections per second a trial must have to prove anything. Waiters that
// nothing can be published to are served at their next heartbeat, and others wait for them.
func (s Spec) minRate() float64 {
	if s.Setup().Rights == schedule.NoChannels {
		return 1
	}
	return 5
}

// workers is how many processes lock at a time.
const workers = 4

// A trial is one run of a Spec.
type trial struct {
	spec     Spec
	dir      string
	started  int64
	top      topology.Topology
	store    *store.Store
	watcher  *watch.Watcher
	lookout  *lookout
	log      *event.Log
	crew     *crew
	holders  *holders
	turns    turns
	progress Progress
	evidence *oracle.Evidence
}

// Run carries out a Spec. The evidence is returned for the report.
func Run(ctx context.Context, spec Spec, progress Progress) (*oracle.Verdict, *oracle.Evidence, error) {
	plan, err := schedule.Plan(spec.Seed, spec.Topology, spec.Mode, spec.Length)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "dlock-lab-*")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	t := &trial{spec: spec, dir: dir, progress: progress, evidence: &oracle.Evidence{
		Topology: spec.Topology, Mode: spec.Mode, TTL: schedule.TTL(spec.Topology), Setup: spec.Setup(),
	}}
	err = t.begin(ctx)
	if err == nil {
		err = t.work(ctx, plan)
	}
	if err = errors.Join(err, t.finish()); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", spec, err)
	}
	return t.evidence.Judge(spec.minRate()), t.evidence, nil
}

const startWithin = time.Minute

// begin starts everything but the workers.
func (t *trial) begin(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if t.top, err = topology.Start(ctx, t.spec.Topology, t.spec.Mode, t.spec.Setup()); err != nil {
		return err
	}
	if t.store, err = store.Listen(filepath.Join(t.dir, "store")); err != nil {
		return err
	}
	if t.log, err = event.Open(t.logPath(), oracle.Lab); err != nil {
		return err
	}
	if t.holders, err = followHolders(t.logPath()); err != nil {
		return err
	}
	t.watcher = watch.Start(t.top)
	if t.lookout, err = newLookout(t.top.Direct()); err != nil {
		return err
	}
	t.started = mono.Now()
	t.crew = &crew{trial: t}
	return nil
}

func (t *trial) logPath() string { return filepath.Join(t.dir, "events") }

// work lets workers work under faults, stops them, and looks for what they left.
func (t *trial) work(ctx context.Context, plan []schedule.Fault) error {
	if err := t.crew.start(ctx, workers); err != nil {
		return err
	}
	defer t.watchMachine()()
	t.evidence.From = mono.Now()
	err := t.inject(ctx, plan)
	t.evidence.To = mono.Now()
	stuck, stopErr := t.crew.stop()
	if err = errors.Join(err, stopErr); err != nil {
		return err
	}
	t.evidence.Stuck = stuck
	t.evidence.Ghosts, err = t.ghosts(ctx)
	return err
}

// finish stops everything that runs and collects the evidence.
func (t *trial) finish() (err error) {
	if t.crew != nil {
		t.crew.killAll()
	}
	if t.watcher != nil {
		t.evidence.Deaths = t.watcher.Stop()
	}
	if t.lookout != nil {
		t.lookout.close()
	}
	if t.top != nil {
		err = errors.Join(err, t.top.Stop())
	}
	if t.store != nil {
		t.evidence.Writes, t.evidence.Counts = t.store.Log()
		t.evidence.Lost = t.store.Lost()
		_ = t.store.Close()
	}
	if t.holders != nil {
		_ = t.holders.tail.Close()
	}
	if t.log != nil {
		_ = t.log.Close()
		var readErr error
		t.evidence.Events, readErr = event.Read(t.logPath())
		err = errors.Join(err, readErr)
	}
	return err
}
