package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/topology"
)

// A backendRun is one backend: its servers, its child process, and what is done to them.
type backendRun struct {
	name   string
	plan   Plan
	top    topology.Topology // nil without servers
	dir    string            // of the file backend
	prober prober
	faults []schedule.Fault
	random *rand.Rand

	child    *exec.Cmd // nil when it has ended
	commands io.WriteCloser
	answers  chan Answer // of the child; closed at its end
	ended    chan error
}

// topologies are the servers of each backend; none for locks of this machine.
var topologies = map[string]string{
	"redis": schedule.Single, "sentinel": schedule.Sentinel, "redlock": schedule.Redlock3, "etcd": schedule.Etcd1,
	kindFile: "", kindMemory: "",
}

func startBackend(ctx context.Context, name string, plan Plan, number uint64) (*backendRun, error) {
	topologyName, ok := topologies[name]
	if !ok {
		return nil, fmt.Errorf("there is no backend %q", name)
	}
	b := &backendRun{
		name: name, plan: plan, prober: noServer{}, faults: faultsOf(name), random: rand.New(rand.NewPCG(plan.Seed, number)),
	}
	orders := Orders{Seed: plan.Seed + number<<32, Unused: max(plan.Half()/20, time.Second)}
	err := b.prepare(ctx, topologyName, &orders)
	if err == nil {
		err = b.spawn(orders)
	}
	if err != nil {
		return nil, errors.Join(err, b.stop())
	}
	return b, nil
}

// prepare starts the servers or makes the directory, and says in orders how to reach them.
func (b *backendRun) prepare(ctx context.Context, topologyName string, orders *Orders) (err error) {
	orders.Backend.Kind = b.name
	switch {
	case topologyName != "":
		b.top, err = topology.Start(ctx, topologyName, schedule.Inside, schedule.Setup{})
		if err != nil {
			return err
		}
		orders.Backend = b.top.Workers()
		return b.startProber()
	case b.name == kindFile:
		b.dir, err = os.MkdirTemp("", "dlock-soak-*")
		orders.Dir, b.prober = b.dir, fileProber(b.dir)
	}
	return err
}

func (b *backendRun) startProber() error {
	direct := b.top.Direct()
	nodes, several := b.top.(interface{ NodeAddrs() []string })
	switch {
	case direct.Kind == "etcd":
		p, err := newEtcdProber(direct)
		if err != nil {
			return err
		}
		b.prober = p
	case several:
		b.prober = newRedisProber(nodes.NodeAddrs())
	default:
		b.prober = newRedisProber(direct.Addrs)
	}
	return nil
}

// spawn starts this program again as the child. It ends when its input does, so it never
// outlives the parent.
func (b *backendRun) spawn(orders Orders) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(orders)
	if err != nil {
		return err
	}
	child := exec.Command(self, ChildCommand, string(text))
	child.Stderr = os.Stderr
	b.commands, err = child.StdinPipe()
	if err != nil {
		return err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	b.child, b.answers, b.ended = child, make(chan Answer), make(chan error, 1)
	go b.read(out)
	return nil
}

// ChildCommand is the first argument of a child.
const ChildCommand = "soak-child"

func (b *backendRun) read(out io.Reader) {
	lines := json.NewDecoder(bufio.NewReader(out))
	for {
		var a Answer
		if lines.Decode(&a) != nil {
			break
		}
		b.answers <- a
	}
	b.ended <- b.child.Wait()
	close(b.answers)
}

// How long a child may take: users hold for many seconds, and wait for each other.
const (
	lookWithin = time.Minute
	restWithin = 5 * time.Minute
)

// send gives a command to the child and waits for its answer.
func (b *backendRun) send(ctx context.Context, command string) (Answer, error) {
	if _, err := io.WriteString(b.commands, command+"\n"); err != nil {
		return Answer{}, fmt.Errorf("%s: the child does not listen: %w", b.name, err)
	}
	within := lookWithin
	if command == cmdRest {
		within = restWithin
	}
	return b.answer(ctx, command, within)
}

func (b *backendRun) answer(ctx context.Context, command string, within time.Duration) (Answer, error) {
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case a, ok := <-b.answers:
		if !ok {
			return a, fmt.Errorf("%s: the child has ended during %q", b.name, command)
		}
		return a, nil
	case <-late.C:
		return Answer{}, fmt.Errorf("%s: the child does not answer %q within %v", b.name, command, within)
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

// measure takes one sample of the child and of the servers.
func (b *backendRun) measure(ctx context.Context, rest bool) (Sample, error) {
	command := cmdMeasure
	if rest {
		command = cmdRest
	}
	a, err := b.send(ctx, command)
	if err != nil {
		return Sample{}, err
	}
	sample := b.sample(a)
	sample.Rest = rest
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	stored, err := b.prober.probe(ctx, rest)
	if err != nil { // servers that were disturbed a moment ago may be slow
		sample.Missing = strings.TrimSpace(sample.Missing + " " + err.Error())
		return sample, nil
	}
	for name, value := range stored {
		sample.Figures[name] = value
	}
	return sample, nil
}

func (b *backendRun) sample(a Answer) Sample {
	if a.Figures == nil {
		a.Figures = map[string]float64{}
	}
	return Sample{
		Backend: b.name, At: time.Since(b.plan.Begin).Seconds(), Figures: a.Figures, Operations: a.Operations, Missing: a.Error,
	}
}

// finish ends the users and the child, and returns its last sample.
func (b *backendRun) finish() (Sample, error) {
	_ = b.commands.Close()
	late := time.After(restWithin)
	var last Sample
	for {
		select {
		case a, ok := <-b.answers: // the first may belong to a command that was given up
			if !ok {
				b.child = nil
				return last, <-b.ended
			}
			last = b.sample(a)
			last.Last = true
		case <-late:
			return last, fmt.Errorf("%s: the child does not end", b.name)
		}
	}
}

// stop leaves nothing behind.
func (b *backendRun) stop() (err error) {
	if b.child != nil {
		_ = b.child.Process.Kill()
		for range b.answers {
			continue // until the child is gone
		}
	}
	b.prober.close()
	if b.top != nil {
		err = b.top.Stop()
	}
	if b.dir != "" {
		err = errors.Join(err, os.RemoveAll(b.dir))
	}
	return err
}
