package peer

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// mutexShared has one session for each client, as one does for speed.
type mutexShared struct{}

func (mutexShared) Info() Info {
	return Info{
		Name: "etcd-mutex", Title: "concurrency.Mutex, shared session", Backend: "etcd", Version: version(etcdClient),
		Setup: "one concurrency.NewSession for each client (TTL 60 s), one NewMutex for each lock", Waits: true, Renews: true,
	}
}

func (mutexShared) Open(_ context.Context, env *Env) (Client, error) {
	c, err := dialEtcd(env.Etcd)
	if err != nil {
		return nil, err
	}
	s, err := concurrency.NewSession(c, sessionOptions(env)...)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &sharedSession{c, s}, nil
}

func sessionOptions(env *Env) []concurrency.SessionOption {
	if env.TTL == 0 {
		return nil
	}
	return []concurrency.SessionOption{concurrency.WithTTL(int(max(env.TTL, time.Second).Seconds()))}
}

type sharedSession struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func (s *sharedSession) Lock(ctx context.Context, key string) (Lock, error) {
	m := concurrency.NewMutex(s.session, key)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

func (s *sharedSession) Close() error { return errors.Join(s.session.Close(), s.client.Close()) }

// mutexOwn has a session for each lock: what one needs when goroutines of a process
// want the same key, since two mutexes of one session do not exclude each other.
type mutexOwn struct{}

func (mutexOwn) Info() Info {
	return Info{
		Name: "etcd-mutex-own", Title: "concurrency.Mutex, session per lock", Backend: "etcd", Version: version(etcdClient),
		Setup: "a concurrency.NewSession (TTL 60 s) and a NewMutex for each lock, closed after it", Waits: true, Renews: true,
	}
}

func (mutexOwn) Open(_ context.Context, env *Env) (Client, error) {
	c, err := dialEtcd(env.Etcd)
	if err != nil {
		return nil, err
	}
	return &ownSessions{c, sessionOptions(env)}, nil
}

type ownSessions struct {
	client *clientv3.Client
	opts   []concurrency.SessionOption
}

func (o *ownSessions) Lock(ctx context.Context, key string) (Lock, error) {
	s, err := concurrency.NewSession(o.client, o.opts...)
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, key)
	if err := m.Lock(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &ownSession{s, m}, nil
}

func (o *ownSessions) Close() error { return o.client.Close() }

type ownSession struct {
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func (o *ownSession) Unlock(ctx context.Context) error {
	return errors.Join(o.mutex.Unlock(ctx), o.session.Close())
}
