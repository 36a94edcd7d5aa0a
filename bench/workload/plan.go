package workload

import "time"

// A Plan is how long to measure, and how much.
type Plan struct {
	Name     string
	Rounds   int
	Pair     time.Duration // of a round of pairs
	Clients  []int         // at the hot key
	Sections []time.Duration
	Turns    int // that each client should have in a round; fairness is coarse with few
	Shortest time.Duration
	Longest  time.Duration
	Shown    time.Duration // how long a round of the case in documents is at least, so that waits end before it does
	SlowHot  []int         // clients at the hot key of the slow network
	HandOff  time.Duration
	Batch    time.Duration
	Held     []int // locks
	HeldTTL  time.Duration
	Keep     time.Duration // how long they are watched: half of HeldTTL, so that a library that renews at half of it has renewed all
	CrashTTL time.Duration
	Waiters  []int // at one key
	Growth   time.Duration
}

// Full is what figures are published from. It takes twenty minutes.
var Full = Plan{
	Name: "full", Rounds: 9, Pair: 200 * time.Millisecond,
	Clients: []int{2, 8, 64, 256}, Sections: []time.Duration{0, time.Millisecond}, Turns: 9,
	Shortest: 200 * time.Millisecond, Longest: 2500 * time.Millisecond, Shown: 5 * time.Second, SlowHot: []int{8, 64},
	HandOff: 250 * time.Millisecond, Batch: 500 * time.Millisecond,
	Held: []int{10_000, 100_000}, HeldTTL: 30 * time.Second, Keep: 15 * time.Second, CrashTTL: 2 * time.Second,
	Waiters: []int{1, 100, 10_000}, Growth: 300 * time.Millisecond,
}

// Quick is for a look: three rounds say little about spread. It takes three minutes.
var Quick = Plan{
	Name: "quick", Rounds: 3, Pair: 80 * time.Millisecond,
	Clients: []int{2, 64}, Sections: []time.Duration{0, time.Millisecond}, Turns: 7,
	Shortest: 150 * time.Millisecond, Longest: time.Second, SlowHot: []int{8},
	HandOff: 150 * time.Millisecond, Batch: 200 * time.Millisecond,
	Held: []int{10_000}, HeldTTL: 6 * time.Second, Keep: 3 * time.Second, CrashTTL: 2 * time.Second,
	Waiters: []int{1, 100, 1000}, Growth: 150 * time.Millisecond,
}

// Tiny shows that everything works, and measures nothing.
var Tiny = Plan{
	Name: "tiny", Rounds: 1, Pair: 20 * time.Millisecond,
	Clients: []int{2, 4}, Sections: []time.Duration{0, time.Millisecond}, Turns: 2,
	Shortest: 40 * time.Millisecond, Longest: 50 * time.Millisecond, SlowHot: []int{2},
	HandOff: 40 * time.Millisecond, Batch: 40 * time.Millisecond,
	Held: []int{100, 200}, HeldTTL: 3 * time.Second, Keep: 100 * time.Millisecond, CrashTTL: 4 * time.Second,
	Waiters: []int{1, 20}, Growth: 40 * time.Millisecond,
}

// cost is what a turn takes in addition to its section, roughly.
var cost = map[string]time.Duration{
	"redis": 200 * time.Microsecond, "file": 200 * time.Microsecond,
	"redlock": time.Millisecond, "etcd": 1500 * time.Microsecond,
}

// hotFor is how long a round at a hot key is: long enough for the turns, if the plan
// has the time.
func (p *Plan) hotFor(backend string, clients int, section, trip time.Duration) time.Duration {
	turn := section + section/10 + cost[backend] + trip
	d := min(max(turn*time.Duration(clients*p.Turns), p.Shortest), p.Longest)
	if HotCase(clients, section) == ShownCase {
		d = max(d, p.Shown)
	}
	return d
}

// ShownCase is the case of the hot key whose charts documents show.
var ShownCase = HotCase(64, time.Millisecond)
