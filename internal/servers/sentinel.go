package servers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ceyewan/genesis/internal/loopback"
)

// MasterName is the name under which the sentinels monitor the master.
const MasterName = "mymaster"

const (
	sentinelCount  = 3
	sentinelQuorum = 2
)

// A Sentinel is a master with replicas, monitored by three sentinels that replace the master within
// a few seconds once it is dead or paused. Its methods may be called from any goroutine.
type Sentinel struct {
	data      []*Redis
	sentinels []*Redis
}

// StartSentinel returns when the replicas are in sync and every sentinel knows all of them and the
// other sentinels, so that a failover can start at once. It needs at least one replica to be
// useful.
func StartSentinel(ctx context.Context, replicas int) (*Sentinel, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := new(Sentinel)
	if err := s.start(ctx, replicas); err != nil {
		return nil, errors.Join(fmt.Errorf("start sentinel: %w", err), s.Stop())
	}
	return s, nil
}

func (s *Sentinel) start(ctx context.Context, replicas int) (err error) {
	plain := func(ctx context.Context) (*Redis, error) { return StartRedis(ctx, RedisOptions{}) }
	if s.data, err = startAll(ctx, 1+replicas, plain); err != nil {
		return err
	}
	// A sentinel learns of replicas when it first queries the master, so they must exist before it
	// starts.
	if err := s.replicate(ctx); err != nil {
		return err
	}
	watch := func(ctx context.Context) (*Redis, error) { return startSentinel(ctx, s.data[0]) }
	if s.sentinels, err = startAll(ctx, sentinelCount, watch); err != nil {
		return err
	}
	for _, node := range s.sentinels {
		if err := shortenPeriods(ctx, node); err != nil {
			return err
		}
	}
	return s.awaitKnown(ctx)
}

// replicate makes all servers except the first replicas of the first, in a way that survives a
// restart, and waits until they are in sync.
func (s *Sentinel) replicate(ctx context.Context) error {
	master := s.data[0]
	for _, node := range s.data[1:] {
		err := node.exec(ctx,
			[]any{"REPLICAOF", loopback.Host, master.ports[0].Number()},
			[]any{"CONFIG", "REWRITE"})
		if err != nil {
			return err
		}
	}
	return await(ctx, "replicas in sync", func(ctx context.Context) error {
		info, err := master.info(ctx, "replication")
		if err != nil {
			return err
		}
		if online := strings.Count(info, "state=online"); online != len(s.data)-1 {
			return fmt.Errorf("%d replicas online", online)
		}
		return nil
	})
}

// startSentinel starts one sentinel. It writes what it learns into its configuration file, so all
// settings are in the file and none in arguments.
func startSentinel(ctx context.Context, master *Redis) (*Redis, error) {
	const conf = "sentinel.conf"
	text := func(p []*loopback.Port) map[string]string {
		return map[string]string{conf: strings.Join([]string{
			"port " + p[0].String(),
			"bind " + loopback.Host,
			"protected-mode no",
			"dir .",
			fmt.Sprintf("sentinel monitor %s %s %v %d", MasterName, loopback.Host, master.ports[0], sentinelQuorum),
			"sentinel down-after-milliseconds " + MasterName + " 500",
			"sentinel failover-timeout " + MasterName + " 3000",
			"",
		}, "\n")}
	}
	return launchRedis(ctx, redisPlan{
		ports: 1,
		args:  func([]*loopback.Port) []string { return []string{conf, "--sentinel"} },
		files: text,
	})
}

// shortenPeriods shortens the periods that have no setting in the file. They last until the
// sentinel is restarted. The ping period must stay: the sentinel derives from it how long it trusts
// what it knows about a replica, and in a failover it queries replicas once a second whatever the
// periods are.
func shortenPeriods(ctx context.Context, sentinel *Redis) error {
	return sentinel.exec(ctx, []any{
		"SENTINEL", "DEBUG",
		"INFO-PERIOD", 200,
		"ASK-PERIOD", 200,
		"PUBLISH-PERIOD", 200,
		// A sentinel that did not run for a while distrusts its own view; on a busy machine that
		// must not mean half a minute without failover.
		"TILT-PERIOD", 1000,
		"ELECTION-TIMEOUT", 2000,
	})
}

// Stop ends all processes.
func (s *Sentinel) Stop() error {
	// Sentinels first: they would start a failover otherwise.
	return errors.Join(stopAll(s.sentinels), stopAll(s.data))
}

// SentinelAddrs returns the addresses for a failover client.
func (s *Sentinel) SentinelAddrs() []string { return addrs(s.sentinels) }

// Nodes returns the servers that hold data, whatever their current role.
func (s *Sentinel) Nodes() []*Redis { return slices.Clone(s.data) }

// Sentinels returns the sentinel processes.
func (s *Sentinel) Sentinels() []*Redis { return slices.Clone(s.sentinels) }

// Node returns the server or sentinel with this address, or nil if there is none.
func (s *Sentinel) Node(addr string) *Redis {
	if node := byAddr(s.data, addr); node != nil {
		return node
	}
	return byAddr(s.sentinels, addr)
}
