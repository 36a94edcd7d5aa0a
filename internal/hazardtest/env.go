// Package hazardtest is what can go wrong with a distributed lock, as scenarios that every
// backend runs on real servers. A scenario is code once; a backend brings its servers and
// their faults as an Env.
//
// Each scenario is an exported function. A backend calls it from a test of the same name, so
// that `go test -run TestLostReplyLeavesNoGhost ./pkg/dlock/...` runs it on every backend that
// makes the promise.
package hazardtest

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// An Op is a kind of call that a backend makes to its servers.
type Op int

// Acquire stores a claim, Renew moves its deadline, Release removes it.
const (
	Acquire Op = iota
	Renew
	Release
)

// Open starts an Env for a test, whose end takes it away.
type Open func(testing.TB) Env

// An Env is fresh servers of one backend for one scenario, each behind a fault proxy. Faults
// meet what goes through the proxies, and nothing else. Where there are several servers, a
// fault meets as many of them as it takes to be felt: a majority, or all.
type Env interface {
	Traits() Traits
	// Endpoints are the servers themselves, for a process of its own.
	Endpoints() []string

	// Proxied is the backend through the proxies, with connections of its own, which the end
	// of the test closes.
	Proxied(tb testing.TB) driver.Opener
	// Direct is the backend past the proxies, the same otherwise.
	Direct(tb testing.TB) driver.Opener

	// Claims are what the servers store of a lock, the holder first and then the waiters in
	// their order, read past the proxies.
	Claims(tb testing.TB, key string) []Claim
	// Leftovers is everything that is stored for claims. Tombstones and last tokens may stay.
	Leftovers(tb testing.TB) []string
	// Grants watches the grants of a lock. The returned function says what is wrong unless the
	// lock has been granted exactly once since then, with this token.
	Grants(tb testing.TB, key string) func(token int64) error
	// Carried counts the calls of a kind that the servers have carried out since then,
	// whichever client they came from; with several servers, on the one that has the fewest. A
	// backend that cannot tell the kinds of writes apart counts all of them.
	Carried(tb testing.TB, op Op) func() int

	// Lose has the next n calls of a kind carried out, and their replies lost with the
	// connection. Faults of one kind take effect one after the other, as each is used up.
	Lose(op Op, n int) *Hits
	// Hold keeps the next n calls of a kind from the servers until release or Heal is called.
	// They arrive then, even if their client has hung up.
	Hold(op Op, n int) (held *Hits, release func())
	// DropPushes drops everything that the servers push. It is called before the
	// first client connects.
	DropPushes()
	// PushesDropped asserts that clients subscribed, and that nothing came.
	PushesDropped(tb testing.TB)
	// StallSubscriptions leaves the subscription of a waiter unanswered. The
	// returned function reports whether one has.
	StallSubscriptions() (asked func() bool)
	// Subscriptions is how many of them the servers keep, or the connections that carry them.
	Subscriptions(tb testing.TB) int
	// Requests is how many requests for locks all servers together have received, from all clients.
	Requests(tb testing.TB) int
	// Renewed is when the last call left, through the proxies, that the lease of a held lock
	// counts from, and whether none is under way.
	Renewed(tb testing.TB, key string) (sent time.Time, quiet bool)
	// Delay holds back everything for this long in each direction.
	Delay(up, down time.Duration)
	// BlackHole lets nothing pass, not even the end of a connection.
	BlackHole(on bool)
	// Refuse closes new connections at once.
	Refuse(on bool)
	// Cut closes all connections. What was on the way is lost.
	Cut()
	// Heal ends all faults but DropPushes.
	Heal()
	// Pause stops the servers for some time, in which they must not answer.
	Pause(tb testing.TB, d time.Duration)

	// Expire ends the lease of a lock without notifying its holder. The claim must not share
	// its lease.
	Expire(tb testing.TB, key string)
	// Delete removes the stored holder of a lock in the same way.
	Delete(tb testing.TB, key string)

	// Owned is a value that the servers let be written only while a lock is held with this
	// token. It is called while the lock is held, and is nil for a backend without such a check.
	Owned(tb testing.TB, key string, token int64) *OwnedValue
}

// An OwnedValue is one value next to a lock, whoever holds the lock.
type OwnedValue struct {
	// Write reports whether the servers took the value.
	Write func(value string) bool
	Read  func() string
}

// Traits are what scenarios must know of a backend.
type Traits struct {
	// ShortTTL is a short lease that can be acquired on a slow machine, too.
	ShortTTL time.Duration
	// Slow: a write costs so much that scenarios run fewer rounds.
	Slow bool
	// Servers is how many there are.
	Servers int
	// WaiterTTL is a short lease that is kept on a slow machine, too, DeadTTL that of processes
	// that die or are paused, and DeadWaiters how long ten dead waiters may hold up the next.
	WaiterTTL, DeadTTL, DeadWaiters time.Duration
	// Forgotten is how long after its longest hold a lock may stay that has a lease of WaiterTTL.
	Forgotten time.Duration
	// Unpushed is how long a handoff may take without a push.
	Unpushed time.Duration
	// InOrder: waiters are served in the order of their arrival.
	InOrder bool
	// IdleCPU is how much of a CPU 200 waiters may use.
	IdleCPU float64
	// Watches is how many Subscriptions there are when a Client that holds one lock waits for
	// another one, which a second Client holds.
	Watches int
	// HolderWatches is how many Subscriptions a holder has.
	HolderWatches int
	// EarlyLoss is how much sooner than a twentieth of its lease before the end a holder may
	// give up a lease of six seconds.
	EarlyLoss time.Duration
	// Healed is how soon after the end of a fault nothing may be left of it.
	Healed time.Duration
	// HandOver is how soon a waiter must have a lock that was released.
	HandOver time.Duration
	// Close is how long Close may take.
	Close time.Duration
}

// A Claim is what servers store of a claim.
type Claim struct {
	ID    string
	Token int64 // of a waiter 0, unless it has one already
	// Text is all that is stored, to be compared.
	Text    string
	Purpose string
	// Since is when it was stored, in the words of the backend.
	Since string
	// The lease ends between Sooner and Later: we do not know when exactly the server looked.
	Sooner, Later time.Time
}

func (c Claim) String() string { return c.Text }

// movedSince is by how much the end of the lease has moved at least.
func (c Claim) movedSince(before Claim) time.Duration {
	switch {
	case c.Sooner.After(before.Later):
		return c.Sooner.Sub(before.Later)
	case c.Later.Before(before.Sooner):
		return c.Later.Sub(before.Sooner)
	}
	return 0
}
