// Package etcdlock stores locks in etcd.
//
// Every claim is its own key below the name of its lock, attached to a lease. The oldest key holds
// the lock: the order of creation is the queue, and the creation revision is the fencing token.
// concurrency.Mutex and etcdctl lock work in the same way, so they and this package exclude each
// other on the same name; see Name. docs/backends/etcd.md describes the layout, and what etcd can
// promise and what it cannot.
package etcdlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// New returns a backend that uses client. The client stays open when locks are closed. Open
// returns driver.ErrConnectorNil if it is nil.
func New(client *clientv3.Client, opts ...Option) driver.Opener {
	o := &opener{client: client}
	for i, opt := range opts {
		if opt == nil {
			o.bad = fmt.Errorf("%w: etcdlock: option %d is nil", xerrors.ErrInvalidConfig, i)
			continue
		}
		opt(o)
	}
	return o
}

// An Option changes how a backend works.
type Option func(*opener)

// WithClientBackoff lets the client decide when to reconnect after a failure. Use it for a client
// whose backoff was chosen with care: the driver cannot read what grpc.WithConnectParams has set.
// Without this option, the driver makes a client that cannot reach any server try again sooner
// while a lock is held or waited for; see docs/backends/etcd.md.
func WithClientBackoff() Option { return func(o *opener) { o.clientBackoff = true } }

type opener struct {
	client        *clientv3.Client
	clientBackoff bool
	alwaysBatch   bool  // for tests
	bad           error // what Open returns
}

// Open does no I/O.
func (o *opener) Open(opts driver.Options) (driver.Driver, error) {
	if o.bad != nil {
		return nil, o.bad
	}
	if o.client == nil {
		return nil, fmt.Errorf("%w: etcdlock: the client is nil", driver.ErrConnectorNil)
	}
	d := &etcdDriver{
		EventQueue: driver.NewEventQueue(1024),
		client:     o.client, kv: failFast(o.client),
		prefix: opts.Prefix, log: opts.Logger, me: newName(), numbers: map[string]*numbers{},
		claims: map[string]*claim{}, owns: map[string]*claim{}, leases: map[int64]*lease{}, grants: map[int64]*shared[*lease]{}, queues: map[string]*waitQueue{}, leasesToRevoke: map[*lease]bool{},
	}
	d.ctx, d.cancel = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
	d.alive = keepAliver{driver: d, backOff: backOff{base: 20 * time.Millisecond, most: time.Second}}
	d.keys = keyWatcher{etcdDriver: d, wake: make(chan struct{}, 1), open: openClientWatches(d), backOff: backOff{base: 20 * time.Millisecond, most: 10 * time.Second}}
	if o.client.Username != "" {
		d.keys.backOff.base = time.Second // so that the keep-alives come first
	}
	d.batches = newBatcher(d)
	d.together.Store(maxTogether)
	d.enqueuing = make(chan struct{}, maxEnqueuing)
	d.batches.always = o.alwaysBatch
	d.losses.wake = make(chan struct{}, 1)
	if conn := o.client.ActiveConnection(); conn != nil {
		d.alive.lessor = pb.NewLeaseClient(conn)
		if sameType(o.client.Watcher, clientv3.NewWatcher(o.client)) {
			d.keys.open = openRawWatch(pb.NewWatchClient(conn))
		}
		if !o.clientBackoff {
			d.work.Go(func() { d.reconnect(conn) })
		}
	}
	d.work.Go(d.keys.run)
	d.work.Go(d.notifyLosses)
	d.work.Go(d.maintain)
	return d, nil
}

