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
	cmdMeasure = "measure"
	cmdRest    = "rest"   // measure when no user is at work
	cmdReopen  = "reopen" // close a Client and its connections, and open others
)

// An Answer is what a child says to each of these, and at its end.
type Answer struct {
	Figures    map[string]float64 `json:"figures"`
	Operations map[string]int64   `json:"operations"`
	Error      string             `json:"error,omitempty"`
}

const (
	instances   = 2  // Clients with connections of their own
	users       = 12 // of each, which hold for seconds and use everything
	briefUsers  = 3  // of each, which hold for milliseconds and mostly use names once
	hotKeys     = 8
	cleanupTime = 4 * time.Second // for cleanup, and locks with WithMinHold
)

// A child is the process of one backend.
type child struct {
	orders    Orders
	idle      int // goroutines before anything was opened
	instances []*instance
	counts    *counter
	orderN    atomic.Int64 // the last name that was used once

	// work is held shared by whoever calls the library, and exclusively during a rest.
	work    sync.RWMutex
	running sync.WaitGroup
}

// Main runs a child until its input ends.
func Main(orders string, in io.Reader, out io.Writer) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // sent to a whole group at times; the parent decides
	c := &child{counts: newCounter(), idle: runtime.NumGoroutine()}
	if err := json.Unmarshal([]byte(orders), &c.orders); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := c.open(ctx); err != nil {
		return err
	}
	answers := json.NewEncoder(out)
	for command := range c.commands(in, stop) {
		if err := answers.Encode(c.handle(ctx, command)); err != nil {
			return err // the parent is gone
		}
	}
	return answers.Encode(c.close())
}

// commands delivers the lines of the input. Its end ends what users do, and with it a rest
// that waits for them.
func (c *child) commands(in io.Reader, stop func()) <-chan string {
	all := make(chan string)
	go func() {
		defer close(all)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			all <- lines.Text()
		}
		stop()
		c.closeClients()
	}()
	return all
}

func (c *child) closeClients() {
	for _, i := range c.instances {
		i.closeClient()
	}
}

// open opens the Clients and starts the users.
func (c *child) open(ctx context.Context) error {
	store := c.localStore()
	for n := range instances {
		i := &instance{child: c, number: n, local: store}
		if err := i.reopen(); err != nil {
			return err
		}
		c.instances = append(c.instances, i)
	}
	for n, i := range c.instances {
		for j := range users {
			u := i.user(fmt.Sprintf("user %d.%d", n, j), c.random(n, j))
			c.running.Go(func() { c.repeat(ctx, func() { u.Run(ctx, 1) }) })
		}
		for j := range briefUsers {
			k := &briefUser{instance: i, r: c.random(n, users+j)}
			c.running.Go(func() { c.repeat(ctx, func() { k.run(ctx) }) })
		}
	}
	if c.orders.Backend.Kind == kindFile {
		c.running.Go(func() { c.cleanFiles(ctx) })
	}
	return nil
}

func (c *child) random(n, j int) *rand.Rand {
	return rand.New(rand.NewPCG(c.orders.Seed, uint64(1000*n+j)))
}

// repeat does something again and again, but not during a rest.
func (c *child) repeat(ctx context.Context, do func()) {
	for ctx.Err() == nil {
		c.work.RLock()
		do()
		c.work.RUnlock()
	}
}

func (c *child) handle(ctx context.Context, command string) Answer {
	var err error
	switch command {
	case cmdMeasure:
		return c.measure()
	case cmdRest:
		return c.rest(ctx)
	case cmdReopen:
		err = c.instances[rand.IntN(len(c.instances))].reopen()
	default:
		err = fmt.Errorf("no command %q", command)
	}
	if err != nil {
		return Answer{Error: err.Error()}
	}
	return Answer{}
}

// measure measures this process.
func (c *child) measure() Answer {
	runtime.GC()
	runtime.GC() // the second one frees what pools kept through the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Answer{
		Figures: map[string]float64{
			heap: float64(m.HeapAlloc), goroutines: float64(runtime.NumGoroutine()), descriptors: openDescriptors(),
			rss: resident(), names: float64(c.orderN.Load()), cpu: measure.CPU().Seconds(),
		},
		Operations: c.counts.read(),
	}
}

// rest waits until all users have finished what they do, brings pools of connections to the
// same size each time, and measures.
func (c *child) rest(ctx context.Context) Answer {
	c.work.Lock()
	defer c.work.Unlock()
	for _, i := range c.instances {
		i.fill(ctx)
	}
	pause(ctx, cleanupTime)
	return c.measure()
}

// close closes everything, and says what is left.
func (c *child) close() Answer {
	c.running.Wait()
	c.closeClients() // a user may have opened another meanwhile
	for _, i := range c.instances {
		i.closeConnections()
	}
	for range 100 {
		if runtime.NumGoroutine() <= c.idle {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	a := c.measure()
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

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
