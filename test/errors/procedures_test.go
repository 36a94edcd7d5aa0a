package errors_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/connector"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/filelock"
)

// A procedure brings a fault about.
type procedure func(t *testing.T) scene

// procedures are by backend and fault, as the table names them.
var procedures = map[string]procedure{
	"redis, unknown host": func(t *testing.T) scene {
		return scene{locks: onRedis(t, connector.RedisConfig{Addr: noHost + ":6379"})}
	},
	"redis, connector closed":               redisConnectorClosed,
	"redis sentinel, refused":               sentinelsRefused,
	"redis sentinel, refused by the master": sentinelMasterRefused,
	"redis sentinel, unknown master":        sentinelUnknownMaster,
	"redis cluster, refused":                clusterRefused,
	"redis cluster, refused by all masters": clusterMasterRefused,
	"redis cluster, no leader":              clusterDown,
	"redlock, unknown host": func(t *testing.T) scene {
		return scene{locks: onRedlock(t, connector.RedlockConfig{Addrs: []string{"a." + noHost + ":1", "b." + noHost + ":1", "c." + noHost + ":1"}})}
	},
	"redlock, refused by a majority": redlockMajorityRefused,
	"etcd, refused": func(t *testing.T) scene {
		s := startEtcd(t)
		check(t, s.proxy.Shut())
		return scene{locks: s.locks(t, "", ""), stored: s.stored}
	},
	"etcd, refused later": func(t *testing.T) scene {
		s := startEtcd(t)
		conn := s.connect(t, "", "")
		locks := onConnected(t, conn)
		warm(t, locks)
		check(t, s.proxy.Shut())
		awaitRefusal(t, onConnected(t, conn))
		return scene{locks: locks, stored: s.stored}
	},
	"etcd, unknown host": func(t *testing.T) scene {
		return scene{locks: onEtcd(t, connector.EtcdConfig{Endpoints: []string{noHost + ":2379"}})}
	},
	"etcd, hung":              etcdHung,
	"etcd, hung at first":     etcdHungAtFirst,
	"etcd, cut in the middle": etcdCut,
	"etcd, wrong password":    func(t *testing.T) scene { return etcdUser(t, "weak", "wrong") },
	"etcd, no rights":         func(t *testing.T) scene { return etcdUser(t, "weak", "secret") },
	"etcd, out of space":      etcdFull,
	"etcd, no leader":         etcdNoLeader,
	"etcd, closed": func(t *testing.T) scene {
		s := startEtcd(t)
		locks := s.locks(t, "", "")
		check(t, locks.Close())
		return scene{locks: locks, stored: s.stored}
	},
	"etcd, connector closed": etcdConnectorClosed,
	"file, no rights": func(t *testing.T) scene {
		return scene{locks: onFiles(t, noRights(t))}
	},
	"file, read-only": func(t *testing.T) scene {
		dir := mountTmpfs(t)
		remountReadOnly(t, dir)
		return scene{locks: onFiles(t, filepath.Join(dir, "locks"))}
	},
	"file, out of space": func(t *testing.T) scene {
		dir := mountTmpfs(t)
		locks := onFiles(t, filepath.Join(dir, "locks"))
		warm(t, locks)
		_ = os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 1<<20), 0o600) // as far as it goes
		return scene{locks: locks}
	},
	"file, closed": func(t *testing.T) scene {
		locks := onFiles(t, t.TempDir())
		check(t, locks.Close())
		return scene{locks: locks}
	},
}

func init() {
	for fault, both := range map[string]func(*testing.T, *redisSet) scene{
		"refused": redisRefused, "refused later": redisCutAndRefused, "hung": redisHung, "hung at first": redisHungAtFirst,
		"cut in the middle": redisCut, "wrong password": redisWrongPassword, "no rights": redisNoRights,
		"read-only": redisReadOnly, "loading": redisLoading, "out of memory": redisFull, "closed": redisClosed,
	} {
		procedures["redis, "+fault], procedures["redlock, "+fault] = onBoth(both, "--enable-debug-command", "yes")
	}
}

