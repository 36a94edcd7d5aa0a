package dlock_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// redisFunc is a connector that is not a pointer.
type redisFunc func() driver.Opener

func (f redisFunc) RedisLocks() driver.Opener { return f() }

// What a backend is given and cannot use is an error of New that says which kind of mistake it
// is, and never a panic.
func TestUnusableBackends(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = client.Close() }()
	other := redis.NewClient(&redis.Options{Addr: "127.0.0.1:2"})
	defer func() { _ = other.Close() }()
	servers := func(all ...redis.UniversalClient) []redis.UniversalClient { return all }
	for name, tc := range map[string]struct {
		option func() dlock.Option
		want   error
	}{
		"no backend":                   {func() dlock.Option { return dlock.WithBackend(nil) }, dlock.ErrConnectorNil},
		"nil store":                    {func() dlock.Option { return dlock.WithBackend((*memlock.Store)(nil)) }, dlock.ErrConnectorNil},
		"nil connector":                {func() dlock.Option { return dlock.WithRedisConnector(nil) }, dlock.ErrConnectorNil},
		"nil connector of a func type": {func() dlock.Option { return dlock.WithRedisConnector(redisFunc(nil)) }, dlock.ErrConnectorNil},
		"redislock, nil client":        {func() dlock.Option { return dlock.WithBackend(redislock.New(nil)) }, dlock.ErrConnectorNil},
		"redislock, typed nil client":  {func() dlock.Option { return dlock.WithBackend(redislock.New((*redis.Client)(nil))) }, dlock.ErrConnectorNil},
		"redislock, typed nil cluster": {func() dlock.Option { return dlock.WithBackend(redislock.New((*redis.ClusterClient)(nil))) }, dlock.ErrConnectorNil},
		"redislock, typed nil ring":    {func() dlock.Option { return dlock.WithBackend(redislock.New((*redis.Ring)(nil))) }, dlock.ErrConnectorNil},
		"redislock, nil option":        {func() dlock.Option { return dlock.WithBackend(redislock.New(client, nil)) }, dlock.ErrInvalidConfig},
		"redislock, replicas": {func() dlock.Option {
			return dlock.WithBackend(redislock.New(client, redislock.WithMinReplicas(-1, time.Second)))
		}, dlock.ErrInvalidConfig},
		"redislock, gap":            {func() dlock.Option { return dlock.WithBackend(redislock.New(client, redislock.WithPlainClients(-1))) }, dlock.ErrInvalidConfig},
		"etcdlock, nil client":      {func() dlock.Option { return dlock.WithBackend(etcdlock.New(nil)) }, dlock.ErrConnectorNil},
		"etcdlock, nil option":      {func() dlock.Option { return dlock.WithBackend(etcdlock.New(nil, nil)) }, dlock.ErrInvalidConfig},
		"redlock, no clients":       {func() dlock.Option { return dlock.WithBackend(redlock.New(nil)) }, dlock.ErrInvalidConfig},
		"redlock, two clients":      {func() dlock.Option { return dlock.WithBackend(redlock.New(servers(client, other))) }, dlock.ErrInvalidConfig},
		"redlock, one client twice": {func() dlock.Option { return dlock.WithBackend(redlock.New(servers(client, other, client))) }, dlock.ErrInvalidConfig},
		"redlock, nil client":       {func() dlock.Option { return dlock.WithBackend(redlock.New(servers(client, nil, other))) }, dlock.ErrConnectorNil},
		"redlock, typed nil client": {func() dlock.Option {
			return dlock.WithBackend(redlock.New(servers(client, (*redis.Client)(nil), other)))
		}, dlock.ErrConnectorNil},
		"redlock, nil option": {func() dlock.Option { return dlock.WithBackend(redlock.New(nil, nil)) }, dlock.ErrInvalidConfig},
		"redlock, drift": {func() dlock.Option {
			return dlock.WithBackend(redlock.New(servers(client, other, client), redlock.WithDrift(math.NaN())))
		}, dlock.ErrInvalidConfig},
		"redlock, node timeout": {func() dlock.Option {
			return dlock.WithBackend(redlock.New(servers(client, other, client), redlock.WithNodeTimeout(-1)))
		}, dlock.ErrInvalidConfig},
		"filelock, no directory": {func() dlock.Option { return dlock.WithBackend(filelock.New("")) }, dlock.ErrInvalidConfig},
		"filelock, nil option":   {func() dlock.Option { return dlock.WithBackend(filelock.New(t.TempDir(), nil)) }, dlock.ErrInvalidConfig},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("panic: %v", p)
				}
			}()
			c, err := dlock.New(&dlock.Config{}, tc.option())
			if c != nil || !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

// The errors that backends export have codes, and say in words that all backends share what
// they are.
func TestSentinelsOfBackends(t *testing.T) {
	for name, tc := range map[string]struct {
		err, kind error
		code      string
	}{
		"redislock.ErrOutOfMemory":     {redislock.ErrOutOfMemory, dlock.ErrNotReady, "not_ready"},
		"redislock.ErrTooFewReplicas":  {redislock.ErrTooFewReplicas, dlock.ErrNotReady, "not_ready"},
		"redislock.ErrQueueFull":       {redislock.ErrQueueFull, dlock.ErrNotReady, "not_ready"},
		"redislock.ErrUnexpectedReply": {redislock.ErrUnexpectedReply, dlock.ErrNotReady, "unexpected_reply"},
		"redislock.ErrNotALock":        {redislock.ErrNotALock, driver.ErrNotALock, "not_a_lock"},
		"redlock.ErrInvalidServers":    {redlock.ErrInvalidServers, dlock.ErrInvalidConfig, "invalid_servers"},
		"redlock.ErrNoQuorum":          {redlock.ErrNoQuorum, redlock.ErrNoQuorum, "no_quorum"}, // its kind is that of its cause
		"redlock.ErrLeaseExpired":      {redlock.ErrLeaseExpired, dlock.ErrNotReady, "lease_expired"},
		"redlock.ErrUnexpectedReply":   {redlock.ErrUnexpectedReply, redislock.ErrUnexpectedReply, "unexpected_reply"},
		"redlock.ErrOutOfMemory":       {redlock.ErrOutOfMemory, dlock.ErrNotReady, "not_ready"},
		"etcdlock.ErrNoSpace":          {etcdlock.ErrNoSpace, dlock.ErrNotReady, "not_ready"},
		"filelock.ErrInsecureDir":      {filelock.ErrInsecureDir, dlock.ErrDenied, "insecure_dir"},
		"filelock.ErrNetworkFS":        {filelock.ErrNetworkFS, dlock.ErrUnsupported, "unsupported"},
		"driver.ErrConnectorNil":       {driver.ErrConnectorNil, dlock.ErrConnectorNil, "connector_nil"},
	} {
		if code := xerrors.CodeOf(tc.err); code != tc.code || !errors.Is(tc.err, tc.kind) {
			t.Errorf("%s: code %q, want %q; is %v: %v", name, code, tc.code, tc.kind, errors.Is(tc.err, tc.kind))
		}
	}
}
