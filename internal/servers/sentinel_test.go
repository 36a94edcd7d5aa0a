package servers_test

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	s := testenv.Sentinel(t)
	master, err := s.Master(t.Context())
	check(t, err)
	replicas, err := s.Replicas(t.Context())
	check(t, err)
	if len(replicas) != 2 || slices.Contains(replicas, master) || s.Node(master.Addr()) != master {
		t.Fatalf("master %s, replicas %v", master.Addr(), replicas)
	}
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:    servers.MasterName,
		SentinelAddrs: s.SentinelAddrs(),
	})
	defer client.Close()
	check(t, client.Set(t.Context(), "key", "value", 0).Err())
	check(t, client.Do(t.Context(), "WAIT", 2, 0).Err())

	old, err := s.KillMaster(t.Context())
	check(t, err)
	if old != master || old.Running() {
		t.Fatal("not the master was killed")
	}
	promoted, err := s.AwaitFailover(within(t, patience), old)
	check(t, err)
	if !slices.Contains(replicas, promoted) {
		t.Fatalf("%s was no replica", promoted.Addr())
	}
	testenv.Eventually(t, patience, "the client writes to the new master", func() bool {
		return client.Set(t.Context(), "later", "value", 0).Err() == nil
	})
	direct := clientOf(t, promoted)
	if get(t, direct, "key") != "value" || get(t, direct, "later") != "value" {
		t.Error("the new master lacks the data")
	}

	check(t, old.Restart(t.Context(), false))
	demoted := clientOf(t, old)
	testenv.Eventually(t, patience, "the old master follows the new one", func() bool {
		return demoted.Get(t.Context(), "later").Val() == "value"
	})
}
