package schedule

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// A Mode is what a trial may do to a lock.
type Mode string

// Inside the assumptions there are no overlaps of critical sections. Beyond them
// there may be, where the documentation says so; the fence stops what comes late.
// Kills is Inside with nothing but the SIGKILL of workers, on three members of etcd also
// together with their leader, so far apart that the time to the next holder can be
// measured.
const (
	Inside Mode = "inside"
	Beyond Mode = "beyond"
	Kills  Mode = "kills"
	// Calm has no faults: how soon a lock is handed over when nothing is wrong.
	Calm Mode = "calm"
)

// The topologies.
const (
	Single     = "single"
	Replicated = "replicated"
	Sentinel   = "sentinel"
	Cluster    = "cluster"
	Redlock3   = "redlock-3"
	Redlock5   = "redlock-5"
	Etcd1      = "etcd-1"
	Etcd3      = "etcd-3"
)

// Topologies are all of them.
var Topologies = []string{Single, Replicated, Sentinel, Cluster, Redlock3, Redlock5, Etcd1, Etcd3}

var (
	network = []Kind{Delay, Cut, BlackHole, ReplyHole, LagHole}
	workers = []Kind{WorkerKill, WorkerPause}
	asleep  = []Kind{WorkerKill, WorkerSleep, WorkerSleep}
	stored  = []Kind{SiblingDelete, ClockBack} // what a script must put right
)

// decks are the kinds of faults of each topology. Failovers that lose what was
// acknowledged, and lost data, are beyond the assumptions of Redis; the loss of a leader is
// not beyond etcd's.
var decks = map[string]map[Mode][]Kind{
	Single: {
		Inside: deck(network, workers, []Kind{DropReplies, LateCalls, Mute, ServerPause, ServerRestart, ClientKill, ScriptFlush, WorkerKill}, stored),
		Beyond: deck(asleep, []Kind{ServerEmpty, ServerEmpty, KeyDelete, KeyDelete, BlackHole, ServerPause}),
	},
	Replicated: {
		Inside: deck(workers, []Kind{PlannedFailover, PlannedFailover, PlannedFailover, Cut, DropReplies, BlackHole, ServerPause, ClientKill}, stored),
		Beyond: deck(asleep, []Kind{Failover, Failover, PlannedFailover, KeyDelete}),
	},
	Sentinel: {
		Inside: deck(workers, []Kind{ServerPause, ClientKill, ScriptFlush, WorkerKill}, stored),
		Beyond: deck(asleep, []Kind{Failover, ForcedFailover, ForcedFailover, KeyDelete, ClientKill}),
	},
	Cluster: {
		Inside: deck(workers, []Kind{ServerPause, ClientKill, ScriptFlush, SlotMigration, SlotMigration, WorkerKill, PlannedFailover, PlannedFailover, MasterStall, FarMaster}, stored),
		Beyond: deck(asleep, []Kind{Failover, Failover, KeyDelete, SlotMigration}),
	},
	Redlock3: redlockDeck, Redlock5: redlockDeck,
	Etcd1: {
		Inside: deck(network, workers, []Kind{DropReplies, LateCalls, ServerPause, ServerRestart, Compact, WorkerKill}),
		Beyond: deck(asleep, []Kind{LeaseRevoke, LeaseRevoke, KeyDelete, BlackHole}),
	},
	Etcd3: {
		Inside: deck(network, workers, []Kind{DropReplies, LateCalls, LeaderKill, LeaderPause, ServerRestart, Compact, WorkerKill}),
		Beyond: deck(asleep, []Kind{LeaseRevoke, KeyDelete, LeaderKill}),
	},
}

var redlockDeck = map[Mode][]Kind{
	Inside: deck(network, workers, []Kind{DropReplies, LateCalls, ServerPause, ServerRestart, ScriptFlush, WorkerKill, SiblingDelete}),
	Beyond: deck(asleep, []Kind{ServerEmpty, ServerEmpty, KeyDelete}),
}

func deck(parts ...[]Kind) (all []Kind) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// TTL is the lease of most locks on a topology.
func TTL(topology string) time.Duration {
	if topology == Etcd1 || topology == Etcd3 {
		return 5 * time.Second
	}
	return 2 * time.Second
}

