// Package mutant is a set of lock backends that are broken on purpose, each in a way
// that locks in the field were. The lab has to catch all of them.
package mutant

import (
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Servers are the clients of a worker, for mutants that speak to servers by
// themselves.
type Servers struct {
	Redis  redis.UniversalClient
	Nodes  []redis.UniversalClient
	Etcd   *clientv3.Client
	Worker int // which of the workers this is
}

// A Mutant is one way to be wrong.
type Mutant struct {
	Name string
	// Wrong says what it does wrong.
	Wrong string
	// Topology, Mode and Needs are where it shows; no Mode is Inside. Needs are
	// faults, one of which must be in the schedule, with Longer for longer than a
	// lease, with Early in its first 4 s, with Whole at all servers: seeds without them say
	// nothing about the mutant. None means that it shows in any.
	Topology string
	Mode     schedule.Mode
	Needs    []schedule.Kind
	Longer   bool
	Early    bool
	Whole    bool // it strikes all of several servers
	// By are the oracles that see its mistake. What others see may be the doing of something else.
	By     []string
	change func(healthy driver.Opener, s Servers) driver.Opener
}

// Apply returns the backend that a worker is to use: the healthy one if no mutant is
// named.
func Apply(name string, healthy driver.Opener, s Servers) (driver.Opener, error) {
	if name == "" {
		return healthy, nil
	}
	m, ok := Find(name)
	if !ok {
		return nil, fmt.Errorf("there is no mutant %q", name)
	}
	return m.change(healthy, s), nil
}

// Find returns the mutant of this name.
func Find(name string) (Mutant, bool) {
	for _, m := range append([]Mutant{Control}, All...) {
		if m.Name == name {
			return m, true
		}
	}
	return Mutant{}, false
}

// Seeds are the first n seeds whose schedule has a fault in which the mutant shows.
func (m Mutant) Seeds(n int, length time.Duration) (seeds []uint64) {
	for seed := uint64(1); len(seeds) < n; seed++ {
		plan, err := schedule.Plan(seed, m.Topology, m.In(), length)
		if err != nil {
			return nil
		}
		if len(m.Needs) == 0 || slices.ContainsFunc(plan, m.needs) {
			seeds = append(seeds, seed)
		}
	}
	return seeds
}

func (m Mutant) needs(f schedule.Fault) bool {
	return slices.Contains(m.Needs, f.Kind) && (!m.Longer || f.For > schedule.TTL(m.Topology)) && (!m.Early || f.At < 4*time.Second) &&
		(!m.Whole || schedule.StrikesAll(f.Target, 3))
}

// In is the mode in which the mutant shows.
func (m Mutant) In() schedule.Mode {
	if m.Mode == "" {
		return schedule.Inside
	}
	return m.Mode
}
