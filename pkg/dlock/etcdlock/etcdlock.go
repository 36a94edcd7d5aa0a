// Package etcdlock keeps locks in etcd.
//
// Every claim is a key of its own below the name of its lock, attached to a
// lease, and the oldest one holds: the order of creation is the queue, and the
// revision of creation is the fencing token. That is also how concurrency.Mutex
// and etcdctl lock work, so they exclude us and are excluded on the same name; see
// Name. docs/backends/etcd.md has the layout, and says what etcd can promise and
// what it cannot.
package etcdlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// New returns a backend on client, which stays open when locks are closed.
func New(client *clientv3.Client, opts ...Option) driver.Opener {
	o := &opener{client: client}
	for _, opt := range opts {
		opt(o)
	}
	return o
}

// An Option changes how a backend works.
type Option func(*opener)

// WithClientBackoff leaves it to the client when to connect again after a failure. For a
// client whose back-off was chosen with care: what grpc.WithConnectParams has set cannot be
// seen from outside. Without this option, a client that cannot reach any server is made to
// try again sooner while a lock is held or waited for; see docs/backends/etcd.md.
func WithClientBackoff() Option { return func(o *opener) { o.clientBackoff = true } }

type opener struct {
	client        *clientv3.Client
	clientBackoff bool
}

// Open does no I/O.
func (o *opener) Open(opts driver.Options) (driver.Driver, error) {
	if o.client == nil {
		return nil, errors.New("etcdlock: the client is nil")
	}
	d := &etcdDriver{
		Outbox: driver.NewOutbox(1024),
		client: o.client, kv: failFast(o.client),
		prefix: opts.Prefix, log: opts.Logger, me: newName(), numbers: map[string]*numbers{},
		claims: map[string]*claim{}, owns: map[string]*claim{}, leases: map[int64]*lease{}, grants: map[int64]*shared[*lease]{}, lines: map[string]*line{}, leasesToRevoke: map[*lease]bool{},
	}
	d.ctx, d.cancel = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
	d.alive = keepAliver{driver: d, backOff: backOff{base: 20 * time.Millisecond, most: time.Second}}
	d.keys = keyWatcher{etcdDriver: d, wake: make(chan struct{}, 1), open: openClientWatches(d), backOff: backOff{base: 20 * time.Millisecond, most: 10 * time.Second}}
	if o.client.Username != "" {
		d.keys.backOff.base = time.Second // so that the keep-alives come first
	}
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
	d.work.Go(d.tellLosses)
	d.work.Go(d.maintain)
	return d, nil
}

// newName makes the name of a driver. It looks like a lease, as others name theirs.
func newName() string {
	var raw [8]byte
	_, _ = rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

type etcdDriver struct {
	*driver.Outbox
	client *clientv3.Client
	kv     clientv3.KV // for new claims; see failfast.go
	prefix string
	me     string // names the keys of our claims
	log    *slog.Logger
	bars   barLease
	alive  keepAliver
	keys   keyWatcher
	losses lossEvents

	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	work      sync.WaitGroup
	closeOnce sync.Once

	mu      sync.Mutex
	claims  map[string]*claim         // by ID: filed by us, and not known to be gone
	owns    map[string]*claim         // the same by their keys
	leases  map[int64]*lease          // by seconds: what new claims join
	grants  map[int64]*shared[*lease] // by seconds: leases that are being made
	lines   map[string]*line          // by key: where claims of ours wait, or did lately
	numbers map[string]*numbers       // by key

	calls    int // of Acquire, Renew and Release that are under way
	lastCall time.Time

	leasesToRevoke map[*lease]bool // and not known to be
	revokeQueue    []*lease        // those of them that were not tried yet
	revoking       int             // goroutines that do
}

// A claim is one that this driver has filed, or has tried to.
type claim struct {
	key, id string
	own     string // its key in etcd
	number  int
	fixed   bool

	// Under etcdDriver.mu.
	position        // Phase Unknown until it was answered
	text     string // its value, until then
	lease    *lease
	other    *lease        // on which it may be as well: a move there was not answered,
	otherBy  time.Time     // and may arrive until then
	seen     time.Time     // when its last Acquire or Renew was sent
	span     time.Duration // for how long it may be silent after that
	swept    bool          // it was silent for longer, and is gone, whatever the server still has
	sweeping bool
	ending   bool // a release of it was begun, so its key may go by our own doing
	open     bool // some attempt to file it was never answered
	tainted  bool // something may yet arrive that deletes whatever is at its key
	burnt    bool // something may yet arrive that deletes the claim: see withdraw
}

// A position is where a claim stands in its line.
type position struct {
	phase     driver.Phase
	rev       int64  // of the claim's creation; 0 while that is not known
	before    string // the claim before it, while it is queued
	beforeRev int64
	ahead     int
	asOf      int64 // the revision at which that was so
}

// minTTL is the shortest TTL that may be asked for. A server grants more if its
// election timeout needs it: two seconds by default.
const minTTL = time.Second

func capacities() driver.Caps {
	return driver.Caps{
		Name: "etcd", Lease: true, Remote: true, Fencing: true, FIFO: true, Push: true,
		Modes: []driver.Mode{driver.Exclusive}, MinTTL: minTTL,
	}
}

func (d *etcdDriver) Caps() driver.Caps { return capacities() }

// Close ends what is under way. A lease with a claim on it is left to run out,
// since Close releases no claim; the others are revoked.
func (d *etcdDriver) Close() error {
	d.closeOnce.Do(func() {
		d.cancel()
		d.work.Wait()
		d.revokeAll()
		d.Outbox.Close()
	})
	return nil
}

func (d *etcdDriver) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	switch {
	case ctx.Err() != nil:
		return driver.State{}, driver.Classify(ctx.Err(), driver.Transient) // nothing was sent
	case d.client.Ctx().Err() != nil:
		return driver.State{}, errClosed
	case !capacities().Supports(r.Mode):
		return driver.State{}, fmt.Errorf("%w: mode %s", driver.ErrUnsupported, r.Mode)
	case r.Fences > 1:
		return driver.State{}, fmt.Errorf("%w: a range of %d fences", driver.ErrUnsupported, r.Fences)
	}
	defer d.call()()
	ctx = clientv3.WithRequireLeader(ctx) // a member that is cut off says so at once
	for {
		c, err := d.enter(ctx, r)
		if err != nil {
			return driver.State{}, err
		}
		if d.isBurnt(c) {
			return driver.State{Phase: driver.Gone}, nil // the caller asks with another ID
		}
		st, err := d.file(ctx, c, r)
		if err == nil {
			return st, nil
		}
		d.mu.Lock()
		gone := errors.Is(err, errLeaseGone)
		switch {
		case gone:
			d.markLeaseDead(c.lease) // a claim on another one may still be filed
			d.forget(c)
		case driver.ClassOf(err) == driver.Ambiguous:
			c.open = true
		case c.rev == 0 && !c.open:
			d.forget(c) // nothing was stored, and nobody will release it
		}
		d.mu.Unlock()
		if !gone {
			return driver.State{}, err
		}
	}
}