func etcdHung(t *testing.T) scene {
	s := startEtcd(t)
	locks := s.locks(t, "", "")
	warm(t, locks)
	check(t, s.Pause())
	t.Cleanup(func() { _ = s.Resume() })
	return scene{locks: locks, stored: s.stored, heal: func(t *testing.T) { check(t, s.Resume()) }}
}

func etcdHungAtFirst(t *testing.T) scene {
	s := startEtcd(t)
	s.proxy.BlackHole(true)
	return scene{locks: s.locks(t, "", ""), stored: s.stored}
}

func etcdCut(t *testing.T) scene {
	s := startEtcd(t)
	locks := s.locks(t, "", "")
	warm(t, locks)
	s.proxy.DropGRPC("/etcdserverpb.KV/Txn", 1000)
	return scene{locks: locks, stored: s.stored, heal: func(*testing.T) { s.proxy.Heal() }}
}

// etcdUser has a user who may not do anything.
func etcdUser(t *testing.T, user, password string) scene {
	s := startEtcd(t, "--bcrypt-cost", "4")
	for _, step := range []func() error{
		func() error { _, err := s.direct.UserAdd(t.Context(), "root", "secret"); return err },
		func() error { _, err := s.direct.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := s.direct.UserAdd(t.Context(), "weak", "secret"); return err },
		func() error { _, err := s.direct.AuthEnable(t.Context()); return err },
	} {
		check(t, step())
	}
	root := dialEtcd(t, connector.EtcdConfig{Endpoints: []string{s.Endpoint()}, Username: "root", Password: "secret"})
	return scene{locks: s.locks(t, user, password), stored: func(t *testing.T, key string) bool { return etcdHas(t, root, key) }}
}

func etcdFull(t *testing.T) scene {
	s := startEtcd(t, "--quota-backend-bytes", "1000000")
	locks := s.locks(t, "", "")
	warm(t, locks)
	value := string(make([]byte, 100_000))
	for {
		_, err := s.direct.Put(t.Context(), "fill", value)
		if err != nil {
			break
		}
	}
	return scene{locks: locks, stored: s.stored}
}

// etcdNoLeader has a member that is cut off from the others, and knows it.
func etcdNoLeader(t *testing.T) scene {
	c := testenv.EtcdCluster(t)
	nodes := c.Nodes()
	locks := onEtcd(t, connector.EtcdConfig{Endpoints: []string{nodes[0].Endpoint()}})
	warm(t, locks)
	for _, n := range nodes[1:] {
		check(t, n.Kill())
	}
	direct := dialEtcd(t, connector.EtcdConfig{Endpoints: []string{nodes[0].Endpoint()}})
	testenv.Eventually(t, time.Minute, "the member knows that it has no leader", func() bool {
		st, err := direct.Status(t.Context(), nodes[0].Endpoint())
		return err == nil && st.Leader == 0
	})
	stored := func(t *testing.T, key string) bool {
		resp, err := direct.Get(t.Context(), key, clientv3.WithPrefix(), clientv3.WithSerializable())
		check(t, err)
		return resp.Count > 0
	}
	return scene{locks: locks, stored: stored}
}

func etcdConnectorClosed(t *testing.T) scene {
	s := startEtcd(t)
	conn, err := connector.NewEtcd(&connector.EtcdConfig{Endpoints: []string{s.proxy.Addr()}})
	check(t, err)
	locks, err := dlock.NewEtcd(conn, config())
	locks = keep(t, locks, err, conn)
	warm(t, locks)
	check(t, conn.Close())
	return scene{locks: locks, stored: s.stored}
}

func onFiles(t *testing.T, dir string) *dlock.Client {
	t.Helper()
	locks, err := dlock.New(config(), dlock.WithBackend(filelock.New(dir)))
	check(t, err)
	t.Cleanup(func() { _ = locks.Close() })
	return locks
}
