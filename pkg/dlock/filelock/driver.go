package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/unanswered"
)

type fileDriver struct {
	*driver.EventQueue
	store  *Store
	path   string
	prefix string
	log    *slog.Logger

	lastInfo atomic.Pointer[encodedInfo]
	dir      atomic.Pointer[directory] // nil until it is needed
	dirMu    sync.Mutex
	dirs     []*directory // under dirMu: all that were opened

	listen  sync.Once
	signals signals // once something has waited

	work      sync.WaitGroup
	closeOnce sync.Once

	mu      sync.Mutex
	queues  map[string]*waitQueue   // by key
	idle    []*waitQueue            // queues without claims, the oldest first
	armed   map[*waitQueue]struct{} // queues that wait for something to happen outside
	watched map[int]*waitQueue      // by watch
	running bool                    // the goroutine that waits for all
	asleep  time.Time               // until when it sleeps
	closed  bool
}

func (d *fileDriver) Caps() driver.Caps {
	return driver.Caps{
		Name: "file", Fencing: true, TokenRange: true, Push: true,
		Modes: []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit}, MinTTL: time.Millisecond,
	}
}

// most is the largest number of permits, and of tokens in one grant.
const most = 1 << 30

func (d *fileDriver) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	switch {
	case ctx.Err() != nil:
		return driver.State{}, driver.Classify(ctx.Err(), driver.Transient) // nothing is stored
	case r.Mode > driver.Permit || (r.Mode == driver.Permit && r.Limit < 1) || r.Limit > most:
		return driver.State{}, fmt.Errorf("%w: %s of %d", driver.ErrUnsupported, r.Mode, r.Limit)
	case r.Tokens > most:
		return driver.State{}, fmt.Errorf("%w: a range of %d tokens", driver.ErrUnsupported, r.Tokens)
	case r.Key == "":
		return driver.State{}, fmt.Errorf("%w: empty", driver.ErrInvalidKey)
	case len(d.prefix)+len(r.Key) > maxName:
		return driver.State{}, fmt.Errorf("%w: %d bytes with its prefix are more than %d", driver.ErrInvalidKey, len(d.prefix)+len(r.Key), maxName)
	case d.store.tombstones.has(r.ID):
		return driver.State{Phase: driver.Gone}, nil
	}
	if err := d.store.allows(d.prefix + r.Key); err != nil {
		return driver.State{}, err
	}
	q := d.enter(r.Key)
	gained := 0
	defer func() { d.leave(q, gained) }()
	if c := q.find(r.ID); c != nil {
		return c.state(), nil
	}
	c := newClaim(q, &r)
	out, err := d.join(ctx, c)
	switch {
	case err != nil:
		c.putBack()
		return driver.State{}, classify(err)
	case out == granted:
		q.hold(c)
	case r.Wait:
		if q.enqueue(c); q.waiting[0] == c && !q.taken() {
			d.rest(q)
		}
	default:
		c.putBack()
		return driver.State{Phase: driver.Gone}, nil
	}
	gained = 1
	return c.state(), nil
}

// join takes the lock for a new claim, unless other claims of this driver come before it.
func (d *fileDriver) join(ctx context.Context, c *claim) (outcome, error) {
	_ = d.serve(ctx, c.queue) // what fails for them, fails for c too
	if len(c.queue.waiting) > 0 || c.queue.taken() {
		return refused, nil
	}
	return d.attempt(ctx, c, callTries)
}

func (d *fileDriver) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	states := make([]driver.State, len(refs))
	errs := make([]error, len(refs))
	for i, r := range refs {
		if ctx.Err() != nil {
			break
		}
		st, err := d.confirm(ctx, r)
		states[i], errs[i] = st, classify(err)
	}
	return states, unanswered.Cause(states, errs, ctx.Err())
}

// confirm checks whether the file of a claim is still the one at its path.
func (d *fileDriver) confirm(ctx context.Context, r driver.Ref) (driver.State, error) {
	q := d.enter(r.Key)
	gained := 0
	defer func() { d.leave(q, gained) }()
	c := q.find(r.ID)
	if c == nil {
		return driver.State{Phase: driver.Gone}, nil
	}
	if c.phase == driver.Queued {
		if c == q.waiting[0] {
			if err := d.serve(ctx, q); err != nil && c.phase == driver.Queued {
				return driver.State{}, err
			}
		}
		return c.state(), nil
	}
	there, err := d.isThere(c)
	if err != nil {
		return driver.State{}, err
	}
	if !there { // another program removed it: the next claim gets a new file
		d.forget(c)
		d.recheckPaths(q)
		gained = -1
		_ = d.serve(ctx, q) // what fails is tried again
	}
	return c.state(), nil
}

