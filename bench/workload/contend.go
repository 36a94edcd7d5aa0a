package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
	"github.com/ceyewan/genesis/internal/measure"
	"github.com/ceyewan/genesis/internal/stats"
)

// A Contention is one round at one key, as a worker is asked for it.
type Contention struct {
	Key     string        `json:"key"`
	Clients int           `json:"clients"` // the first so many that are open
	Runners int           `json:"runners"` // goroutines, in turn of these clients; 0 is one of each
	Section time.Duration `json:"section"` // how long the key is held
	For     time.Duration `json:"for"`
	Witness string        `json:"witness"`  // a file
	StartAt int64         `json:"start_at"` // Unix nanoseconds, for processes that begin together; 0 is now
	Settle  bool          `json:"settle"`   // all wait before the first gets the key, and only then the count begins
	Drain   bool          `json:"drain"`    // waits that are open at the end are served, and count
}

// An Outcome is what a Contention came to.
type Outcome struct {
	Seconds  float64 `json:"seconds"`
	Shares   []int   `json:"shares"` // of each client
	Waits    Waits   `json:"waits"`
	HandOffs Waits   `json:"hand_offs"` // from the call of Unlock to the next holder; counted, not weighted
	Client   float64 `json:"client_cpu"`
	Server   float64 `json:"server_cpu"`
	Trouble  Trouble `json:"trouble"`
}

