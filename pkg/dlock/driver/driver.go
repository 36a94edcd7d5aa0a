// Package driver is the seam between the lock engine of package dlock and the
// backends that store claims. It imports the standard library only.
//
// A claim is one caller's wish for one key. It is queued, then held, then
// gone, and never goes backwards. Waiting and holding are renewed through the
// same call, cancelling and unlocking are the same call, and every call may be
// repeated with the same claim ID without harm.
//
// A claim has one deadline, which only its own Acquire and Renew move:
// Heartbeat(TTL) from then while it is queued, TTL while it is held. A grant
// does not move the deadline: whoever grants gives the key for what is left of
// the waiter's heartbeat. A claim past its deadline is gone, whoever notices.
//
// Package drivertest checks a Driver against everything that is written here.
package driver

import (
	"context"
	"log/slog"
	"time"
)

// An Opener makes a Driver for one dlock.Client, which closes it. Open does no
// I/O: bad credentials or settings surface at the first call or at Check.
// An Opener may be opened several times; its Drivers share one store.
type Opener interface {
	Open(Options) (Driver, error)
}

// Options are what a Client tells the driver that it opens.
type Options struct {
	// Prefix stands before every key in the store.
	Prefix string
	// Logger is never nil. A Driver never logs a claim ID.
	Logger *slog.Logger
}

// A Driver stores claims. All methods may be called concurrently.
//
// No method waits for a key to come free: Acquire answers at once, and a later
// change is pushed through Events. A method returns early when its ctx ends;
// its outcome is then unknown, and the caller settles it with Release, which
// is idempotent. What any other error says of the outcome, Classify records;
// an error without a Class leaves the outcome unknown. Why a call failed,
// ErrUnavailable, ErrDenied and ErrNotReady say alike for all backends, wrapped
// around the error of the backend's client.
type Driver interface {
	Caps() Caps

	// Acquire files a claim. The answer is Held, or Queued if r.Wait, or Gone
	// with nothing stored: the key was taken and the caller would not wait, or
	// the ID is barred. Filing an ID that is stored returns its state and
	// restarts its deadline; its place and its token stay.
	//
	// A mode or a range of fences that Caps does not name is ErrUnsupported. Acquire
	// and Release alone may return ErrHasty; see there.
	Acquire(ctx context.Context, r Request) (State, error)

	// Renew restarts the deadline of every claim, held or queued, with the TTL
	// of its Ref, in as few round trips as the backend allows. It never stores
	// a claim that is not there. On the way it drops dead heads of the queues
	// that it meets and grants to the next.
	//
	// Result i answers refs[i], with Phase Unknown where that part of the
	// backend did not answer. The error is non-nil only if nothing was
	// answered. The caller does not change refs until Renew has returned.
	Renew(ctx context.Context, refs []Ref) ([]State, error)

	// Release removes a claim in any phase and, in the same atomic step,
	// grants the key to the next claims that fit. It returns the phase that it
	// found; Gone means that the claim was not there.
	//
	// If r.Unsettled, some attempt to file the claim was never answered and
	// may still arrive: Release also bars the ID for at least
	// BarFor(r.TTL), so that a late Acquire of it finds Gone.
	Release(ctx context.Context, r Ref) (State, error)

	// Events delivers changes of this Driver's own claims, best effort: an
	// event may be late, lost or repeated. State.Until of an event is unused,
	// since a grant moves no deadline. Phase Unknown asks that the claim be
	// renewed, an Event without ID that everything be: others may have been
	// lost. Close closes the channel.
	Events() <-chan Event

	// Close ends the Driver's own goroutines and waits for them. It releases
	// no claim, and the backend's client stays open. No other method is called
	// after Close or runs during it. A second Close does nothing.
	Close() error
}

// An Admin is a Driver that can show the claims of everybody and evict them.
type Admin interface {
	// List returns up to limit keys that start with prefix and have a claim,
	// from where cursor left off ("" at the start; next is "" at the end).
	// A key that has a claim throughout is listed at least once.
	List(ctx context.Context, prefix, cursor string, limit int) (keys []string, next string, err error)

	// Inspect returns the claims on key: the holders, then the queue in the
	// order in which it will be granted. A free key has none.
	Inspect(ctx context.Context, key string) ([]Claim, error)

	// Evict removes the claim of key that has this ID and this token (0 for a
	// queued one) and grants the key to the next, as Release does. It returns
	// the phase that it found; Gone means that there was no such claim and
	// nothing was changed.
	Evict(ctx context.Context, key, id string, token int64) (State, error)
}

