package mutant

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// sameSession is a lock of one session for the whole process: its key is the lease,
// so that two claims of one process are one to the server.
type sameSession struct {
	*driver.EventQueue
	client *clientv3.Client
	prefix string

	mu      sync.Mutex
	session *concurrency.Session
	locks   map[string]*sessionLock
}

// A sessionLock is the Mutex of one claim, which is not for several calls at a time.
type sessionLock struct {
	sync.Mutex
	lock *concurrency.Mutex
}

func newSameSession(_ driver.Opener, s Servers) driver.Opener {
	return opener(func(o driver.Options) (driver.Driver, error) {
		return &sameSession{EventQueue: driver.NewEventQueue(1), client: s.Etcd, prefix: o.Prefix, locks: map[string]*sessionLock{}}, nil
	})
}

func (d *sameSession) Caps() driver.Caps {
	return driver.Caps{Name: "etcd", Lease: true, LeaseRestarts: true, Remote: true, Fencing: true, Modes: []driver.Mode{driver.Exclusive}, MinTTL: time.Second}
}

func (d *sameSession) Close() error {
	d.EventQueue.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session != nil {
		return d.session.Close()
	}
	return nil
}

// mutex is that of a claim, in the one session.
func (d *sameSession) mutex(r driver.Ref) (*sessionLock, *concurrency.Session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session == nil {
		s, err := concurrency.NewSession(d.client, concurrency.WithTTL(5))
		if err != nil {
			return nil, nil, err
		}
		d.session = s
	}
	if d.locks[r.ID] == nil {
		d.locks[r.ID] = &sessionLock{lock: concurrency.NewMutex(d.session, d.prefix+etcdlock.Name(r.Key))}
	}
	return d.locks[r.ID], d.session, nil
}

func (d *sameSession) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	sent := time.Now()
	m, s, err := d.mutex(r.Ref)
	if err != nil {
		return driver.State{}, err
	}
	m.Lock()
	defer m.Unlock()
	err = m.lock.TryLock(ctx)
	switch {
	case err == nil:
		got, err := d.client.Get(ctx, m.lock.Key())
		if err != nil || len(got.Kvs) == 0 {
			return driver.State{Phase: driver.Gone}, err
		}
		return driver.State{Phase: driver.Held, Token: got.Kvs[0].CreateRevision, Until: sent.Add(5 * time.Second)}, nil
	case !errors.Is(err, concurrency.ErrLocked) || s.Lease() == clientv3.NoLease:
		return driver.State{}, err
	case !r.Wait:
		return driver.State{Phase: driver.Gone}, nil
	}
	return driver.State{Phase: driver.Queued, Ahead: 1, Recheck: 50 * time.Millisecond, Until: sent.Add(driver.Heartbeat(r.TTL))}, nil
}

func (d *sameSession) Renew(ctx context.Context, refs []driver.Ref) ([]driver.State, error) {
	states := make([]driver.State, len(refs))
	for i, r := range refs {
		st, err := d.Acquire(ctx, driver.Request{Ref: r, Wait: true})
		if err == nil {
			states[i] = st
		}
	}
	return states, nil
}

func (d *sameSession) Release(ctx context.Context, r driver.Ref) (driver.State, error) {
	m, _, err := d.mutex(r)
	if err != nil {
		return driver.State{}, err
	}
	m.Lock()
	defer m.Unlock()
	if err := m.lock.Unlock(ctx); err != nil && !errors.Is(err, concurrency.ErrLockReleased) {
		return driver.State{}, err
	}
	return driver.State{Phase: driver.Held}, nil
}

// wholeLine deletes all claims when one is released.
func wholeLine(s Servers, m *memory) hooks {
	return hooks{release: func(ctx context.Context, d driver.Driver, r driver.Ref) (driver.State, error) {
		if _, err := s.Etcd.Delete(ctx, m.prefix+etcdlock.Name(r.Key)+"/", clientv3.WithPrefix()); err != nil {
			return driver.State{}, err
		}
		return d.Release(ctx, r)
	}}
}
