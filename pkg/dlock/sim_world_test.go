package dlock_test

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
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A world is one run of the simulator: Clients that reach one store through a bad network,
// users that call everything the library offers, and an account of what they were told.
type world struct {
	seed    uint64
	begin   time.Time
	store   *memlock.Store
	weather weather
	calm    bool     // nothing fails
	local   bool     // the backend is said to be on this host
	verbose bool     // tell every message
	cuts    []cut    // when a link carries nothing
	sleeps  []asleep // when the machine is suspended
	healed  atomic.Bool
	slept   atomic.Int64
	mail    sync.WaitGroup

	mu        sync.Mutex
	links     int
	holds     map[string][]*hold  // by key
	grants    map[string]grant    // by claim ID
	last      map[string]int64    // by key: the greatest token that was granted
	lastAlone map[string]int64    // and that of an exclusive lock
	taken     map[string][]sample // by key: what the store had
	lastWake  time.Time
	evicted   map[int64]bool
	bugs      []string
	story     []string
}

type cut struct {
	link     string
	from, to time.Duration
}

type asleep struct{ at, long time.Duration }

// A hold is what a user was told it has.
type hold struct {
	user, client, key string
	mode              driver.Mode
	limit             int
	token             int64
	ctx               context.Context
	inside            *hold // the lock that it is part of
	over              bool  // its user has said so
}

// A grant is what the store has given to a claim.
type grant struct {
	key   string
	token int64
}

// A sample is which claims the store had at a time.
type sample struct {
	at   time.Duration
	left []stored
}

type stored struct {
	purpose string
	until   time.Duration
}

func newWorld(seed uint64) *world {
	w := &world{
		seed: seed, begin: time.Now(), store: memlock.New(), holds: map[string][]*hold{}, grants: map[string]grant{},
		last: map[string]int64{}, lastAlone: map[string]int64{}, taken: map[string][]sample{}, evicted: map[int64]bool{},
	}
	r := w.draw("weather")
	w.calm = r.IntN(5) == 0
	w.local = w.calm && r.IntN(2) == 0
	w.weather = weather{delay: time.Duration(1+r.IntN(50)) * time.Millisecond, late: time.Duration(1+r.IntN(20)) * time.Second}
	if w.calm {
		return w
	}
	w.weather.loss, w.weather.repeats, w.weather.slow = 10*r.Float64(), 5*r.Float64(), 10*r.Float64()
	for range r.IntN(4) {
		from := time.Duration(r.Int64N(int64(time.Minute)))
		w.cuts = append(w.cuts, cut{fmt.Sprintf("link %d", 1+r.IntN(3)), from, from + time.Duration(r.Int64N(int64(15*time.Second)))})
	}
	if r.IntN(4) == 0 {
		for range 1 + r.IntN(3) {
			w.sleeps = append(w.sleeps, asleep{time.Duration(r.Int64N(int64(time.Minute))), time.Duration(r.Int64N(int64(20 * time.Second)))})
		}
	}
	return w
}

// draw is a source of randomness for one thing of a world, whatever was drawn before.
func (w *world) draw(what ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, what...)
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

func (w *world) now() time.Duration { return time.Since(w.begin) }

func (w *world) nextLink() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links++
	return fmt.Sprintf("link %d", w.links)
}

func (w *world) cutOff(link string) bool {
	now := w.now()
	for _, c := range w.cuts {
		if c.link == link && c.from <= now && now < c.to {
			return true
		}
	}
	return false
}

// suspend puts the machine of all Clients to sleep as planned. The store does not sleep.
func (w *world) suspend(done <-chan struct{}) {
	sort.Slice(w.sleeps, func(i, j int) bool { return w.sleeps[i].at < w.sleeps[j].at })
	for _, s := range w.sleeps {
		select {
		case <-time.After(s.at - w.now()):
		case <-done:
			return
		}
		w.mu.Lock()
		w.lastWake = time.Now()
		w.tell("the machine sleeps for %v", s.long)
		w.mu.Unlock()
		w.store.Advance(s.long)
		w.slept.Add(int64(s.long))
	}
}

// open returns a Client of this world.
func (w *world) open(name string, cfg dlock.Config) (*dlock.Client, error) {
	slept := func() time.Duration { return time.Duration(w.slept.Load()) }
	var n atomic.Int64
	random := func(below time.Duration) time.Duration {
		return time.Duration(w.draw("pauses of ", name, n.Add(1)).Int64N(int64(below)))
	}
	return dlock.New(&cfg, dlock.WithBackend(w), dlock.WithSleptClock(slept), dlock.WithRandom(random))
}

// tell keeps a line of the story. It runs under mu.
func (w *world) tell(format string, args ...any) {
	w.story = append(w.story, fmt.Sprintf("%10.4fs ", w.now().Seconds())+fmt.Sprintf(format, args...))
}

// note is tell for what only matters to whoever replays a seed.
func (w *world) note(format string, args ...any) {
	if !w.verbose {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tell(format, args...)
}

// bug keeps something that must not happen. It runs under mu.
func (w *world) bug(kind, format string, args ...any) {
	w.tell("BUG "+kind+": "+format, args...)
	w.bugs = append(w.bugs, kind+": "+fmt.Sprintf(format, args...))
}

func (w *world) report() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.story
	if !w.verbose {
		lines = lines[max(0, len(lines)-60):]
	}
	return fmt.Sprintf("seed %d: %s\n%s", w.seed, strings.Join(w.bugs, "; "), strings.Join(lines, "\n"))
}