// A Looker is a Driver that can tell who is in the way without reading a whole queue, for
// the error of a caller that did not get the key.
type Looker interface {
	// Look returns a claim that holds key, the zero Claim if none does, and how many wait,
	// not counting the one with the ID except; a hint.
	Look(ctx context.Context, key, except string) (holder Claim, waiting int, err error)
}

// A Checker is a Driver that can judge the settings of its server for use
// with locks. It returns an error only if it could not look.
type Checker interface {
	Check(ctx context.Context) ([]Finding, error)
}

// A Ref names a claim.
type Ref struct {
	Key string
	// ID is 32 hexadecimal digits of randomness, chosen before the first
	// attempt and the same in every retry. Whoever knows it can release the
	// claim, so it appears in no log, error, metric or trace.
	ID  string
	TTL time.Duration
	// Unsettled asks Release to bar the ID; see there.
	Unsettled bool
}

// A Request describes a claim that is to be filed.
type Request struct {
	Ref
	Mode Mode
	// Limit is the number of permits of a Permit claim, and 0 otherwise.
	Limit int
	// Wait queues the claim if it cannot be granted at once.
	Wait bool
	// Fixed says that the claim is not to be renewed once it is held, but for
	// its grant: a backend that renews claims together keeps it apart.
	Fixed bool
	// Fences is how many consecutive tokens the grant reserves, the first of
	// which is State.Token; 0 counts as 1. More needs Caps.FenceRange.
	Fences int
	Info   Info
}

// A State is what a backend knows of one claim.
type State struct {
	Phase Phase
	// Token is the fencing token of a Held claim: greater than that of every
	// earlier grant of the key. 0 without Caps.Fencing.
	Token int64
	// Ahead is how many claims stand before a Queued one, the holders
	// included; a hint.
	Ahead int
	// Until is when the claim's deadline passes at the earliest, on the local
	// monotonic clock: the time just before the call was sent, plus TTL (Held)
	// or Heartbeat(TTL) (Queued). Zero if the backend has no lease.
	Until time.Time
	// Recheck, if positive, asks that a Queued claim be renewed after this
	// time: a key may then have come free without an event.
	Recheck time.Duration
}

// An Event is a State that a backend pushes.
type Event struct {
	Key, ID string
	State   State
}

// Caps states what a backend can do.
type Caps struct {
	// Name is the backend's name in configuration: "redis", "etcd", "redlock",
	// "file", "memory".
	Name string
	// Lease: a silent claim is gone after its deadline. Without it a silent
	// holder keeps the key until its process ends.
	Lease bool
	// Remote: calls cross a network. The engine bounds each of them in time
	// and judges whether this machine slept while a lease ran.
	Remote bool
	// Fencing: Held carries a token. FenceRange: Request.Fences may exceed 1.
	Fencing, FenceRange bool
	// FIFO: claims are granted in the order in which they were filed.
	FIFO bool
	// Push: Events tells of grants.
	Push bool
	// Modes are the modes that Acquire takes.
	Modes []Mode
	// MinTTL is the shortest TTL that the backend can keep.
	MinTTL time.Duration
}

// Supports reports whether the backend takes claims of mode m.
func (c Caps) Supports(m Mode) bool {
	for _, have := range c.Modes {
		if have == m {
			return true
		}
	}
	return false
}

// Uncancelled is a context that ends at its deadline, and sooner only if the
// Client closes. A Driver whose client heeds deadlines and not cancellation may
// make a call under it without watching Done.
type Uncancelled struct {
	context.Context
	// Values is where Value looks first.
	Values context.Context
}

// Value looks in both contexts.
func (u Uncancelled) Value(key any) any {
	if v := u.Values.Value(key); v != nil {
		return v
	}
	return u.Context.Value(key)
}

// Heartbeat is how long a queued claim lives without renewal.
func Heartbeat(ttl time.Duration) time.Duration { return min(ttl, 3*time.Second) }

// BarFor is how long a barred ID stays barred at least.
func BarFor(ttl time.Duration) time.Duration { return max(ttl, time.Minute) }
