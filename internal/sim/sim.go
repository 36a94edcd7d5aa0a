// Package sim runs seeded simulations of Clients in virtual time. Users call most of what
// the library offers (docs/reliability.md lists it, and what is missing), over a network that delays, loses, repeats and reorders
// messages, and every answer is checked. docs/reliability.md says how to run it.
//
// A seed decides everything: what users call, and what becomes of each message. The fate
// of a message depends on which message it is, not on when it is drawn.
package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A Store is the server of a Simulation, past the network. It is asked in virtual time,
// and must not wait.
type Store interface {
	// Backend is how one more Client of a process reaches the store.
	Backend(process string) driver.Opener
	// Claims are what is stored under a key.
	Claims(key string) []driver.Claim
	// Evict removes a claim.
	Evict(key, id string, token int64)
	// Advance moves the clock of the store ahead of the Clients', or back.
	Advance(time.Duration)
}

// Settings are what differs between backends.
type Settings struct {
	Seed    uint64
	Verbose bool          // log every message
	Modes   []driver.Mode // that the store knows
	Fences  bool          // LocalBatch is possible
	Local   bool          // the store may be on the Clients' machine
	Sleeps  bool          // the Clients' machine may be suspended; they have to be told of Slept
	SetBack bool          // the store's clock may be set back
	FIFO    bool          // waiters are served in order when nothing fails
	Async   bool          // users do not always wait for their Unlock
	Several bool          // users also lock all keys together
	Rest    bool          // users also call Holder, Leave and Guards.Extend, ask for margins, and extend again
	Exact   bool          // a call is one message and its answer, on no connection that has to be made
}

// A Simulation is one run: Clients of one store, their users, and a record of what they
// were told. It belongs into the bubble of a synctest.
type Simulation struct {
	Settings
	store    Store
	begin    time.Time
	network  conditions
	calm     bool     // nothing fails
	clean    bool     // nothing fails but that messages are repeated
	local    bool     // the store is on the Clients' machine
	batches  bool     // some Client has a LocalBatch
	cuts     []cut    // when a link carries nothing
	handoffs bool     // users pass a lock on inside of their processes, most of the time
	brief    bool     // users are brief
	sleeps   []asleep // when the machine is suspended
	healed   atomic.Bool
	slept    atomic.Int64
	sent     Group // messages that are under way

	mu     sync.Mutex
	links  int
	holds  map[string][]*Hold // by key
	grants map[string]grant   // by claim ID: the last
	begins map[grant]string   // the claim ID of every grant there was: a claim that was evicted may be stored again
	told   map[string]bool    // by claim ID: its Client was told that it is gone

	firstGrants map[string]int64  // and the token of the first of them
	purposes    map[string]string // by claim ID
	attempts    []string          // what was sent, if the Store tells

	last      map[string]int64    // by key: the greatest token that was granted
	lastAlone map[string]int64    // and that of an exclusive lock
	taken     map[string][]sample // by key: what the store had
	waiting   map[*Request]int    // and how many that asked later were served first
	lastWake  time.Time
	callers   map[string]*dlock.Client // by purpose: whose call it was
	lingers   map[grant]bool           // Close leaves it to its lease
	leftAlone map[grant]bool           // and its user has called Leave
	least     map[string]time.Duration // by claim: the shortest TTL of a renewal without an answer
	failures  []string

	closed          map[*dlock.Client]bool // from when Close begins
	counts          map[Way]Count
	byKey           map[keyed][]*Request     // calls of Lock and TryLock
	unlockedByOther map[keyed]bool           // see unlocksForOther
	lastEviction    map[string]time.Duration // by key
	evictions       map[grant]time.Duration  // the first of each
	leases          map[grant]lease

	story []string
}

type cut struct {
	link     string
	from, to time.Duration
}

type asleep struct{ at, long time.Duration }

// A fragile Store can be damaged, as operators, evictions and failovers do: what belongs to
// a lock in addition to the lock itself is lost or wrong.
type fragile interface{ Damage(*rand.Rand) }

