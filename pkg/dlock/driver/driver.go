// Package driver defines the interface between the lock engine of package dlock and the backends
// that store claims. It imports only the standard library.
//
// A claim is one caller's request for one key. It is queued, then held, then gone, and never moves
// backwards. The same call renews a waiting claim and a held one, the same call cancels a wait and
// unlocks, and every call may be repeated safely with the same claim ID.
//
// A claim has one deadline, and only its own Acquire and Renew move it: to Ref.Heartbeat from the
// call while it is queued, and to TTL from the call while it is held. A grant does not move the
// deadline: the new holder has the key for the rest of its heartbeat. A claim past its deadline is
// gone, no matter which party notices it.
//
// Package drivertest checks a Driver against everything that is written here.
package driver

import (
	"cmp"
	"context"
	"log/slog"
	"time"
)

// An Opener makes a Driver for one dlock.Client, which closes it. Open does no I/O: wrong
// credentials or settings surface at the first call or in Check. An Opener may be opened several
// times; its Drivers share one store.
type Opener interface {
	Open(Options) (Driver, error)
}

// Options are the settings that a Client passes to the Driver it opens.
type Options struct {
	// Prefix precedes every key in the store.
	Prefix string
	// Logger is never nil. A Driver never logs a claim ID.
	Logger *slog.Logger
}

// A Driver stores claims. All methods may be called concurrently.
//
// No method waits for a key to become free: Acquire answers at once, and a later change arrives
// through Events. A method returns early when its ctx ends; its outcome is then unknown, and the
// caller cleans up with Release, which is idempotent. For any other error, the Class set by
// Classify says what the error means for the outcome; an error without a Class leaves the outcome
// unknown. ErrUnavailable, ErrDenied and ErrNotReady give the reason for a failure in the same way
// for all backends; they wrap the error of the backend's client.
type Driver interface {
	Caps() Caps

	// Acquire submits a claim. The answer is Held; or Queued if r.Wait is set; or Gone, and then
	// nothing is stored: either the key was taken and r.Wait is not set, or the ID has a tombstone.
	// Submitting an ID that is already stored returns its state and restarts its deadline; its
	// place in the queue and its token do not change.
	//
	// Acquire returns ErrUnsupported for a mode or a token range that Caps does not include.
	Acquire(ctx context.Context, r Request) (State, error)

	// Renew restarts the deadline of every claim, held or queued, with the TTL of its Ref, in as
	// few round trips as the backend allows. It never stores a claim that does not exist. It also
	// removes expired claims from the heads of the queues that it touches and grants the key to the
	// next claim.
	//
	// Result i answers refs[i]; its Phase is Unknown if that part of the backend did not answer.
	// The error is non-nil only if some claim was not answered, and says why. It has no effect on the
	// claims that were answered; the results may be missing if none was. The caller does not change
	// refs until Renew has returned.
	Renew(ctx context.Context, refs []Ref) ([]State, error)

	// Release removes a claim in any phase and, in the same atomic step, grants the key to the next
	// claims that fit. It returns the phase that it found; Gone means that the claim did not exist.
	//
	// If r.Unanswered is set, some attempt to submit the claim was never answered and may still
	// arrive. Release then also leaves a tombstone for the ID, for at least TombstoneTTL(r.TTL), so
	// that an Acquire of this ID that arrives late returns Gone.
	Release(ctx context.Context, r Ref) (State, error)

	// Events delivers changes to this Driver's own claims on a best-effort basis: an event may be
	// late, lost or repeated. State.Until of an event is unused, because a grant does not move a
	// deadline. An Event with Phase Unknown asks the engine to renew that claim. An Event without
	// an ID asks it to renew every claim, because events may have been lost. Close closes the
	// channel.
	Events() <-chan Event

	// Close ends the Driver's own goroutines and waits for them. It releases no claim, and the
	// backend's client stays open. The caller makes no other call during or after Close. A second
	// Close does nothing.
	Close() error
}