// newName returns the name of a driver. It has the form of a lease ID, as other clients use it.
func newName() string {
	var raw [8]byte
	_, _ = rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

type etcdDriver struct {
	*driver.EventQueue
	client     *clientv3.Client
	kv         clientv3.KV // for new claims; see failfast.go
	prefix     string
	me         string // names the keys of this driver's claims
	log        *slog.Logger
	tombstones tombstoneLease
	alive      keepAliver
	keys       keyWatcher
	losses     lossEvents
	batches    batcher
	enqueuing  chan struct{} // has room for the claims that are being submitted to queues
	together   atomic.Int64  // how many claims one transaction can submit

	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	work      sync.WaitGroup
	closeOnce sync.Once

	mu      sync.Mutex
	claims  map[string]*claim         // by ID: submitted by this driver, and not known to be gone
	owns    map[string]*claim         // the same by their keys
	leases  map[int64]*lease          // by seconds: what new claims join
	grants  map[int64]*shared[*lease] // by seconds: leases that are being made
	queues  map[string]*waitQueue     // by key: where this driver's claims wait, or did recently
	numbers map[string]*numbers       // by key

	calls    int // of Acquire, Renew and Release that are in progress
	lastCall time.Time

	leasesToRevoke map[*lease]bool // and not known to be
	revokeQueue    []*lease        // those of them that were not tried yet
	revoking       int             // goroutines that do
}

// A claim is one that this driver has submitted or tried to submit.
type claim struct {
	key, id string
	own     string // its key in etcd
	kind    kind
	number  int

	fixed    bool // it is not renewed, and shares its lease with no other claim
	ownLease bool // it shares its lease with no other claim, and keeps it

	queueTTL time.Duration

	// Under etcdDriver.mu.
	position        // Phase Unknown until it was answered
	text     string // its value, until then
	lease    *lease
	other    *lease        // a second lease it may be on: a move to it was not answered,
	otherBy  time.Time     // and may arrive until then
	moves    int           // that were not answered
	seen     time.Time     // when its last Acquire or Renew was sent
	span     time.Duration // how long it may go without a call after that
	swept    bool          // it was not renewed in time, and is gone, whatever the server has
	sweeping bool
	ending   bool // a release of it has begun, which may delete its key
	open     bool // some attempt to submit it was never answered
	tainted  bool // a late delete of its key may still arrive
	retired  bool // a late delete of the claim may still arrive: see withdraw
	denied   bool // the user may not read its key
}

// A position is the place of a claim in its queue.
type position struct {
	phase     driver.Phase
	rev       int64  // of the claim's creation; 0 while that is not known
	before    string // the claim before it, while it is queued
	beforeRev int64
	ahead     int
	asOf      int64 // the revision at which that was so
}

// minTTL is the shortest TTL that a caller may ask for. A server grants more if its election
// timeout requires it: two seconds by default.
const minTTL = time.Second

func capacities() driver.Caps {
	return driver.Caps{
		Name: "etcd", Lease: true, LeaseRestarts: true, Remote: true, Fencing: true, FIFO: true, Push: true,
		Modes: []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}, MinTTL: minTTL,
	}
}

func (d *etcdDriver) Caps() driver.Caps { return capacities() }

// Close ends everything in progress. Leases with a claim are left to expire, because Close releases
// no claim; other leases are revoked.
func (d *etcdDriver) Close() error {
	d.closeOnce.Do(func() {
		d.cancel()
		d.work.Wait()
		d.revokeAll()
		d.EventQueue.Close()
	})
	return nil
}

func (d *etcdDriver) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	err := d.usable(ctx)
	switch {
	case err != nil:
		return driver.State{}, err
	case !capacities().Supports(r.Mode) || (r.Mode == driver.Permit && r.Limit < 1):
		return driver.State{}, fmt.Errorf("%w: %s of %d", driver.ErrUnsupported, r.Mode, r.Limit)
	case r.Tokens > 1:
		return driver.State{}, fmt.Errorf("%w: a range of %d tokens", driver.ErrUnsupported, r.Tokens)
	}
	defer d.call()()
	ctx = clientv3.WithRequireLeader(ctx) // an isolated member returns an error at once
	hasRoom := d.needsRoom(r)
	if hasRoom {
		leave, err := d.takeRoom(ctx, r.Wait)
		if err != nil {
			return driver.State{}, err
		}
		defer leave()
	}
	for {
		c, err := d.enter(ctx, r)
		if err != nil {
			return driver.State{}, err
		}
		if d.isRetired(c) {
			return driver.State{Phase: driver.Gone}, nil // the caller asks with another ID
		}
		st, err := d.submit(ctx, c, r, hasRoom)
		if err == nil {
			return st, nil
		}
		d.submitFailed(err, c)
		if !errors.Is(err, errLeaseGone) && !errors.Is(err, errRemoved) && !d.joinRefused(ctx, c, err) {
			return driver.State{}, err
		}
	}
}

// usable returns an error if nothing can be sent.
func (d *etcdDriver) usable(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return driver.Classify(ctx.Err(), driver.Transient)
	case d.client.Ctx().Err() != nil:
		return errClosed
	}
	return nil
}

// submitFailed records that claims were submitted with an error. If a lease is gone and the claims are on several, the
// keep-alive has recorded which it is.
func (d *etcdDriver) submitFailed(err error, claims ...*claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gone := errors.Is(err, errLeaseGone)
	split := slices.ContainsFunc(claims, func(c *claim) bool { return c.lease != claims[0].lease })
	for _, c := range claims {
		switch {
		case gone && (!split || c.lease.dead):
			d.markLeaseDead(c.lease) // a claim on another one may still be submitted
			d.forget(c)
		case gone, driver.ClassOf(err) == driver.Ambiguous:
			c.open = true
		case c.rev == 0 && !c.open:
			d.forget(c) // nothing was stored, and no release will follow
		}
	}
}
