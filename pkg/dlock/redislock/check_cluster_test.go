package redislock_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// Check examines every master and names it; it finds one that no longer serves all keys.
func TestCheckCluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	tolerateStalls(t, cluster)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
	defer client.Close()
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(client)))
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	for _, addr := range cluster.Addrs() {
		if f := findingOf(t, locks, "slots", addr); f.Level != dlock.LevelOK || !strings.Contains(f.Detail, "16384 of 16384") {
			t.Errorf("%+v", f)
		}
		if f := findingOf(t, locks, "clock", addr); f.Level != dlock.LevelOK {
			t.Errorf("%+v", f)
		}
	}
	node := cluster.Nodes()[0]
	one := node.Client()
	defer one.Close()
	if err := one.Do(t.Context(), "CLUSTER", "DELSLOTS", 7).Err(); err != nil {
		t.Fatal(err)
	}
	if f := findingOf(t, locks, "slots", node.Addr()); f.Level != dlock.LevelUnsafe || !strings.Contains(f.Detail, "16383 of 16384") || f.Fix == "" {
		t.Errorf("%+v", f)
	}
}

// findingOf returns the finding of Check with this name for one server.
func findingOf(t *testing.T, locks *dlock.Client, name, addr string) dlock.Finding {
	t.Helper()
	findings, err := answered(t, func() ([]dlock.Finding, error) { return locks.Check(t.Context()) })
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Name == name && strings.HasPrefix(f.Detail, addr+": ") {
			return f
		}
	}
	t.Fatalf("no %s of %s in %+v", name, addr, findings)
	return dlock.Finding{}
}
