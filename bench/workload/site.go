package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
	"github.com/ceyewan/genesis/internal/servers"
)

// A Site is the servers of a run, and three ways to reach them: directly; through
// proxies that count requests; and through proxies that hold everything back, since
// loopback hides what a round trip costs.
type Site struct {
	Direct, Counted, Slow peer.Env

	redis   *servers.Redis
	redlock []*servers.Redis
	etcd    *servers.Etcd
	echo    *Worker
	counted *Worker
	slow    *Worker
	dir     string
}

// oneWay makes a round trip of 1 ms.
const oneWay = 500 * time.Microsecond

// redlockNodes is how many independent servers Redlock has.
const redlockNodes = 5

// StartSite starts everything. What is started ends with this process at the latest.
func StartSite(ctx context.Context) (*Site, error) {
	s := &Site{}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Site) start(ctx context.Context) (err error) {
	if s.dir, err = os.MkdirTemp("", "dlock-bench-"); err != nil {
		return err
	}
	if s.redis, err = servers.StartRedis(ctx, servers.RedisOptions{}); err != nil {
		return err
	}
	for range redlockNodes {
		node, err := servers.StartRedis(ctx, servers.RedisOptions{})
		if err != nil {
			return err
		}
		s.redlock = append(s.redlock, node)
	}
	if s.etcd, err = servers.StartEtcd(ctx, servers.EtcdOptions{Fsync: true, Election: time.Second}); err != nil {
		return err
	}
	if err := s.startEcho(ctx); err != nil {
		return err
	}
	return s.startNetworks(ctx)
}

func (s *Site) startEcho(ctx context.Context) (err error) {
	if s.echo, err = StartWorker(); err != nil {
		return err
	}
	s.Direct = peer.Env{Redis: s.redis.Addr(), Etcd: s.etcd.Addr(), Dir: filepath.Join(s.dir, "locks")}
	for _, node := range s.redlock {
		s.Direct.Redlock = append(s.Direct.Redlock, node.Addr())
	}
	return s.echo.Call(ctx, 0, "echo", nothing{}, &s.Direct.Echo)
}

func (s *Site) startNetworks(ctx context.Context) (err error) {
	if s.counted, s.Counted, err = s.network(ctx, 0); err != nil {
		return err
	}
	s.slow, s.Slow, err = s.network(ctx, oneWay)
	return err
}

// network puts a proxy before each server. It is another process, so that its work is
// not counted as a client's.
func (s *Site) network(ctx context.Context, delay time.Duration) (*Worker, peer.Env, error) {
	w, err := StartWorker()
	if err != nil {
		return nil, peer.Env{}, err
	}
	d := s.Direct
	var addrs []string
	err = w.Call(ctx, 0, "network", Network{append([]string{d.Redis, d.Etcd, d.Echo}, d.Redlock...), delay}, &addrs)
	if err != nil {
		return w, peer.Env{}, err
	}
	return w, peer.Env{Redis: addrs[0], Etcd: addrs[1], Echo: addrs[2], Redlock: addrs[3:], Dir: d.Dir}, nil
}

// requests is how many requests the counting proxies have seen.
func (s *Site) requests(ctx context.Context) (n int64, err error) {
	err = s.counted.Call(ctx, 0, "requests", nothing{}, &n)
	return n, err
}

// pids are the processes of a backend.
func (s *Site) pids(backend string) []int {
	switch backend {
	case "redis":
		return []int{s.redis.Pid()}
	case "etcd":
		return []int{s.etcd.Pid()}
	case "tcp":
		return []int{s.echo.Pid()}
	case "redlock":
		var pids []int
		for _, node := range s.redlock {
			pids = append(pids, node.Pid())
		}
		return pids
	}
	return nil // files have no server
}

// sweep empties the Redis servers, so that no workload pays for what another left.
func (s *Site) sweep(ctx context.Context) error {
	for _, node := range append([]*servers.Redis{s.redis}, s.redlock...) {
		c := node.Client()
		err := errors.Join(c.FlushAll(ctx).Err(), c.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

// Versions of the servers.
func (s *Site) Versions(ctx context.Context) map[string]string {
	c := s.redis.Client()
	defer func() { _ = c.Close() }()
	versions := map[string]string{}
	if info := c.InfoMap(ctx, "server").Val(); info != nil {
		versions["redis"] = info["Server"]["redis_version"]
	}
	if v, err := etcdVersion(ctx, s.etcd.Endpoint()); err == nil {
		versions["etcd"] = v
	}
	return versions
}

// witness is a fresh file for one round.
func (s *Site) witness(round int) string {
	return filepath.Join(s.dir, fmt.Sprintf("witness-%d-%d", round, time.Now().UnixNano()))
}

// Stop ends all processes.
func (s *Site) Stop() error {
	for _, w := range []*Worker{s.echo, s.counted, s.slow} {
		if w != nil {
			w.Close()
		}
	}
	var errs []error
	for _, node := range s.redlock {
		errs = append(errs, node.Stop())
	}
	if s.redis != nil {
		errs = append(errs, s.redis.Stop())
	}
	if s.etcd != nil {
		errs = append(errs, s.etcd.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}
