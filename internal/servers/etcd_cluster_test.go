package servers_test

import (
	"context"
	"slices"
	"testing"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

func leaderOf(t *testing.T, c *servers.EtcdCluster) *servers.Etcd {
	t.Helper()
	leader, err := c.WaitLeader(within(t, patience))
	check(t, err)
	return leader
}

func TestEtcdClusterReplicates(t *testing.T) {
	t.Parallel()
	c := testenv.EtcdCluster(t)
	if len(c.Nodes()) != 3 || len(c.Endpoints()) != 3 || !slices.Contains(c.Nodes(), leaderOf(t, c)) {
		t.Fatalf("%d nodes, %d endpoints", len(c.Nodes()), len(c.Endpoints()))
	}
	etcdPut(t, etcdClient(t, c.Endpoints()[0]), "key", "value")
	for _, endpoint := range c.Endpoints() {
		if got := etcdGet(t, etcdClient(t, endpoint), "key"); got != "value" {
			t.Errorf("%s has %q", endpoint, got)
		}
	}
}

// For a moment, the old leader of these tests is still the leader according to the others.
func TestEtcdClusterReplacesItsLeader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		end, back func(*servers.Etcd) error
	}{
		{"killed", (*servers.Etcd).Kill, func(e *servers.Etcd) error { return e.Restart(context.Background(), true) }},
		{"paused", (*servers.Etcd).Pause, (*servers.Etcd).Resume},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := testenv.EtcdCluster(t)
			client := etcdClient(t, cluster.Endpoints()...)
			etcdPut(t, client, "key", "value")
			old := leaderOf(t, cluster)
			check(t, c.end(old))
			leader := leaderOf(t, cluster)
			if leader == old {
				t.Fatal("it leads still")
			}
			if got := etcdGet(t, etcdClient(t, leader.Endpoint()), "key"); got != "value" {
				t.Errorf("the new leader has %q", got)
			}
			check(t, c.back(old))
			if got := etcdGet(t, etcdClient(t, old.Endpoint()), "key"); got != "value" {
				t.Errorf("the old leader has %q", got)
			}
		})
	}
}

func TestEtcdClusterWithoutMajority(t *testing.T) {
	t.Parallel()
	c := testenv.EtcdCluster(t)
	leader := leaderOf(t, c)
	dead := slices.DeleteFunc(c.Nodes(), func(e *servers.Etcd) bool { return e == leader })
	for _, node := range dead {
		check(t, node.Kill())
	}
	if found, err := c.Leader(t.Context()); err == nil {
		t.Errorf("%s leads no member", found.Addr())
	}
	if _, err := etcdClient(t, leader.Endpoint()).Put(within(t, soon), "key", "value"); err == nil {
		t.Error("a write without majority succeeds")
	}
	check(t, dead[0].Restart(t.Context(), true))
	leaderOf(t, c)
}

func TestEtcdClusterRestart(t *testing.T) {
	t.Parallel()
	c := testenv.EtcdCluster(t)
	etcdPut(t, etcdClient(t, c.Endpoints()...), "key", "value")
	if err := c.Nodes()[0].Restart(t.Context(), false); err == nil {
		t.Error("a member came back without data")
	}
	for _, keep := range []bool{true, false} {
		check(t, c.Restart(t.Context(), keep))
		got := etcdGet(t, etcdClient(t, c.Endpoints()...), "key")
		if keep != (got == "value") {
			t.Errorf("keeping data %v: %q", keep, got)
		}
	}
}

func TestNothingRemainsOfEtcdCluster(t *testing.T) {
	t.Parallel()
	c := testenv.EtcdCluster(t)
	check(t, c.Nodes()[0].Pause())
	check(t, c.Nodes()[1].Kill())
	check(t, c.Stop())
	for _, node := range c.Nodes() {
		checkNothingRemains(t, node)
	}
}