// Waits are weighted by waiting time. A wait that was open when the round ended counts
// with its length so far.
type Waits struct {
	P50 float64 `json:"p50"`
	P70 float64 `json:"p70"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// A contention is a Contention under way.
type contention struct {
	Contention
	clients []peer.Client
	servers []int
	witness *witness
	wait    context.Context // of the waiters; ends with the round
	begin   atomic.Int64    // when the count began, in Unix nanoseconds; 0 is not yet
	end     atomic.Int64    // when it ended; 0 is not yet
	left    atomic.Int64    // when the last holder began to leave
	meter   meter
	runners []*runner

	clientCPU, serverCPU float64
}

// A runner is a goroutine that takes the key again and again.
type runner struct {
	client          int
	turns           int
	waits, handOffs []float64
	trouble         Trouble
}

// drainFor limits how long open waits are served after the end.
const drainFor = time.Second

func (w *worker) contend(c Contention) (*Outcome, error) {
	if c.Clients > len(w.clients) {
		return nil, errors.New("more clients than are open")
	}
	seen, err := openWitness(c.Witness)
	if err != nil {
		return nil, err
	}
	defer func() { _ = seen.close() }()
	r := &contention{Contention: c, clients: w.clients[:c.Clients], servers: w.servers, witness: seen}
	for i := range max(c.Runners, c.Clients) {
		r.runners = append(r.runners, &runner{client: i % c.Clients})
	}
	err = r.run()
	return r.outcome(), err
}

func (c *contention) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.wait = ctx
	if c.StartAt > 0 {
		time.Sleep(time.Until(time.Unix(0, c.StartAt)))
	}
	var wg sync.WaitGroup
	launch := func() {
		// In another order each time: the first gets a turn more in a round that is short,
		// and it would always be the same.
		for _, i := range rand.Perm(len(c.runners)) {
			wg.Go(func() { c.goRound(c.runners[i], identity(i)) })
		}
	}
	if err := c.start(launch); err != nil {
		return err
	}
	time.Sleep(c.For)
	c.finish()
	if c.Drain {
		defer time.AfterFunc(drainFor, cancel).Stop()
	} else {
		cancel()
	}
	wg.Wait()
	c.cleanUp()
	return nil
}

// start begins the count, when all are launched or, with Settle, when all of them wait.
func (c *contention) start(launch func()) error {
	if !c.Settle {
		c.meter = startMeter(c.servers)
		c.begin.Store(time.Now().UnixNano())
		launch()
		return nil
	}
	first, err := c.clients[0].Lock(c.wait, c.Key)
	if err != nil {
		return err
	}
	launch()
	awaitQuiet()
	c.meter = startMeter(c.servers)
	c.begin.Store(time.Now().UnixNano())
	return first.Unlock(c.wait)
}

// awaitQuiet waits until this process has nothing to do, which shows that all calls
// have reached the server. Pollers are never quiet: they have one second.
func awaitQuiet() {
	const look, timeout = 100 * time.Millisecond, time.Second
	before := measure.CPU()
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		time.Sleep(look)
		now := measure.CPU()
		if now-before < look/20 {
			return
		}
		before = now
	}
}

// finish ends the count.
func (c *contention) finish() {
	c.end.Store(time.Now().UnixNano())
	c.clientCPU, c.serverCPU = c.meter.read()
}

// goRound is the loop of one goroutine.
func (c *contention) goRound(r *runner, who int64) {
	asked := time.Now()
	for c.end.Load() == 0 {
		lock, err := c.clients[r.client].Lock(c.wait, c.Key)
		if err != nil {
			if !c.failed(r, err) {
				break
			}
			continue // the wait goes on
		}
		if c.end.Load() != 0 && !c.Drain {
			c.check(r, lock.Unlock(context.Background()))
			break
		}
		c.entered(r, who, asked)
		c.check(r, lock.Unlock(context.Background()))
		asked = time.Now()
	}
	if c.end.Load() != 0 { // what is open now counts with its length so far
		if open := c.since(asked, c.end.Load()); open > 0 {
			r.waits = append(r.waits, open)
		}
	}
}

// failed records an error and reports whether to ask again.
func (c *contention) failed(r *runner, err error) bool {
	switch {
	case c.wait.Err() != nil:
		return false
	case errors.Is(err, peer.ErrGaveUp):
		r.trouble.GaveUp++
	default:
		c.check(r, err)
	}
	time.Sleep(time.Millisecond) // a client whose calls fail at once would do nothing else
	return true
}

func (c *contention) check(r *runner, err error) {
	if err != nil {
		r.trouble.Errors++
		r.trouble.First = err.Error()
	}
}

// entered is a turn: the section, and the books.
func (c *contention) entered(r *runner, who int64, asked time.Time) {
	now := time.Now().UnixNano()
	if c.witness.enter(who) {
		r.trouble.Overlaps++
	}
	if begin := c.begin.Load(); begin != 0 {
		if at := c.left.Load(); at != 0 {
			r.handOffs = append(r.handOffs, time.Duration(now-at).Seconds())
		}
		r.waits = append(r.waits, max(c.since(asked, now), 0))
		r.turns++
	}
	if c.Section > 0 {
		time.Sleep(c.Section)
	}
	c.witness.leave(who)
	c.left.Store(time.Now().UnixNano())
}

// since counts from when the count began.
func (c *contention) since(asked time.Time, until int64) float64 {
	return time.Duration(until - max(asked.UnixNano(), c.begin.Load())).Seconds()
}

// cleanUp takes the key once more: whoever gave up at the end may still be leaving the
// queue, and would disturb the next peer. A key that does not come free, because a wait
// that was given up has left something behind, counts as an error; the next round has
// another key.
func (c *contention) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpFor)
	defer cancel()
	for {
		lock, err := c.clients[0].Lock(ctx, c.Key)
		switch {
		case err == nil:
			c.check(c.runners[0], lock.Unlock(ctx))
			return
		case ctx.Err() != nil:
			c.check(c.runners[0], fmt.Errorf("the key is not free %v after the round: %w", cleanUpFor, err))
			return
		case !errors.Is(err, peer.ErrGaveUp):
			c.check(c.runners[0], fmt.Errorf("after the round: %w", err))
		}
		time.Sleep(time.Millisecond)
	}
}

const cleanUpFor = 2 * time.Second

func (c *contention) outcome() *Outcome {
	o := &Outcome{
		Seconds: time.Duration(c.end.Load() - c.begin.Load()).Seconds(), Shares: make([]int, c.Clients),
		Client: c.clientCPU, Server: c.serverCPU,
	}
	var waits, handOffs []float64
	for _, r := range c.runners {
		o.Shares[r.client] += r.turns
		waits, handOffs = append(waits, r.waits...), append(handOffs, r.handOffs...)
		o.Trouble.Add(&r.trouble)
	}
	slices.Sort(waits)
	slices.Sort(handOffs)
	o.Waits = waitsAt(waits, stats.PercentileByTime)
	o.HandOffs = waitsAt(handOffs, stats.Percentile)
	o.Trouble.Starved = starved(o.Shares)
	return o
}

// waitsAt takes the percentiles by one definition.
func waitsAt(sorted []float64, percentile func([]float64, float64) float64) Waits {
	return Waits{percentile(sorted, 50), percentile(sorted, 70), percentile(sorted, 90), percentile(sorted, 99), percentile(sorted, 100)}
}

// starved counts the clients that got nothing where an even share is five turns or more.
func starved(shares []int) int {
	sum, none := 0, 0
	for _, n := range shares {
		sum += n
		if n == 0 {
			none++
		}
	}
	if sum < 5*len(shares) {
		return 0
	}
	return none
}

// Add sums up.
func (t *Trouble) Add(more *Trouble) {
	t.Overlaps += more.Overlaps
	t.Errors += more.Errors
	t.GaveUp += more.GaveUp
	t.Starved += more.Starved
	if t.First == "" {
		t.First = more.First
	}
}
