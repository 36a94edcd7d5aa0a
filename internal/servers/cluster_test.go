package servers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

func clusterClient(t *testing.T, c *servers.Cluster) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: c.Addrs(),
		// A node that refuses connections does not make the client reload the slots; it reloads
		// them only at an interval, by default a minute.
		ClusterStateReloadInterval: 200 * time.Millisecond,
	})
	t.Cleanup(func() { client.Close() })
	return client
}

// otherMaster returns a master other than this one.
func otherMaster(t *testing.T, c *servers.Cluster, not *servers.Redis) *servers.Redis {
	t.Helper()
	masters, err := c.Masters(t.Context())
	check(t, err)
	for _, node := range masters {
		if node != not {
			return node
		}
	}
	t.Fatal("there is no other master")
	return nil
}

func TestClusterSpreadsAndMigrates(t *testing.T) {
	t.Parallel()
	c := testenv.Cluster(t)
	client := clusterClient(t, c)
	owners := make(map[*servers.Redis]bool)
	for i := range 50 {
		key := fmt.Sprint("key", i)
		check(t, client.Set(t.Context(), key, key, 0).Err())
		node, err := c.NodeFor(t.Context(), key)
		check(t, err)
		owners[node] = true
		if got := get(t, clientOf(t, node), key); got != key {
			t.Fatalf("%s at its node is %q", key, got)
		}
	}
	if len(owners) != 3 {
		t.Errorf("%d nodes hold keys", len(owners))
	}
	migrateAtOnce(t, c, client)
	migrateHalf(t, c, client)
}

func migrateAtOnce(t *testing.T, c *servers.Cluster, client *redis.ClusterClient) {
	from, err := c.NodeFor(t.Context(), "key1")
	check(t, err)
	slot, err := c.Slot(t.Context(), "key1")
	check(t, err)
	to := otherMaster(t, c, from)
	check(t, c.MigrateSlot(t.Context(), slot, from, to))
	if got := get(t, client, "key1"); got != "key1" {
		t.Errorf("after the migration key1 is %q", got)
	}
	if got := get(t, clientOf(t, to), "key1"); got != "key1" {
		t.Errorf("at its new master key1 is %q", got)
	}
	if err := clientOf(t, from).Get(t.Context(), "key1").Err(); !redis.HasErrorPrefix(err, "MOVED") {
		t.Errorf("the old master says %v", err)
	}
	if now, err := c.NodeFor(t.Context(), "key1"); err != nil || now != to {
		t.Errorf("key1 belongs to %v, %v", now, err)
	}
}

func migrateHalf(t *testing.T, c *servers.Cluster, client *redis.ClusterClient) {
	ctx := t.Context()
	check(t, client.MSet(ctx, "{half}a", 1, "{half}b", 2).Err())
	from, err := c.NodeFor(ctx, "{half}a")
	check(t, err)
	slot, err := c.Slot(ctx, "{half}a")
	check(t, err)
	to := otherMaster(t, c, from)
	check(t, c.BeginMigration(ctx, slot, from, to))
	check(t, c.MoveKeys(ctx, from, to, "{half}a"))

	direct := clientOf(t, from)
	if err := direct.Get(ctx, "{half}a").Err(); !redis.HasErrorPrefix(err, "ASK") {
		t.Errorf("a moved key: %v", err)
	}
	if err := direct.MGet(ctx, "{half}a", "{half}b").Err(); !redis.HasErrorPrefix(err, "TRYAGAIN") {
		t.Errorf("half of the keys moved: %v", err)
	}
	if a, b := get(t, client, "{half}a"), get(t, client, "{half}b"); a != "1" || b != "2" {
		t.Errorf("a client that follows sees %q and %q", a, b)
	}

	check(t, c.MoveSlotKeys(ctx, slot, from, to))
	check(t, c.FinishMigration(ctx, slot, from, to))
	if a, b := get(t, clientOf(t, to), "{half}a"), get(t, clientOf(t, to), "{half}b"); a != "1" || b != "2" {
		t.Errorf("the new master has %q and %q", a, b)
	}
}

func TestClusterCancelAndFailover(t *testing.T) {
	t.Parallel()
	c := testenv.ClusterWithReplicas(t, 1)
	ctx := t.Context()
	from, err := c.NodeFor(ctx, "key")
	check(t, err)
	slot, err := c.Slot(ctx, "key")
	check(t, err)
	to := otherMaster(t, c, from)
	check(t, c.BeginMigration(ctx, slot, from, to))
	if err := clientOf(t, from).Get(ctx, "key").Err(); !redis.HasErrorPrefix(err, "ASK") {
		t.Errorf("in the middle: %v", err)
	}
	check(t, c.CancelMigration(ctx, slot, from, to))
	// WAIT covers what its own connection has written.
	direct := clientOf(t, from)
	check(t, direct.Set(ctx, "key", "value", 0).Err())
	check(t, direct.Do(ctx, "WAIT", 1, 0).Err())
	promoteReplica(t, c, from)
}

// promoteReplica kills the master of "key" and expects its replica to serve.
func promoteReplica(t *testing.T, c *servers.Cluster, master *servers.Redis) {
	client := clusterClient(t, c)
	check(t, master.Kill())
	testenv.Eventually(t, patience, "a replica serves the key", func() bool {
		return client.Get(t.Context(), "key").Val() == "value"
	})
	var now *servers.Redis
	testenv.Eventually(t, patience, "the nodes agree on a new master", func() bool {
		var err error
		now, err = c.NodeFor(t.Context(), "key")
		return err == nil && now != master
	})
	info := clientOf(t, now).Info(t.Context(), "replication").Val()
	if !strings.Contains(info, "role:master") {
		t.Errorf("%s serves the key as\n%s", now.Addr(), info)
	}
}
