package sim

import (
	"fmt"
	"sync"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// A process is one Client of a run, and the next when that was closed.
type process struct {
	sim  *Simulation
	name string
	cfg  dlock.Config

	mu     sync.Mutex
	client *dlock.Client
	lives  int
}

func (p *process) get() *dlock.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// restart opens another Client, and closes the old one under its users.
func (p *process) restart() error {
	next, err := p.sim.open(fmt.Sprint(p.name, p.lives), p.cfg)
	if err != nil {
		return err
	}
	p.mu.Lock()
	old := p.client
	p.client = next
	p.lives++
	p.mu.Unlock()
	if old == nil {
		return nil
	}
	return p.sim.shut(old)
}
