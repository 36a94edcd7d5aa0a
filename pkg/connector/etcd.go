package connector

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// An Etcd owns a client of an etcd cluster. Its methods may be called from any goroutine. Create it
// with NewEtcd; the methods of a zero Etcd return ErrConfigNil.
type Etcd struct {
	link   *link
	client *clientv3.Client
	dialer *dialer // for finding out why the client cannot connect
}

var _ dlock.EtcdConnector = (*Etcd)(nil)

// NewEtcd checks cfg and reads the files that it names. It touches no network, and does not keep
// cfg.
func NewEtcd(cfg *EtcdConfig, opts ...Option) (*Etcd, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o, err := collect(opts)
	if err != nil {
		return nil, err
	}
	if len(o.redis) > 0 {
		return nil, invalid("WithRedisLockOptions", "is not for etcd")
	}
	if len(o.redlock) > 0 {
		return nil, invalid("WithRedlockOptions", "is not for etcd")
	}
	full := cfg.withDefaults()
	var secure *tls.Config
	if full.secure() {
		if full.TLS == nil {
			full.TLS = &TLSConfig{}
		}
		if secure, err = full.TLS.load(); err != nil {
			return nil, err
		}
	}
	e := &Etcd{link: newLink("etcd", full.addrs(), full.ConnectTimeout, o.log, full.Password)}
	e.dialer = &dialer{lifetime: e.link.lifetime, timeout: full.DialTimeout, tls: secure}
	if e.client, err = newEtcdClient(&full, secure, o); err != nil {
		return nil, invalid("Endpoints", "are refused by the client: %w", e.link.redact(err))
	}
	e.link.ask, e.link.shut = e.read, e.client.Close
	if full.AutoSyncInterval > 0 {
		go e.syncMembers(full.AutoSyncInterval) // not by the client, whose user is set only now
	}
	return e, nil
}

// syncMembers asks the cluster for its members until the client is closed.
func (e *Etcd) syncMembers(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-e.client.Ctx().Done():
			return
		case <-ticker.C:
		}
		ctx, cancel := context.WithTimeout(e.client.Ctx(), syncTimeout)
		_ = e.client.Sync(ctx) // the members that are known stay
		cancel()
	}
}

// syncTimeout is how long the cluster may take to name its members.
const syncTimeout = 5 * time.Second

// reconnect is how a client reconnects to a member that was down. gRPC's default pauses for up to
// two minutes.
var reconnect = backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}

// newEtcdClient does no I/O. clientv3.New would do I/O for a user: it would request a token. With a
// token in its configuration it does not, and when the server refuses that token, the client
// requests another one with its user name and password.
func newEtcdClient(cfg *EtcdConfig, secure *tls.Config, o *options) (*clientv3.Client, error) {
	c := clientv3.Config{
		Endpoints:            cfg.Endpoints,
		TLS:                  secure,
		DialTimeout:          cfg.DialTimeout,
		DialKeepAliveTime:    cfg.DialKeepAliveTime,
		DialKeepAliveTimeout: cfg.DialKeepAliveTimeout,
		Logger:               zapLogger(o.log),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: cfg.DialTimeout}),
		},
	}
	if secure != nil && secure.ServerName != "" {
		c.DialOptions = append(c.DialOptions, grpc.WithAuthority(secure.ServerName)) // else the endpoint's name wins
	}
	if cfg.Username != "" {
		c.Token = "none yet"
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, err
	}
	client.Token, client.Username, client.Password = "", cfg.Username, cfg.Password
	return client, nil
}

// Connect checks whether some member answers, has a leader and accepts the credentials. It does not
// check what the user may do; that shows only when the user does it. Connect returns within
// ConnectTimeout and when ctx ends. Calling it is optional, and each call checks again.
func (e *Etcd) Connect(ctx context.Context) error { return e.link.connect(ctx) }

// HealthCheck is Connect for frequent checks.
func (e *Etcd) HealthCheck(ctx context.Context) error { return e.link.try(ctx, "health check") }

// Client returns the client. The connector still owns it: do not close it.
func (e *Etcd) Client() *clientv3.Client { return e.client }

// EtcdLocks is for dlock.NewEtcd.
func (e *Etcd) EtcdLocks() driver.Opener { return etcdlock.New(e.client) }

// Close closes the client. Calls in progress end with an error. A second Close does nothing.
func (e *Etcd) Close() error { return e.link.close() }

// String describes the connection without secrets.
func (e *Etcd) String() string { return e.link.describe() }

// GoString is String.
func (e *Etcd) GoString() string { return e.String() }

// read reads a key that need not exist and that the user need not be allowed to read. It bypasses
// the client's own methods, which would wait for a connection until the context ends.
func (e *Etcd) read(ctx context.Context) error {
	kv := pb.NewKVClient(e.client.ActiveConnection())
	_, err := kv.Range(clientv3.WithRequireLeader(ctx), &pb.RangeRequest{Key: []byte("health"), CountOnly: true})
	err = rpctypes.Error(err)
	switch {
	case err == nil, errors.Is(err, rpctypes.ErrPermissionDenied):
		return nil
	case status.Code(err) == codes.Unavailable:
		return e.unreached(ctx, err)
	}
	return typed(e.link.redact(err), etcdKind(err))
}

// unreached finds out why there is no connection: gRPC reports only a text.
func (e *Etcd) unreached(ctx context.Context, err error) error {
	shown := e.link.redact(err)
	cause := e.dialer.explain(ctx, e.link.addrs)
	switch {
	case cause == nil:
		return typed(shown, ErrUnreachable)
	case shown.Error() != err.Error(): // gRPC says no more than the cause
		return cause
	}
	return fmt.Errorf("%w (%w)", cause, err)
}

func etcdKind(err error) error {
	var reply rpctypes.EtcdError
	switch {
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrUserEmpty):
		return ErrDenied
	case !errors.As(err, &reply):
		return nil
	}
	switch reply.Code() {
	case codes.Unauthenticated, codes.PermissionDenied:
		return ErrDenied
	case codes.Unavailable, codes.ResourceExhausted:
		return ErrNotReady
	default:
		return nil
	}
}
