package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ceyewan/genesis/internal/measure"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// Orders are everything that a child process is told.
type Orders struct {
	Backend worker.Backend `json:"backend"` // its Kind may also be file or memory
	Dir     string         `json:"dir"`     // of the file backend
	Seed    uint64         `json:"seed"`
	Unused  time.Duration  `json:"unused"` // after which files of locks are removed
}

// What the parent says to a child, one to a line. The end of the input ends the child.
const (
	sayLook   = "look"   // measure
	sayRest   = "rest"   // measure when no user is at work
	sayReopen = "reopen" // close a Client and its connections, and open others
)

// An Answer is what a child says to each of these, and at its end.
type Answer struct {
	Figures    map[string]float64 `json:"figures"`
	Operations map[string]int64   `json:"operations"`
	Error      string             `json:"error,omitempty"`
}

const (
	shops    = 2  // Clients with connections of their own
	users    = 12 // of each, which hold for seconds and use everything
	clerks   = 3  // of each, which hold for milliseconds and mostly use names once
	hotKeys  = 8
	settling = 4 * time.Second // for clean-up, and locks with WithMinHold
)

// A child is the process of one backend.
type child struct {
	orders Orders
	idle   int // goroutines before anything was opened
	shops  []*shop
	tally  *tally
	begin  time.Time
	orderN atomic.Int64 // the last name that was used once

	// work is held shared by whoever calls the library, and exclusively during a rest.
	work  sync.RWMutex
	crowd sync.WaitGroup
}

// Main runs a child until its input ends.
func Main(orders string, in io.Reader, out io.Writer) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // sent to a whole group at times; the parent decides
	c := &child{tally: newTally(), begin: time.Now(), idle: runtime.NumGoroutine()}
	if err := json.Unmarshal([]byte(orders), &c.orders); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := c.open(ctx); err != nil {
		return err
	}
	answers := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if err := answers.Encode(c.obey(ctx, lines.Text())); err != nil {
			break // the parent is gone
		}
	}
	stop()
	return answers.Encode(c.close())
}

// open opens the Clients and lets users in.
func (c *child) open(ctx context.Context) error {
	store := c.localStore()
	for i := range shops {
		s := &shop{child: c, number: i, local: store}
		if err := s.reopen(); err != nil {
			return err
		}
		c.shops = append(c.shops, s)
	}
	for i, s := range c.shops {
		for j := range users {
			u := s.user(fmt.Sprintf("user %d.%d", i, j), c.random(i, j))
			c.crowd.Go(func() { c.repeat(ctx, func() { u.Run(ctx, 1) }) })
		}
		for j := range clerks {
			k := &clerk{shop: s, r: c.random(i, users+j)}
			c.crowd.Go(func() { c.repeat(ctx, func() { k.serve(ctx) }) })
		}
	}
	if c.orders.Backend.Kind == kindFile {
		c.crowd.Go(func() { c.cleanFiles(ctx) })
	}
	return nil
}

func (c *child) random(i, j int) *rand.Rand {
	return rand.New(rand.NewPCG(c.orders.Seed, uint64(1000*i+j)))
}

// repeat does something again and again, but not during a rest.
func (c *child) repeat(ctx context.Context, do func()) {
	for ctx.Err() == nil {
		c.work.RLock()
		do()
		c.work.RUnlock()
	}
}

func (c *child) obey(ctx context.Context, order string) Answer {
	var err error
	switch order {
	case sayLook:
		return c.look()
	case sayRest:
		return c.rest(ctx)
	case sayReopen:
		err = c.shops[rand.IntN(len(c.shops))].reopen()
	default:
		err = fmt.Errorf("no order %q", order)
	}
	if err != nil {
		return Answer{Error: err.Error()}
	}
	return Answer{}
}

// look measures this process.
func (c *child) look() Answer {
	runtime.GC()
	runtime.GC() // the second one frees what pools kept through the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Answer{
		Figures: map[string]float64{
			heap: float64(m.HeapAlloc), goroutines: float64(runtime.NumGoroutine()), descriptors: openDescriptors(),
			rss: resident(), names: float64(c.orderN.Load()), cpu: measure.CPU().Seconds(),
		},
		Operations: c.tally.read(),
	}
}

// rest waits until all users have finished what they do, brings pools of connections to the
// same size each time, and measures.
func (c *child) rest(ctx context.Context) Answer {
	c.work.Lock()
	defer c.work.Unlock()
	for _, s := range c.shops {
		s.fill(ctx)
	}
	pause(ctx, settling)
	return c.look()
}

// close closes everything, and says what is left. That the Clients close ends what users do.
func (c *child) close() Answer {
	for _, s := range c.shops {
		s.closeClient()
	}
	c.crowd.Wait()
	for _, s := range c.shops { // a user may have opened another meanwhile
		s.closeClient()
		s.closeConnections()
	}
	for range 100 {
		if runtime.NumGoroutine() <= c.idle {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	a := c.look()
	a.Figures[goroutines] -= float64(c.idle)
	if a.Figures[goroutines] > 0 {
		text := make([]byte, 1<<16)
		a.Error = string(text[:runtime.Stack(text, true)])
	}
	return a
}

// newName is a name that is used once, such as the number of an order. All have the same
// length, so that all take the same room.
func (c *child) newName() string { return fmt.Sprintf("order-%012d", c.orderN.Add(1)) }

func openDescriptors() float64 {
	open, _ := os.ReadDir("/proc/self/fd") // not there on other systems: none, always
	return float64(len(open))
}

func resident() float64 {
	text, _ := os.ReadFile("/proc/self/statm")
	var size, pages float64
	_, _ = fmt.Fscan(strings.NewReader(string(text)), &size, &pages)
	return pages * float64(os.Getpagesize())
}

// pause waits, but not for one who is told to stop.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