// An Admin is a Driver that can show and evict the claims of every process.
type Admin interface {
	// List returns up to limit keys that start with prefix and have a claim, continuing from cursor
	// ("" at the start; next is "" at the end). A key that has a claim during the whole listing is
	// returned at least once. A cursor that List did not return is an error of class Fatal, which
	// wraps xerrors.ErrInvalidConfig.
	List(ctx context.Context, prefix, cursor string, limit int) (keys []string, next string, err error)

	// Inspect returns the claims on key: the holders first, then the queue in the order in which it
	// will be granted. A free key has no claims.
	Inspect(ctx context.Context, key string) ([]Claim, error)

	// Evict removes the claim on key with this ID and this token (0 for a queued claim) and grants
	// the key to the next claim, as Release does. It returns the phase that it found; Gone means
	// that there was no such claim and nothing was changed. An Acquire whose answer was lost may store
	// the claim again when it is repeated.
	Evict(ctx context.Context, key, id string, token int64) (State, error)
}

// A HolderFinder is a Driver that can report the holder of a key without reading the whole queue. The
// engine uses it for the error that it returns to a caller that did not get the key.
type HolderFinder interface {
	// Look returns one claim that holds key, or the zero Claim if none does, and the number of
	// waiters without the one whose ID is except. Both are hints.
	Look(ctx context.Context, key, except string) (holder Claim, waiting int, err error)
}

// A LateReleaser is a Driver that can send a release together with the next call.
type LateReleaser interface {
	// ReleaseLater is Release, but does not wait for the answer: it calls done with it, once, on any
	// goroutine. done does not block. The request may be delayed for a moment, to be sent with the next
	// call. If the backend can, it carries out an Acquire that begins after ReleaseLater has returned after
	// it. An error may have any class; nothing was retried. A release that is not answered ends with an error after a
	// while, as a Client that closes waits for it.
	ReleaseLater(r Ref, done func(State, error))
	// SendReleases sends the releases that are delayed, because a caller waits for them.
	SendReleases()
}

// A Batcher is a Driver that can acquire or release several locks in one call.
type Batcher interface {
	// CanBatch reports whether the locks of these keys can be acquired and released together. It does no I/O.
	CanBatch(keys []string) bool
	// AcquireBatch submits claims on different keys, for which CanBatch has returned true. They are exclusive, have
	// the same TTL, do not wait, and have no lease and no range of tokens of their own. It submits them in order, until
	// one is not Held: that one and all after it are Gone, and the call stores nothing for them. Unlike Acquire, it
	// may do so although the key is free, if that is not certain at once. In all else it is Acquire for each of them:
	// a claim that is stored is Held, and its deadline restarts. An error is the error of each of them. ErrUnsupported means
	// that these claims can only be submitted alone, as Fixed ones on some backends.
	AcquireBatch(ctx context.Context, rs []Request) ([]State, error)
	// ReleaseBatch is Release for each of the claims, for which CanBatch has returned true. A claim whose Phase is
	// Unknown in the answer was left as it is, and must be released alone. An error is the error of each of them.
	ReleaseBatch(ctx context.Context, refs []Ref) ([]State, error)
}

// A Leaser is a Driver whose leases other data can be attached to.
type Leaser interface {
	// LeaseID returns the lease of a claim that was submitted with OwnLease, and false for any other. It
	// stays the same, and ends soon after the claim.
	LeaseID(r Ref) (id int64, ok bool)
}

// A Leaver is a Driver that keeps something for each claim.
type Leaver interface {
	// Leave says that the claim is left to its lease: no call for it follows, and it is not released. It does
	// not block.
	Leave(r Ref)
}

// A Checker is a Driver that can check whether its server's settings are safe for locks. Check
// returns an error only if it could not read them.
type Checker interface {
	Check(ctx context.Context) ([]Finding, error)
}

