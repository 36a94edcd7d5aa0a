package sim

import "sync"

// A Group is a sync.WaitGroup to which goroutines may be added while others wait for its
// end.
type Group struct {
	mu    sync.Mutex
	n     int
	ended chan struct{} // closed when n is 0; nil: no goroutine waits
}

// Go runs f in a goroutine of the group.
func (g *Group) Go(f func()) {
	g.mu.Lock()
	g.n++
	g.mu.Unlock()
	go func() {
		defer g.done()
		f()
	}()
}

func (g *Group) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
	if g.n == 0 && g.ended != nil {
		close(g.ended)
		g.ended = nil
	}
}

// Wait waits until the group is empty.
func (g *Group) Wait() {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return
	}
	if g.ended == nil {
		g.ended = make(chan struct{})
	}
	ended := g.ended
	g.mu.Unlock()
	<-ended
}
