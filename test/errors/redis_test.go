package errors_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// onBoth makes the same faults for one server and for redlock on three.
func onBoth(fault func(t *testing.T, s *redisSet) scene, args ...string) (single, three procedure) {
	return func(t *testing.T) scene { return fault(t, startRedis(t, 1, args...)) },
		func(t *testing.T) scene { return fault(t, startRedis(t, 3, args...)) }
}

func redisRefused(t *testing.T, s *redisSet) scene {
	s.each(t, func(i int) error { return s.proxies[i].Shut() })
	return scene{locks: s.locks(t, "", ""), stored: s.stored}
}

func redisCutAndRefused(t *testing.T, s *redisSet) scene {
	locks := s.locks(t, "", "")
	warm(t, locks)
	s.each(t, func(i int) error { return s.proxies[i].Shut() })
	return scene{locks: locks, stored: s.stored}
}

func redisHung(t *testing.T, s *redisSet) scene {
	locks, waits := s.locks(t, "", ""), s.locks(t, "", "")
	warm(t, locks)
	warm(t, waits)
	sc := pauseRedis(t, s, locks)
	sc.waits = waits
	return sc
}

func redisHungAtFirst(t *testing.T, s *redisSet) scene {
	locks := s.locks(t, "", "")
	sc := pauseRedis(t, s, locks)
	paused := sc.stored
	sc.stored = func(t *testing.T, key string) bool {
		sc.heal(t)
		return paused(t, key)
	}
	return sc
}

func pauseRedis(t *testing.T, s *redisSet, locks *dlock.Client) scene {
	s.each(t, func(i int) error { return s.servers[i].Pause() })
	heal := func(t *testing.T) { s.each(t, func(i int) error { return s.servers[i].Resume() }) }
	t.Cleanup(func() {
		for _, server := range s.servers {
			_ = server.Resume()
		}
	})
	return scene{locks: locks, stored: s.stored, heal: heal}
}

// redisCut has scripts carried out and their connections cut, and lets nothing be cleaned
// up until it is healed.
func redisCut(t *testing.T, s *redisSet) scene {
	locks := s.answering(t, "", "")
	warm(t, locks)
	for _, p := range s.proxies {
		var acquire atomic.Pointer[string] // the script that comes first
		p.Intercept(func(cmd []string) faultproxy.Action {
			if !strings.HasPrefix(cmd[0], "EVAL") || (cmd[3] != "try" && cmd[3] != "wait") {
				return faultproxy.Forward
			}
			acquire.CompareAndSwap(nil, &cmd[1])
			if cmd[1] == *acquire.Load() {
				return faultproxy.DropReply
			}
			return faultproxy.Swallow
		})
	}
	return scene{locks: locks, stored: s.stored, keeps: true, heal: func(*testing.T) {
		for _, p := range s.proxies {
			p.Heal()
		}
	}}
}

func redisWrongPassword(t *testing.T, s *redisSet) scene {
	s.command(t, "ACL", "SETUSER", "locks", "on", ">right", "~*", "&*", "+@all")
	return scene{locks: s.answering(t, "locks", "wrong"), stored: s.stored}
}

func redisNoRights(t *testing.T, s *redisSet) scene {
	s.command(t, "ACL", "SETUSER", "weak", "on", ">secret", "~*", "+ping", "+hello")
	return scene{locks: s.answering(t, "weak", "secret"), stored: s.stored}
}

func redisReadOnly(t *testing.T, s *redisSet) scene {
	s.command(t, "REPLICAOF", "127.0.0.1", "1")
	return scene{locks: s.answering(t, "", ""), stored: s.stored}
}