// A Ref names a claim.
type Ref struct {
	Key string
	// ID is 32 hexadecimal digits of randomness, chosen before the first attempt and the same in
	// every retry. Any party that knows it can release the claim, so it appears in no log, error,
	// metric or trace.
	ID  string
	TTL time.Duration
	// QueueTTL is how long the claim lives in a queue without renewal, if that is less than TTL. 0
	// means three seconds, which is what the engine uses. A backend may use less than it is asked for.
	QueueTTL time.Duration
	// Unanswered asks Release to leave a tombstone for the ID; see Driver.Release.
	Unanswered bool
}

// A Request describes a claim to submit.
type Request struct {
	Ref
	Mode Mode
	// Limit is the number of permits of a Permit claim, and 0 otherwise.
	Limit int
	// Wait queues the claim if it cannot be granted at once.
	Wait bool
	// Fixed says that the claim is not renewed while it is held, except once after a grant from the
	// queue. A backend that renews claims together must keep it separate.
	Fixed bool
	// OwnLease says that the claim shares its lease with no other claim, and keeps it: see Leaser.
	OwnLease bool
	// Tokens is how many consecutive tokens the grant reserves; State.Token is the first of them. 0
	// counts as 1. More than 1 requires Caps.TokenRange.
	Tokens int
	Info   Info
}

// A State is what a backend reports about one claim.
type State struct {
	Phase Phase
	// Token is the fencing token of a Held claim. It is greater than the token of every earlier
	// grant of the key. It is 0 without Caps.Fencing.
	Token int64
	// Ahead is how many claims are before a Queued one, including the holders. It is a hint.
	Ahead int
	// Until is the earliest time at which the claim's deadline can pass, on the local monotonic
	// clock: the time just before the call was sent, plus TTL (Held) or Ref.Heartbeat (Queued). It
	// is zero if the backend has no lease.
	Until time.Time
	// Lease, if positive, is the TTL that Until is counted with, where that is shorter than the one of the
	// call: an earlier call with this TTL was not answered, and may still arrive.
	Lease time.Duration
	// Recheck, if positive, asks the engine to renew a Queued claim after this time, because the
	// key may become free by then without an event.
	Recheck time.Duration
}

// An Event is a State that a backend pushes.
type Event struct {
	Key, ID string
	State   State
}

// Caps describes what a backend can do.
type Caps struct {
	// Name is the backend's name in configuration: "redis", "etcd", "redlock", "file" or "memory".
	Name string
	// Lease: a claim that is not renewed is gone after its deadline. Without Lease, a holder that
	// is not renewed keeps the key until its process ends.
	Lease bool
	// LeaseRestarts: a lease may start again without a renewal, as all etcd leases do after a
	// leader change. A claim that is no longer renewed may then outlive its TTL.
	LeaseRestarts bool
	// Remote: calls cross a network. The engine gives each call a timeout and checks whether this
	// machine was suspended while a lease ran.
	Remote bool
	// Fencing: a Held State carries a token. TokenRange: Request.Tokens may exceed 1.
	Fencing, TokenRange bool
	// FIFO: claims are granted in the order in which they were submitted.
	FIFO bool
	// Push: Events reports grants.
	Push bool
	// Modes are the modes that Acquire accepts.
	Modes []Mode
	// MinTTL is the shortest TTL that the backend can keep.
	MinTTL time.Duration
}

// Supports reports whether the backend accepts claims of mode m.
func (c Caps) Supports(m Mode) bool {
	for _, have := range c.Modes {
		if have == m {
			return true
		}
	}
	return false
}

// Heartbeat returns how long a queued claim with a TTL lives without renewal.
func Heartbeat(ttl time.Duration) time.Duration { return min(ttl, defaultQueueTTL) }

// Heartbeat returns how long the claim lives in a queue without renewal.
func (r *Ref) Heartbeat() time.Duration { return min(r.TTL, cmp.Or(r.QueueTTL, defaultQueueTTL)) }

const defaultQueueTTL = 3 * time.Second

// TombstoneTTL returns the shortest time that the tombstone of an ID lasts.
func TombstoneTTL(ttl time.Duration) time.Duration { return max(ttl, time.Minute) }
