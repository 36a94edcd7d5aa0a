// Package filelock stores locks in files of one host, without a server or a daemon.
//
// A lock is a file that is locked with flock(2), or with LockFileEx on Windows. The kernel frees it when its process dies, however
// it dies. The file holds the fencing token and names the holder. There is no lease: a TTL is
// accepted but has no effect, and a process that hangs keeps its locks. docs/backends/file.md
// describes the layout, and what files can promise and what they cannot.
package filelock

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// Errors of a directory that is not fit for locks. All are fatal to the call that returns them.
// Test with errors.Is.
var (
	// ErrNetworkFS: the directory is on a file system that other hosts may share, and flock does
	// not exclude them reliably there. It is a driver.ErrUnsupported.
	ErrNetworkFS = fmt.Errorf("%w: a network file system", driver.ErrUnsupported)
	// ErrInsecureDir: another user could tamper with the files. It is a driver.ErrDenied:
	// the rights of the directory have to be fixed.
	ErrInsecureDir = xerrors.NewOf(driver.ErrDenied, "insecure_dir", "not safe for locks")
	// ErrNotALock: a file has the name of a lock and other content, which is left
	// alone.
	ErrNotALock = driver.ErrNotALock
)

// A Store is a directory of locks. It is a driver.Opener: Clients that are opened on one directory
// exclude each other, in one process or in many. It needs no Close.
type Store struct {
	path       string // absolute
	shared     bool   // WithSharedDir
	network    bool   // WithNetworkFS
	uid        int
	fstype     func(fd int) (name string, local bool, err error)
	signals    func(*slog.Logger) signals
	tombstones tombstones
	maxKeys    int      // that List has in memory
	bad        error    // why it cannot be used
	only       *oneFile // nil: every file of the directory is a lock

	mu      sync.Mutex
	drivers map[*fileDriver]struct{} // that are open
}

// An Option changes what a Store accepts.
type Option func(*Store)

// WithSharedDir accepts a directory that other users can write to, if it is sticky, as /run/lock
// is, and belongs to this user or to root. Its files are writable for all users, so any user can
// take any lock, and keep it.
//
// Only root creates a missing directory, with mode 1777: other users would refuse to use a
// directory that belongs to another user. For every other user, a missing directory is an error.
func WithSharedDir() Option { return func(s *Store) { s.shared = true } }

// WithNetworkFS accepts any file system. You must make sure that flock works on it and that all
// contenders are on one host.
func WithNetworkFS() Option { return func(s *Store) { s.network = true } }

// maxListKeys limits the memory of List. After this many keys, List reads the directory again.
const maxListKeys = 16 << 10

// New returns a backend that uses a directory. The directory is created when the first lock is
// taken, for its owner alone (mode 0700); see WithSharedDir for a directory for all users. A
// relative path is resolved here, so the directory stays the same when the process changes its
// working directory. Open returns xerrors.ErrInvalidConfig for a path or an option that is invalid.
func New(dir string, opts ...Option) *Store {
	s := &Store{
		uid: os.Geteuid(), fstype: fsType, signals: newSignals, maxKeys: maxListKeys,
		drivers: map[*fileDriver]struct{}{},
	}
	if dir != "" {
		s.path, s.bad = filepath.Abs(dir)
	}
	for i, o := range opts {
		if o == nil {
			s.bad = fmt.Errorf("option %d is nil", i)
			continue
		}
		o(s)
	}
	return s
}

// Open does no I/O. On systems without such locks, it returns driver.ErrUnsupported.
func (s *Store) Open(o driver.Options) (driver.Driver, error) {
	path, err := s.where()
	if err != nil {
		return nil, err
	}
	d := &fileDriver{
		EventQueue: driver.NewEventQueue(1024), store: s, path: path, prefix: o.Prefix, log: o.Logger,
		queues: map[string]*waitQueue{}, armed: map[*waitQueue]struct{}{}, watched: map[int]*waitQueue{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drivers[d] = struct{}{}
	return d, nil
}

// where returns the path of the directory, or an error if the Store cannot be used.
func (s *Store) where() (string, error) {
	switch {
	case !supported:
		return "", fmt.Errorf("%w: no locks on files on this system", driver.ErrUnsupported)
	case s.shared && !hasModes:
		return "", fmt.Errorf("%w: no directories that users share on this system", driver.ErrUnsupported)
	case s.bad != nil:
		return "", fmt.Errorf("filelock: %w: %w", xerrors.ErrInvalidConfig, s.bad)
	case s.path == "":
		return "", fmt.Errorf("filelock: %w: no directory", xerrors.ErrInvalidConfig)
	}
	return s.path, nil
}

// tombstones are IDs that must not be submitted any more. They are kept in memory: only this
// process could still submit one.
type tombstones struct {
	any atomic.Bool

	mu      sync.Mutex
	until   map[string]time.Time
	sweepAt int // size at which ended tombstones are dropped
}

func (b *tombstones) add(id string, ttl time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if len(b.until) >= b.sweepAt {
		for id, end := range b.until {
			if end.Before(now) {
				delete(b.until, id)
			}
		}
		b.sweepAt = 2*len(b.until) + 64
	}
	if b.until == nil {
		b.until = map[string]time.Time{}
	}
	b.until[id] = now.Add(driver.TombstoneTTL(ttl))
	b.any.Store(true)
}

func (b *tombstones) has(id string) bool {
	if !b.any.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().Before(b.until[id]) // without a tombstone that is the zero time
}