// New prepares a run.
func New(set Settings) *Simulation {
	s := &Simulation{
		Settings: set, begin: time.Now(), holds: map[string][]*Hold{}, grants: map[string]grant{}, begins: map[grant]string{}, told: map[string]bool{},
		last: map[string]int64{}, lastAlone: map[string]int64{}, taken: map[string][]sample{}, lingers: map[grant]bool{}, leftAlone: map[grant]bool{}, callers: map[string]*dlock.Client{},
		waiting: map[*Request]int{}, firstGrants: map[string]int64{}, purposes: map[string]string{},
		closed: map[*dlock.Client]bool{}, counts: map[Way]Count{}, byKey: map[keyed][]*Request{},
		unlockedByOther: map[keyed]bool{}, lastEviction: map[string]time.Duration{}, evictions: map[grant]time.Duration{}, leases: map[grant]lease{}, least: map[string]time.Duration{},
	}
	r := s.Draw("weather")
	s.calm = r.IntN(5) == 0
	s.local = s.calm && r.IntN(2) == 0 && s.Local
	s.network = conditions{delay: time.Duration(1+r.IntN(50)) * time.Millisecond, late: time.Duration(1+r.IntN(20)) * time.Second}
	if s.calm {
		s.brief = s.Draw("least holds").IntN(2) == 1 // none of those that failed once
		return s
	}
	if s.Draw("clean").IntN(10) == 0 {
		s.clean = true
		s.network.repeats, s.network.repeatLate = 20, true
		return s
	}
	s.network.loss, s.network.repeats, s.network.slow = 10*r.Float64(), 5*r.Float64(), 10*r.Float64()
	if s.Fences && s.Draw("handoffs").IntN(10) == 0 {
		s.handoffs = true
		s.network.loss, s.network.slow, s.network.late = s.network.loss/5, 30, 8*time.Second
	}
	if s.handoffs || s.Draw("repeats").IntN(3) == 0 { // see Eager
		s.network.repeats = 0
	}
	for range r.IntN(4) {
		from := time.Duration(r.Int64N(int64(time.Minute)))
		s.cuts = append(s.cuts, cut{fmt.Sprintf("link %d", 1+r.IntN(3)), from, from + time.Duration(r.Int64N(int64(15*time.Second)))})
	}
	if r.IntN(4) == 0 && s.Sleeps {
		for range 1 + r.IntN(3) {
			s.sleeps = append(s.sleeps, asleep{time.Duration(r.Int64N(int64(time.Minute))), time.Duration(r.Int64N(int64(20 * time.Second)))})
		}
	}
	return s
}

// Draw is a source of randomness for one thing of a run, whatever was drawn before.
func (s *Simulation) Draw(what ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, what...)
	return rand.New(rand.NewPCG(s.Seed, h.Sum64()))
}

// Now is the time since the run began.
func (s *Simulation) Now() time.Duration { return time.Since(s.begin) }

// Slept is how long the Clients' machine has been suspended.
func (s *Simulation) Slept() time.Duration { return time.Duration(s.slept.Load()) }

// maxDuration is when every user must have got what it waits for.
const maxDuration = 20 * time.Minute

// Run runs the simulation to its end and returns what must not have happened.
func (s *Simulation) Run(store Store) []string {
	s.store = store
	r := s.Draw("crew")
	done := make(chan struct{})
	var users, others sync.WaitGroup
	others.Go(func() { s.suspend(done) })
	others.Go(func() { s.setBack(done) })
	others.Go(func() { s.damage(done) })
	others.Go(func() {
		select {
		case <-time.After(90 * time.Second):
		case <-done:
		}
		s.healed.Store(true)
	})
	var processes []*process
	for i := range 2 + r.IntN(2) {
		p := &process{sim: s, name: fmt.Sprintf("process %d ", i), cfg: dlock.Config{
			DefaultTTL: 5 * time.Second, EnableReentrant: r.IntN(2) == 0, LocalBatch: r.IntN(2) * r.IntN(10),
		}}
		if !s.Fences {
			p.cfg.LocalBatch = 0
		}
		if s.handoffs {
			p.cfg.LocalBatch = 10
		}
		s.batches = s.batches || p.cfg.LocalBatch > 0
		if err := p.restart(); err != nil {
			panic(err)
		}
		processes = append(processes, p)
		for j := range 1 + r.IntN(3) {
			u := s.user(p, fmt.Sprintf("user %d.%d", i, j))
			users.Go(func() {
				defer s.caught(u.Name)
				u.Run(context.Background(), 4+u.Rand.IntN(8))
			})
		}
	}
	ended := make(chan struct{})
	go func() { users.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(maxDuration):
		s.mu.Lock()
		s.failf("stuck", "a call still waits after %v", maxDuration)
		s.mu.Unlock()
	}
	close(done)
	others.Wait()
	for _, p := range processes {
		_ = s.shut(p.get())
	}
	users.Wait()
	s.sent.Wait()
	s.checkCounts()
	s.end()
	return s.failures
}

const plainKey, mixedKey = "plain", "mixed"

