// Package schedule decides which faults strike when: a pure function of a seed, a
// topology and a mode.
package schedule

import (
	"fmt"
	"time"
)

// A Kind is a way to disturb servers, the network or workers.
type Kind string

// The network, where clients go through a proxy.
const (
	Delay       Kind = "delay"        // everything takes Param longer each way
	Cut         Kind = "cut"          // connections are closed, several times
	BlackHole   Kind = "black-hole"   // nothing passes
	ReplyHole   Kind = "reply-hole"   // requests pass, replies do not
	DropReplies Kind = "drop-replies" // single requests are carried out, and the connection closed
	LateCalls   Kind = "late-calls"   // single requests arrive after others that were sent later
	LagHole     Kind = "lag-hole"     // replies come Param late for a while, then nothing passes
	Mute        Kind = "mute"         // published messages are dropped
)

// Servers.
const (
	ServerPause   Kind = "server-pause"   // SIGSTOP
	ServerRestart Kind = "server-restart" // SIGKILL, and back with its data
	ServerEmpty   Kind = "server-empty"   // SIGKILL, and back without data
	LeaderKill    Kind = "leader-kill"    // SIGKILL of etcd's leader, and back with its data
	LeaderPause   Kind = "leader-pause"   // SIGSTOP of etcd's leader
	Failover      Kind = "failover"       // SIGKILL of a Redis master until a replica took over
	// PlannedFailover has a replica take over from a master that waits until the replica has
	// everything: CLUSTER FAILOVER, FAILOVER TO.
	PlannedFailover Kind = "planned-failover"
	// ForcedFailover has sentinels replace a master that works on until it is told:
	// SENTINEL FAILOVER.
	ForcedFailover Kind = "forced-failover"
	// OwnFailover is one that no schedule has planned: the servers took a busy master for dead, or one from which they had been cut
	// off, and replaced it.
	OwnFailover   Kind = "own-failover"
	MasterStall   Kind = "master-stall" // SIGSTOP of one of several masters, for longer than a lease
	FarMaster     Kind = "far-master"   // one of several masters is Param further away
	ClientKill    Kind = "client-kill"  // the server closes all connections
	ScriptFlush   Kind = "script-flush"
	Compact       Kind = "compact"
	SlotMigration Kind = "slot-migration"
	LeaseRevoke   Kind = "lease-revoke" // of a holder's lease
	KeyDelete     Kind = "key-delete"   // of a holder's lock
	// SiblingDelete is the deletion, as by an eviction, of one of the keys next to
	// a lock: its queue, its waiters or its last token.
	SiblingDelete Kind = "sibling-delete"
	// ClockBack makes what is stored look as if the clock had been set back by an hour
	// since: deadlines and arrivals lie that far ahead.
	ClockBack Kind = "clock-back"
)

// Workers.
const (
	WorkerKill  Kind = "worker-kill"  // SIGKILL, and another takes its place
	WorkerPause Kind = "worker-pause" // SIGSTOP for less than the lease
	WorkerSleep Kind = "worker-sleep" // SIGSTOP for longer than the lease
)

// Both at once.
const (
	Beheading Kind = "beheading" // SIGKILL of etcd's leader and of a worker
)

// A Fault strikes at At after the start of a trial and is healed For later.
type Fault struct {
	At     time.Duration `json:"at"`
	For    time.Duration `json:"for"`
	Kind   Kind          `json:"kind"`
	Target int           `json:"target"` // which server, worker or key, modulo their number
	Param  time.Duration `json:"param,omitempty"`
}

func (f Fault) String() string {
	s := fmt.Sprintf("%7.3fs %-16s for %5.3fs at %d", f.At.Seconds(), f.Kind, f.For.Seconds(), f.Target)
	if f.Param > 0 {
		s += fmt.Sprintf(" (%v)", f.Param)
	}
	return s
}

// OnWorkers says whether the fault strikes a worker and not a server.
func (k Kind) OnWorkers() bool { return k == WorkerKill || k == WorkerPause || k == WorkerSleep }

// Kills says whether the fault ends a worker.
func (k Kind) Kills() bool { return k == WorkerKill || k == Beheading }

// OfOneMaster says whether the fault strikes one of several masters, and the others must go
// on as before.
func (k Kind) OfOneMaster() bool { return k == MasterStall || k == FarMaster }

// ReplacesMaster says whether a replica becomes a master.
func (k Kind) ReplacesMaster() bool {
	return k == Failover || k == PlannedFailover || k == ForcedFailover || k == OwnFailover
}

// Unnoticed says whether waiters are served in time while the fault lasts.
func (k Kind) Unnoticed() bool {
	switch k {
	case ScriptFlush, Compact, Mute, SiblingDelete, ClockBack, FarMaster:
		return true
	default:
		return false
	}
}

// RestartsLeases says whether leases of etcd may begin anew: another member leads, or the one
// that did is back.
func (k Kind) RestartsLeases() bool {
	switch k {
	case ServerPause, ServerRestart, LeaderKill, LeaderPause, Beheading:
		return true
	default:
		return false
	}
}

// Node is the one server that a fault strikes, of several that know nothing of each other.
func (f Fault) Node(servers int) (node int, one bool) {
	switch f.Kind {
	case ServerPause, ServerRestart, ServerEmpty, SiblingDelete:
		return f.Target % servers, true
	case Delay, Cut, BlackHole, ReplyHole, LagHole, DropReplies, LateCalls, Mute:
		return f.Target % (servers + 1), !StrikesAll(f.Target, servers)
	default:
		return 0, false
	}
}

// Harmless says whether a fault may never cost a holder its lock.
func (f Fault) Harmless(ttl time.Duration) bool {
	switch f.Kind {
	case ScriptFlush, Compact, Mute, ClientKill, Cut, DropReplies, SlotMigration, WorkerKill, SiblingDelete, ClockBack, FarMaster:
		return true
	case Delay, WorkerPause, ServerPause:
		return f.For <= ttl/2
	default:
		return false
	}
}

// StrikesAll says whether a fault of the network is one of all of several servers. It is one
// of a single server otherwise, which is the target modulo their number plus one.
func StrikesAll(target, servers int) bool { return servers == 1 || target%(servers+1) == servers }
