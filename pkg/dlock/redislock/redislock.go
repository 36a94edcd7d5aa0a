// Package redislock stores locks in Redis: on a single server, on a master monitored by sentinels,
// or on a cluster, through one go-redis client.
//
// A lock is a plain string key with an expiry, or a sorted set if readers or permits hold it, so it excludes
// every client that locks with SET NX PX, and such a client excludes it. Next to it is a queue, which grants
// the key to waiters in the order in which they arrived. docs/backends/redis.md describes the layout, and what
// Redis can promise and what it cannot.
package redislock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
	"github.com/ceyewan/genesis/pkg/dlock/internal/sharedtimeout"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// An Option changes how locks are stored.
type Option func(*settings)

// WithMinReplicas accepts a grant or a renewal only when n replicas have confirmed it, each time
// within the given timeout, which is at most a day. A wait for replicas leaves a quarter of
// what is left of its call, or 750 ms if these are less: of the two seconds or the TTL of an attempt, whichever is less, or of the time
// for a renewal, which is a quarter of the lease. It narrows the window in which a failover gives
// one lock to two holders, but does not close it: WAIT is not consensus. It costs one round trip to
// the replicas, and one more to the server when a lock passes from one holder to the next.
func WithMinReplicas(n int, within time.Duration) Option {
	return func(s *settings) { s.replicas, s.replicaWait = n, within }
}

// WithPlainClients leaves a key free for the time gap after each holder of this library, so that
// clients that poll with SET NX get their share. It also makes the first waiter ask every 50 ms,
// because such clients do not announce a release. Without it, whoever has the lock keeps it among its
// own kind: claims of this library pass it on while one of them waits, and while such clients have it, a
// waiter asks only once a second, so those that poll more often get it before. It is meant for migrations and must be set on every Client that
// shares the key. It delays each change of holder by the gap. 20 ms is enough alongside redsync.
func WithPlainClients(gap time.Duration) Option {
	return func(s *settings) { s.gap = gap }
}

type settings struct {
	replicas    int
	replicaWait time.Duration
	gap         time.Duration
	optionErr   error // an invalid option; Open returns it

	releaseDelay time.Duration // maxReleaseDelay, except in tests
	// In tests: a server always counts as quick, or as soon as it has answered.
	alwaysInline, inlineOnceAnswered bool
}

// New returns a backend that uses client. The client stays open when locks are closed. Open
// returns driver.ErrConnectorNil if it is nil, and xerrors.ErrInvalidConfig for an option that is
// out of range.
//
// Give locks a client of their own. On a client that also runs blocking commands such as BLPOP,
// calls and renewals wait for a connection until locks are lost. The pool needs eight connections
// for each server; Check reports a pool that has fewer, or in which calls had to wait.
func New(client redis.UniversalClient, opts ...Option) driver.Opener {
	o := &opener{client: client, settings: settings{releaseDelay: maxReleaseDelay}}
	for i, opt := range opts {
		if opt == nil {
			o.settings.optionErr = fmt.Errorf("%w: redislock: option %d is nil", xerrors.ErrInvalidConfig, i)
			continue
		}
		opt(&o.settings)
	}
	return o
}

type opener struct {
	client   redis.UniversalClient
	settings settings
}