// redisLoading has servers load keys slowly, for longer than the row takes.
func redisLoading(t *testing.T, s *redisSet) scene {
	locks := s.answering(t, "", "")
	warm(t, locks)
	s.command(t, "DEBUG", "POPULATE", 10_000, "key", 2048) // each is more than the interval
	s.command(t, "CONFIG", "SET", "key-load-delay", 10_000)
	s.command(t, "CONFIG", "SET", "loading-process-events-interval-bytes", 1024)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	for i := range s.servers {
		reload := s.servers[i].Client()
		t.Cleanup(func() { _ = reload.Close() })
		go reload.Do(ctx, "DEBUG", "RELOAD")
		testenv.Eventually(t, time.Minute, "the server loads", func() bool {
			return redis.IsLoadingError(s.direct[i].Get(t.Context(), "key").Err())
		})
	}
	return scene{locks: locks} // nothing can be read, nor written
}

func redisFull(t *testing.T, s *redisSet) scene {
	locks := s.answering(t, "", "")
	warm(t, locks)
	s.command(t, "CONFIG", "SET", "maxmemory", "1")
	return scene{locks: locks, stored: s.stored}
}

func redisClosed(t *testing.T, s *redisSet) scene {
	locks := s.locks(t, "", "")
	warm(t, locks)
	check(t, locks.Close())
	return scene{locks: locks, stored: s.stored}
}

func redisConnectorClosed(t *testing.T) scene {
	s := startRedis(t, 1)
	conn, err := connector.NewRedis(&connector.RedisConfig{Addr: s.proxies[0].Addr()})
	check(t, err)
	locks, err := dlock.NewRedis(conn, config())
	locks = keep(t, locks, err, conn)
	warm(t, locks)
	check(t, conn.Close())
	return scene{locks: locks, stored: s.stored}
}

// Sentinels.

func sentinelsRefused(t *testing.T) scene {
	return scene{locks: onRedis(t, connector.RedisConfig{Addrs: closedPorts(t, 3), MasterName: "main"})}
}

func sentinelMasterRefused(t *testing.T) scene {
	s := testenv.Sentinel(t)
	locks := onRedis(t, connector.RedisConfig{Addrs: s.SentinelAddrs(), MasterName: servers.MasterName})
	warm(t, locks)
	for _, node := range s.Nodes() { // so that there is no other to take over
		check(t, node.Kill())
	}
	return scene{locks: locks}
}

func sentinelUnknownMaster(t *testing.T) scene {
	s := testenv.Sentinel(t)
	return scene{locks: onRedis(t, connector.RedisConfig{Addrs: s.SentinelAddrs(), MasterName: "another"})}
}

// closedPorts are addresses where nothing listens any more.
func closedPorts(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for range n {
		p := testenv.Proxy(t, "127.0.0.1:1")
		addrs = append(addrs, p.Addr())
		check(t, p.Shut())
	}
	return addrs
}

// Clusters.

func clusterRefused(t *testing.T) scene {
	return scene{locks: onRedis(t, connector.RedisConfig{Addrs: closedPorts(t, 3), Cluster: true})}
}

func clusterMasterRefused(t *testing.T) scene {
	c := testenv.Cluster(t)
	locks := onRedis(t, connector.RedisConfig{Addrs: c.Addrs(), Cluster: true})
	warm(t, locks)
	for _, node := range c.Nodes() {
		check(t, node.Kill())
	}
	return scene{locks: locks}
}

func clusterDown(t *testing.T) scene {
	c := testenv.Cluster(t)
	locks := onRedis(t, connector.RedisConfig{Addrs: c.Addrs(), Cluster: true})
	warm(t, locks)
	for _, node := range c.Nodes() {
		client := node.Client()
		check(t, client.FlushAll(t.Context()).Err())
		check(t, client.Do(t.Context(), "CLUSTER", "FLUSHSLOTS").Err())
		_ = client.Close()
	}
	return scene{locks: locks}
}

func redlockMajorityRefused(t *testing.T) scene {
	s := startRedis(t, 3)
	check(t, s.proxies[0].Shut())
	check(t, s.proxies[1].Shut())
	return scene{locks: s.locks(t, "", ""), stored: s.stored, heal: func(*testing.T) {}}
}