// Keys are what users lock.
func Keys() []string { return []string{plainKey, mixedKey} }

func (s *Simulation) user(p *process, name string) *User {
	u := &User{
		Name: name, Rand: s.Draw(name), Config: p.cfg, Modes: s.Modes, Client: p.get, Restart: p.restart, Observer: s,
		Extra: s.Draw(name, "extra"), Wrong: s.wrong, Extended: s.extended, Ended: s.ends, UnlocksForOther: s.unlocksForOther,
		Eager: s.network.repeats == 0, Steady: s.network.repeats > 0, // a call that arrives once more, late, may cut what was extended since
		Handoffs: s.handoffs, Async: s.Async,
		Brief: s.brief, Least: s.Draw(name, "least"),
		Evict: func(key string) { s.evict(name, key) },
		Key: func(mixed bool) string {
			if mixed {
				return mixedKey
			}
			return plainKey
		},
	}
	if s.Rest {
		u.Rest, u.Holder, u.Left, u.ExtendedAgain = s.Draw(name, "rest"), s.toldHolder, s.left, s.extendedAgain
	}
	if s.Several {
		u.Several, u.Withdraws = s.Draw(name, "several"), s.withdraws
	}
	return u
}

// damage harms the store a few times, in some of the runs in which anything fails.
func (s *Simulation) damage(done <-chan struct{}) {
	store, ok := s.store.(fragile)
	r := s.Draw("damage")
	if !ok || s.calm || s.clean || r.IntN(3) > 0 {
		return
	}
	for range 2 + r.IntN(6) {
		select {
		case <-time.After(time.Duration(r.Int64N(int64(12 * time.Second)))):
		case <-done:
			return
		}
		store.Damage(r)
	}
}

// suspend puts the machine of all Clients to sleep as planned. The store does not sleep.
func (s *Simulation) suspend(done <-chan struct{}) {
	sort.Slice(s.sleeps, func(i, j int) bool { return s.sleeps[i].at < s.sleeps[j].at })
	for _, one := range s.sleeps {
		select {
		case <-time.After(one.at - s.Now()):
		case <-done:
			return
		}
		s.mu.Lock()
		s.lastWake = time.Now()
		s.logf("the machine sleeps for %v", one.long)
		s.mu.Unlock()
		s.store.Advance(one.long)
		s.slept.Add(int64(one.long))
	}
}

// maxSetBack is how far the store's clock is set back in all.
const maxSetBack = 30 * time.Second

// setBack sets the store's clock back now and then. Leases then last longer, which breaks no
// promise.
func (s *Simulation) setBack(done <-chan struct{}) {
	r := s.Draw("clock")
	if !s.SetBack || s.calm || s.clean || r.IntN(3) > 0 {
		return
	}
	for range 3 {
		select {
		case <-time.After(time.Duration(r.Int64N(int64(30 * time.Second)))):
		case <-done:
			return
		}
		back := time.Duration(r.Int64N(int64(maxSetBack / 3)))
		s.mu.Lock()
		s.logf("the store's clock is set back by %v", back)
		s.mu.Unlock()
		s.store.Advance(-back)
	}
}

// open returns a Client of a process.
func (s *Simulation) open(name string, cfg dlock.Config) (*dlock.Client, error) {
	return dlock.New(&cfg, append(s.observers(name), dlock.WithBackend(observed{s, s.store.Backend(name)}))...)
}

// logf keeps a line of the story. It runs under mu.
func (s *Simulation) logf(format string, args ...any) {
	s.story = append(s.story, fmt.Sprintf("%10.4fs ", s.Now().Seconds())+fmt.Sprintf(format, args...))
}

// Tracef keeps a line that only matters in a replay.
func (s *Simulation) Tracef(format string, args ...any) {
	if !s.Verbose {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logf(format, args...)
}

// failf keeps something that must not happen. It runs under mu.
func (s *Simulation) failf(kind, format string, args ...any) {
	s.logf("BUG "+kind+": "+format, args...)
	s.failures = append(s.failures, kind+": "+fmt.Sprintf(format, args...))
}

// Report is what went wrong, and the end of the story, or all of it if it is verbose.
func (s *Simulation) Report() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.story
	if !s.Verbose {
		lines = lines[max(0, len(lines)-60):]
	}
	return fmt.Sprintf("seed %d: %s\n%s", s.Seed, strings.Join(s.failures, "; "), strings.Join(lines, "\n"))
}

// pause waits in virtual time.
func pause(d time.Duration) { <-time.After(d) }