// Open does no I/O.
func (o *opener) Open(opts driver.Options) (driver.Driver, error) {
	if err := o.settings.validate(); err != nil {
		return nil, err
	}
	if redisnode.IsNil(o.client) {
		return nil, fmt.Errorf("%w: redislock: the client is nil", driver.ErrConnectorNil)
	}
	d := &redisDriver{
		client: o.client, settings: o.settings, prefix: opts.Prefix, log: opts.Logger,
		waiting: map[string]waiter{}, joint: map[string]struct{}{}, EventQueue: driver.NewEventQueue(1024),
	}
	switch c := o.client.(type) {
	case *redis.ClusterClient:
		d.cluster, d.honorsDeadline = c, c.Options().ContextTimeoutEnabled
		d.bySlot.Store(true)
		if d.honorsDeadline {
			d.shortTimeoutClient = c
		}
	case *redis.Client:
		d.setTimeouts(c)
	default:
		return nil, fmt.Errorf("%w: redislock needs a client of one server, of sentinels or of a cluster, not %T", driver.ErrUnsupported, c)
	}
	d.name = newName()
	if d.cluster == nil {
		d.info.Before = d.channelFor("") + " "
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.pipeliner.driver = d
	d.subscriptions.driver = d
	return d, nil
}

// maxReplicaWait is as long as the longest lease. The timeouts that are derived from a longer time
// could overflow.
const maxReplicaWait = 24 * time.Hour

func (s *settings) validate() error {
	switch {
	case s.optionErr != nil:
		return s.optionErr
	case s.replicas < 0 || s.replicaWait < 0 || s.replicaWait > maxReplicaWait || (s.replicas > 0 && s.replicaWait == 0):
		return fmt.Errorf("%w: redislock: WithMinReplicas(%d, %v) is out of range", xerrors.ErrInvalidConfig, s.replicas, s.replicaWait)
	case s.gap < 0 || s.gap > driver.Heartbeat(time.Hour):
		return fmt.Errorf("%w: redislock: WithPlainClients(%v) is not between 0 and 3s", xerrors.ErrInvalidConfig, s.gap)
	}
	return nil
}

// setTimeouts creates clients that share the connections of c but have other timeouts: nothing else
// ends a call of a client that does not honor deadlines, and WAIT may take longer than the client's
// own read timeout.
func (d *redisDriver) setTimeouts(c *redis.Client) {
	d.shortTimeoutClient, d.honorsDeadline = c, c.Options().ContextTimeoutEnabled
	if !d.honorsDeadline {
		d.client, d.shortTimeoutClient = c.WithTimeout(tripTimeout), c.WithTimeout(attemptTimeout)
	}
	if d.settings.replicas > 0 {
		d.replicaClient = c.WithTimeout(tripTimeout + d.settings.replicaWait)
	}
}

// newName returns a random name for a driver's channel.
func newName() string {
	var raw [8]byte
	_, _ = rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

// capabilities returns the capabilities of this backend.
func capabilities() driver.Caps {
	return driver.Caps{
		Name: "redis", Lease: true, Remote: true, Fencing: true, TokenRange: true, FIFO: true, Push: true,
		Modes: []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}, MinTTL: 10 * time.Millisecond,
	}
}

func (d *redisDriver) Caps() driver.Caps { return capabilities() }

// Close ends the subscriptions and the calls in flight.
func (d *redisDriver) Close() error {
	d.closeOnce.Do(func() {
		d.cancel()
		d.subscriptions.close()
		for _, p := range d.pipeliners() {
			p.stopTimer()
		}
		d.work.Wait()
		d.endLateCalls()
		d.EventQueue.Close()
	})
	return nil
}

type redisDriver struct {
	*driver.EventQueue
	client   redis.UniversalClient
	cluster  *redis.ClusterClient // nil without a cluster
	settings settings
	prefix   string
	log      logger
	bySlot   atomic.Bool        // tokens are counted for each slot: there is a cluster
	name     string             // random; part of the names of this driver's channels
	info     redisnode.InfoText // preceded by the channel, except on a cluster
	plain    redisnode.InfoText // without a channel

	honorsDeadline     bool                   // the client honors the deadlines of contexts
	shortTimeoutClient redis.UniversalClient  // for inline calls: honors the attempt timeout; nil if no client does
	replicaClient      redis.UniversalClient  // its timeouts allow waiting for replicas; nil on a cluster
	attemptTimeouts    sharedtimeout.Contexts // of inline calls
	pipeliner          pipeliner              // for the only master, and for calls whose master is unknown
	byMaster           masterPipeliners       // on a cluster
	subscriptions      subscriptions
	explainer          redisnode.Explainer

	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	work      sync.WaitGroup
	closeOnce sync.Once
	warned    sync.Once

	mu      sync.Mutex
	waiting map[string]waiter    // by claim ID: this driver's queued claims
	joint   map[string]struct{}  // by claim ID: this driver's readers and permits, which are renewed like waiters
	retired map[string]time.Time // by claim ID: until when the ID must not be used; see undo
}

// A waiter is a queued claim of this driver.
type waiter struct {
	key  string
	slot int
}

func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

func (d *redisDriver) Acquire(ctx context.Context, r driver.Request) (st driver.State, err error) {
	if err := ctx.Err(); err != nil {
		return driver.State{}, driver.Classify(err, driver.Transient) // nothing was sent
	}
	if !capabilities().Supports(r.Mode) {
		return driver.State{}, fmt.Errorf("%w: mode %s", driver.ErrUnsupported, r.Mode)
	}
	if d.settings.replicas > 0 && d.isRetired(r.ID) {
		return driver.State{Phase: driver.Gone}, nil // the engine submits the claim with another ID
	}
	for range 2 {
		var n names
		n, err = d.namesOf(r.Key)
		if err != nil {
			return driver.State{}, err
		}
		st, err = d.acquire(ctx, r, n)
		if !d.isHiddenCluster(n, err) {
			break
		}
	}
	return st, err
}

func (d *redisDriver) acquire(ctx context.Context, r driver.Request, n names) (driver.State, error) {
	slot := d.slotOf(n.lock)
	if !r.Wait || d.subscriptions.ready(slot) {
		return d.submit(ctx, r, n, r.Wait)
	}
	// A waiter that is not subscribed delays the waiters behind it until its next heartbeat. So a
	// claim is queued only after the first attempt to subscribe.
	first, err := d.submit(ctx, r, n, false)
	if err != nil || first.Phase == driver.Held {
		return first, err
	}
	d.subscriptions.await(ctx, slot)
	st, err := d.submit(ctx, r, n, true)
	if err != nil && ctx.Err() != nil && driver.ClassOf(err) == driver.Transient {
		return first, nil // the wait is over, and nothing more was sent: another claim held the lock
	}
	return st, err
}

// maxRepeats is how often a script is called again because it has left dead waiters. It is twice
// what the longest queue can need.
const maxRepeats = 400

// submit sends a claim. It repeats the call until enough dead waiters are dropped to know whether
// the lock is free.
func (d *redisDriver) submit(ctx context.Context, r driver.Request, n names, wait bool) (driver.State, error) {
	for range maxRepeats {
		a, err := d.submitOnce(ctx, r, n, wait)
		if err != nil || !a.retry {
			return a.state, err
		}
	}
	return driver.State{}, driver.Classify(fmt.Errorf("%w: dead waiters appear as fast as they are dropped", driver.ErrNotReady), driver.Transient)
}

func (d *redisDriver) submitOnce(ctx context.Context, r driver.Request, n names, wait bool) (answer, error) {
	sent, beat := time.Now(), "0"
	if wait {
		beat = millis(heartbeat(&r.Ref))
	}
	args := append(make([]any, 0, 6), r.ID, millis(r.TTL), beat, d.channelAndInfo(n.lock, r.Info, wait))
	script := acquireScript
	if r.Mode != driver.Exclusive {
		script, args = acquireJointScript, append(args, max(r.Tokens, 1), modeText(r))
	} else if r.Tokens > 1 {
		args = append(args, r.Tokens)
	}
	cmd := script.Command(ctx, d.withGap(n, n.lock, n.counter, n.queue, n.waiters, n.holders, n.tombstone(r.ID)), args...)
	var reply any
	var err, unconfirmed error // unconfirmed: too few replicas have it
	if d.settings.replicas > 0 {
		var confirmed replicated
		confirmed, err = await(ctx, d, func() (replicated, error) { return d.callReplicated(ctx, n.lock, cmd) })
		reply, unconfirmed = confirmed.reply, confirmed.unconfirmed
		if err != nil && ctx.Err() != nil && driver.ClassOf(err) == driver.Ambiguous && cmd.Withdraw() {
			err = redisnode.Unsent(d.explain(ctx.Err()))
		}
	} else {
		reply, err = d.call(ctx, cmd, mayInline)
	}
	if err != nil {
		return answer{}, err
	}
	a, err := parseAnswer(reply, r.Ref, sent)
	if err != nil || a.retry {
		return a, err
	}
	if a.state.Phase == driver.Held && unconfirmed != nil {
		return answer{}, d.undo(ctx, r.Ref, unconfirmed)
	}
	d.record(r, n.lock, a.state.Phase)
	d.warnOnce()
	return a, nil
}

// modeText returns the mode of a reader or a permit as it is stored.
func modeText(r driver.Request) string {
	if r.Mode == driver.Shared {
		return "s"
	}
	return "p" + strconv.Itoa(r.Limit)
}

// idLength is the length of the ID of every claim.
const idLength = 32

// unmarked follows the ID in the value of a lock for which no claim waits.
const unmarked = "."

// withGap adds the gap key if the driver leaves a gap.
func (d *redisDriver) withGap(n names, keys ...string) []string {
	if d.settings.gap > 0 {
		keys = append(keys, n.gap)
	}
	return keys
}

// channelAndInfo returns the channel for pushes to a claim, and its Info. Without a cluster the
// channel is always the same, and info.Encode puts it first.
func (d *redisDriver) channelAndInfo(lock string, i driver.Info, wait bool) string {
	switch {
	case wait && !d.subscriptions.isConfirmed(d.slotOf(lock)):
		return noChannel + " " + d.plain.Encode(i)
	case d.cluster != nil:
		return d.channelFor(lock) + " " + d.plain.Encode(i)
	}
	return d.info.Encode(i)
}

// record updates the tables of claims, and subscribes for a waiter that is new.
func (d *redisDriver) record(r driver.Request, lock string, p driver.Phase) {
	d.mu.Lock()
	if r.Mode != driver.Exclusive && p != driver.Gone {
		d.joint[r.ID] = struct{}{}
	}
	w, had := d.waiting[r.ID]
	if p == driver.Queued {
		w = waiter{key: r.Key, slot: d.slotOf(lock)}
		d.waiting[r.ID] = w
	} else if had {
		delete(d.waiting, r.ID)
	}
	d.mu.Unlock()
	if p == driver.Queued && !had {
		_ = d.subscriptions.ensure(w.slot)
	}
}

// slotOf returns the slot of a lock on a cluster, or 0 without a cluster.
func (d *redisDriver) slotOf(lock string) int {
	if d.cluster == nil {
		return 0
	}
	return slotOf(lock)
}