// tail is how long a trial runs on after its last fault.
const tail = 1500 * time.Millisecond

// Plan deals faults one after the other until the length is used up: never two at a
// time, so that inside the assumptions two harmless ones do not add up to harm. All
// kinds are dealt before any comes again.
func Plan(seed uint64, topology string, mode Mode, length time.Duration) ([]Fault, error) {
	kinds := decks[topology][mode]
	if mode == Kills && decks[topology] != nil {
		kinds = []Kind{WorkerKill}
		if topology == Etcd3 {
			kinds = []Kind{WorkerKill, Beheading}
		}
	}
	if mode == Calm && decks[topology] != nil {
		return nil, nil
	}
	if len(kinds) == 0 {
		return nil, fmt.Errorf("there is no topology %q in mode %q", topology, mode)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(topology + "/" + string(mode)))
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	var plan []Fault
	var left []Kind
	for at := between(r, time.Second, 1500*time.Millisecond); ; {
		if len(left) == 0 {
			left = append(left, kinds...)
			r.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		}
		f := draw(r, left[0], TTL(topology), at)
		if f.At+f.For > length-tail {
			return plan, nil
		}
		plan, left = append(plan, f), left[1:]
		at = f.At + f.For + pause(r, f, TTL(topology))
		if mode == Kills { // until the lease of the dead has ended, and some time to hold again
			at = f.At + f.For + TTL(topology)*5/4 + between(r, 300*time.Millisecond, 600*time.Millisecond)
		}
		if f.Kind == Beheading { // a new leader begins leases anew
			at += TTL(topology) + 2*time.Second
		}
	}
}

// pause is the time from one fault to the next. After what may have left a holder
// with little of its lease, it is time enough for a renewal.
func pause(r *rand.Rand, f Fault, ttl time.Duration) time.Duration {
	if f.Kind == ScriptFlush || f.Kind == Mute || f.Kind == Cut {
		return between(r, 100*time.Millisecond, 400*time.Millisecond)
	}
	if f.Kind == ClockBack { // and for a look at what is stored a second later
		return between(r, 1300*time.Millisecond, 1600*time.Millisecond)
	}
	return between(r, ttl/2, ttl/2+600*time.Millisecond)
}

// draw chooses how long a fault lasts.
func draw(r *rand.Rand, kind Kind, ttl time.Duration, at time.Duration) Fault {
	f := Fault{At: at, Kind: kind, Target: r.IntN(1 << 16)}
	span := func(low, high float64) time.Duration {
		return between(r, time.Duration(low*float64(ttl)), time.Duration(high*float64(ttl)))
	}
	switch kind {
	case Delay:
		f.For, f.Param = span(0.25, 0.5), between(r, 5*time.Millisecond, 100*time.Millisecond)
	case Cut, ClientKill, ScriptFlush, Compact, DropReplies, SiblingDelete:
		f.For = between(r, 300*time.Millisecond, time.Second)
	case LateCalls:
		f.For = between(r, 300*time.Millisecond, 1200*time.Millisecond)
	case Mute:
		f.For = between(r, time.Second, 2*time.Second)
	case BlackHole:
		f.For = span(0.3, 1.5)
	case ReplyHole:
		f.For = span(0.2, 0.8)
	case LagHole:
		f.Param, f.For = span(0.2, 0.25), span(1.9, 2.2)
	case ServerPause, LeaderPause:
		f.For = span(0.1, 0.5)
	case ServerRestart, ServerEmpty, LeaderKill, Beheading:
		f.For = span(0.05, 0.4)
	case MasterStall:
		f.For = span(0.8, 1.5)
	case FarMaster:
		f.For, f.Param = span(0.8, 1.5), 30*time.Millisecond
	case Failover, SlotMigration, PlannedFailover, ForcedFailover:
		f.For = between(r, 1500*time.Millisecond, 2500*time.Millisecond)
	case WorkerPause:
		f.For = span(0.1, 0.35)
	case WorkerSleep:
		f.For = span(1.3, 1.8)
	default: // KeyDelete, LeaseRevoke, ClockBack, WorkerKill: over at once
	}
	return f
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1)).Round(time.Millisecond)
}