func (d *fileDriver) isThere(c *claim) (bool, error) {
	there, err := isAt(c.main.fd, pathIn(d.path, c.queue.base+lockSuffix))
	if err != nil || !there || c.slot < 0 {
		return there, err
	}
	return isAt(c.slot, pathIn(d.path, slotName(c.queue.base, c.slotNumber)))
}

func (d *fileDriver) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	if err := ctx.Err(); err != nil {
		return driver.State{}, err
	}
	if r.Unanswered {
		d.store.tombstones.add(r.ID, r.TTL)
	}
	q := d.enter(r.Key)
	gained := 0
	defer func() { d.leave(q, gained) }()
	c := q.find(r.ID)
	if c == nil {
		return driver.State{Phase: driver.Gone}, nil
	}
	found := driver.State{Phase: c.phase, Token: c.token}
	d.forget(c)
	gained = -1
	_ = d.serve(ctx, q) // what fails is tried again
	return found, nil
}

// Close closes all files, as the end of the process would.
func (d *fileDriver) Close() error {
	d.closeOnce.Do(func() {
		d.store.mu.Lock()
		delete(d.store.drivers, d)
		d.store.mu.Unlock()
		d.stopWatching()
		for _, q := range d.queues {
			q.close()
		}
		for _, dir := range d.dirs {
			closeFile(dir.fd)
		}
		d.EventQueue.Close()
	})
	return nil
}

// fatal lists errors that a retry does not fix. FreeBSD returns EMLINK for a symbolic link and
// EOPNOTSUPP for a socket, where Linux returns ELOOP and ENXIO.
var fatal = append([]error{
	ErrInsecureDir, ErrNotALock, fs.ErrPermission, syscall.EROFS, syscall.ELOOP, syscall.EMLINK, syscall.ENOTDIR, syscall.EISDIR,
	syscall.ENXIO, syscall.EOPNOTSUPP, syscall.ENAMETOOLONG,
}, systemFatal...)

// foreign lists the errors of opening and reading a file that another user or program has put
// there, made unreadable, or has a lease on (EAGAIN, see fcntl(2)).
var foreign = []error{
	ErrInsecureDir, ErrNotALock, fs.ErrPermission, syscall.ELOOP, syscall.EMLINK, syscall.EISDIR, syscall.ENXIO, syscall.EOPNOTSUPP, syscall.EAGAIN,
}

// isForeign reports whether an error is about a single file of another user or program. Operations
// on all files skip it. The error of a guard is not about a single file.
func isForeign(err error) bool {
	var g *guardError
	if errors.As(err, &g) {
		return false
	}
	for _, f := range foreign {
		if errors.Is(err, f) {
			return true
		}
	}
	return false
}

// A kind is which of the errors that all backends share an error of the kernel is.
type kind struct{ errno, kind error }

var kinds = append([]kind{
	{fs.ErrPermission, driver.ErrDenied},
	{syscall.EROFS, driver.ErrNotReady},
	{syscall.ENOSPC, driver.ErrNotReady},
	{syscall.EDQUOT, driver.ErrNotReady},
	{syscall.EMFILE, driver.ErrNotReady},
	{syscall.ENFILE, driver.ErrNotReady},
	{syscall.EIO, driver.ErrNotReady},
}, systemKinds...)

// classify says what an error means for a claim. The kernel answers every call, so after any error
// nothing was stored.
func classify(err error) error {
	for _, k := range kinds {
		if errors.Is(err, k.errno) {
			err = fmt.Errorf("%w: %w", k.kind, err)
		}
	}
	for _, f := range fatal {
		if errors.Is(err, f) {
			return driver.Classify(err, driver.Fatal)
		}
	}
	if driver.ClassOf(err) == driver.Ambiguous {
		return driver.Classify(err, driver.Transient)
	}
	return err
}
