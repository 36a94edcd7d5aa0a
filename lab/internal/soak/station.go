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

// A station is one backend: its servers, its child process, and what is done to them.
type station struct {
	name   string
	plan   Plan
	top    topology.Topology // nil without servers
	dir    string            // of the file backend
	prober prober
	faults []schedule.Fault
	random *rand.Rand

	child   *exec.Cmd
	orders  io.WriteCloser
	answers chan Answer // of the child; closed at its end
	ended   chan error
}

// topologies are the servers of each backend; none for locks of this machine.
var topologies = map[string]string{
	"redis": schedule.Single, "sentinel": schedule.Sentinel, "redlock": schedule.Redlock3, "etcd": schedule.Etcd1,
	kindFile: "", kindMemory: "",
}

func startStation(ctx context.Context, name string, plan Plan, number uint64) (s *station, err error) {
	s = &station{name: name, plan: plan, prober: noServer{}, random: rand.New(rand.NewPCG(plan.Seed, number))}
	kind, ok := topologies[name]
	if !ok {
		return nil, fmt.Errorf("there is no backend %q", name)
	}
	defer func() {
		if err != nil {
			_ = s.stop()
		}
	}()
	orders := Orders{Seed: plan.Seed + number<<32, Unused: max(plan.Half()/20, time.Second)}
	orders.Backend.Kind = name
	switch {
	case kind != "":
		s.top, err = topology.Start(ctx, kind, schedule.Inside)
		if err != nil {
			return nil, err
		}
		orders.Backend = s.top.Workers()
		s.prober, err = s.newProber()
	case name == kindFile:
		s.dir, err = os.MkdirTemp("", "dlock-soak-*")
		orders.Dir, s.prober = s.dir, fileProber(s.dir)
	}
	if err != nil {
		return nil, err
	}
	s.faults = faultsOf(name)
	return s, s.spawn(orders)
}

func (s *station) newProber() (prober, error) {
	direct := s.top.Direct()
	if direct.Kind == "etcd" {
		return newEtcdProber(direct)
	}
	if nodes, ok := s.top.(interface{ NodeAddrs() []string }); ok {
		return newRedisProber(nodes.NodeAddrs()), nil
	}
	return newRedisProber(direct.Addrs), nil
}

// spawn starts this program again as the child. It ends when its input does, so it outlives
// us in no case.
func (s *station) spawn(orders Orders) error {
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
	s.orders, err = child.StdinPipe()
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
	s.child, s.answers, s.ended = child, make(chan Answer), make(chan error, 1)
	go s.read(out)
	return nil
}

// ChildCommand is the first argument of a child.
const ChildCommand = "soak-child"

func (s *station) read(out io.Reader) {
	lines := json.NewDecoder(bufio.NewReader(out))
	for {
		var a Answer
		if lines.Decode(&a) != nil {
			break
		}
		s.answers <- a
	}
	s.ended <- s.child.Wait()
	close(s.answers)
}

// How long a child may take: users hold for many seconds, and wait for each other.
const (
	lookWithin = time.Minute
	restWithin = 5 * time.Minute
)

// say gives an order to the child and waits for its answer.
func (s *station) say(ctx context.Context, order string) (Answer, error) {
	if _, err := io.WriteString(s.orders, order+"\n"); err != nil {
		return Answer{}, fmt.Errorf("%s: the child does not listen: %w", s.name, err)
	}
	within := lookWithin
	if order == sayRest {
		within = restWithin
	}
	return s.answer(ctx, order, within)
}

func (s *station) answer(ctx context.Context, order string, within time.Duration) (Answer, error) {
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case a, ok := <-s.answers:
		if !ok {
			return a, fmt.Errorf("%s: the child has ended during %q", s.name, order)
		}
		return a, nil
	case <-late.C:
		return Answer{}, fmt.Errorf("%s: the child does not answer %q within %v", s.name, order, within)
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

// measure takes one sample of the child and of the servers.
func (s *station) measure(ctx context.Context, rest bool) (Sample, error) {
	order := sayLook
	if rest {
		order = sayRest
	}
	a, err := s.say(ctx, order)
	if err != nil {
		return Sample{}, err
	}
	sample := s.sample(a)
	sample.Rest = rest
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	stored, err := s.prober.probe(ctx, rest)
	if err != nil { // servers that were disturbed a moment ago may be slow
		sample.Missing = strings.TrimSpace(sample.Missing + " " + err.Error())
		return sample, nil
	}
	for name, value := range stored {
		sample.Figures[name] = value
	}
	return sample, nil
}

func (s *station) sample(a Answer) Sample {
	if a.Figures == nil {
		a.Figures = map[string]float64{}
	}
	return Sample{
		Backend: s.name, At: time.Since(s.plan.Begin).Seconds(), Figures: a.Figures, Operations: a.Operations, Missing: a.Error,
	}
}

// finish ends the users and the child, and returns its last words.
func (s *station) finish() (Sample, error) {
	_ = s.orders.Close()
	late := time.After(restWithin)
	var last Sample
	for {
		select {
		case a, ok := <-s.answers: // the first may be one that nobody waited for
			if !ok {
				s.orders = nil
				return last, <-s.ended
			}
			last = s.sample(a)
			last.Last = true
		case <-late:
			return last, fmt.Errorf("%s: the child does not end", s.name)
		}
	}
}

// stop leaves nothing behind.
func (s *station) stop() (err error) {
	if s.orders != nil {
		_ = s.child.Process.Kill()
		for range s.answers { //nolint:revive // until the child is gone
		}
	}
	s.prober.close()
	if s.top != nil {
		err = s.top.Stop()
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}
