package servers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/loopback"
)

const (
	clusterMasters = 3
	clusterSlots   = 16384
)

// A Cluster is a Redis Cluster of three masters, each with the same number of
// replicas, on loopback. Its methods may be called from any goroutine.
type Cluster struct {
	nodes []*Redis // the first three started as masters
	ids   []string // cluster node ids, in the same order; they never change
}

// StartCluster returns when every node reports that the cluster is complete and every replica is in
// sync. That takes at least two seconds: a new node refuses writes for that time.
func StartCluster(ctx context.Context, replicasPerMaster int) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := new(Cluster)
	if err := c.start(ctx, clusterMasters*(1+replicasPerMaster)); err != nil {
		return nil, errors.Join(fmt.Errorf("start cluster: %w", err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, size int) (err error) {
	if c.nodes, err = startAll(ctx, size, startClusterNode); err != nil {
		return err
	}
	steps := []func(context.Context) error{
		c.learnIDs, c.assignSlots, c.meet, c.awaitMet, c.replicate, c.awaitComplete,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func startClusterNode(ctx context.Context) (*Redis, error) {
	return launchRedis(ctx, redisPlan{
		ports: 2,
		args: func(p []*loopback.Port) []string {
			return dataArgs(p[0], []string{
				"--cluster-enabled", "yes",
				"--cluster-config-file", "nodes.conf",
				// The default is the client port plus 10000, which is not reserved.
				"--cluster-port", p[1].String(),
				"--cluster-announce-ip", loopback.Host,
				"--cluster-node-timeout", "1000",
			})
		},
		files: func([]*loopback.Port) map[string]string { return map[string]string{redisConf: ""} },
	})
}

func (c *Cluster) learnIDs(ctx context.Context) error {
	for _, node := range c.nodes {
		id, err := onNode(ctx, node, func(ctx context.Context, client *redis.Client) (string, error) {
			return client.ClusterMyID(ctx).Result()
		})
		if err != nil {
			return err
		}
		c.ids = append(c.ids, id)
	}
	return nil
}

// assignSlots gives each master its share of the slots, and each node its own epoch, so that the
// nodes need not resolve collisions when they meet.
func (c *Cluster) assignSlots(ctx context.Context) error {
	for i, node := range c.nodes {
		commands := [][]any{{"CLUSTER", "SET-CONFIG-EPOCH", i + 1}}
		if i < clusterMasters {
			first, last := i*clusterSlots/clusterMasters, (i+1)*clusterSlots/clusterMasters-1
			commands = append(commands, []any{"CLUSTER", "ADDSLOTSRANGE", first, last})
		}
		if err := node.exec(ctx, commands...); err != nil {
			return err
		}
	}
	return nil
}

// meet introduces every node to every other: gossip after a single introduction would reach the
// same state, but more slowly.
func (c *Cluster) meet(ctx context.Context) error {
	for i, node := range c.nodes {
		for _, other := range c.nodes[i+1:] {
			err := node.exec(ctx, []any{"CLUSTER", "MEET", loopback.Host, other.ports[0].Number(), other.ports[1].Number()})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitMet waits until every node knows every other by its ID: until the handshake is done, a node
// has a temporary ID.
func (c *Cluster) awaitMet(ctx context.Context) error {
	return c.awaitEach(ctx, "all nodes met", func(ctx context.Context, client *redis.Client) error {
		text, err := client.ClusterNodes(ctx).Result()
		if err != nil {
			return err
		}
		for _, id := range c.ids {
			if !strings.Contains(text, id) {
				return fmt.Errorf("node %s is not known", id)
			}
		}
		return nil
	})
}

func (c *Cluster) replicate(ctx context.Context) error {
	for i, node := range c.nodes[clusterMasters:] {
		master := c.ids[i%clusterMasters]
		if err := node.exec(ctx, []any{"CLUSTER", "REPLICATE", master}); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) awaitComplete(ctx context.Context) error {
	replicas := len(c.nodes) - clusterMasters
	return c.awaitEach(ctx, "cluster_state:ok", func(ctx context.Context, client *redis.Client) error {
		info, err := client.ClusterInfo(ctx).Result()
		if err != nil {
			return err
		}
		if infoField(info, "cluster_state") != "ok" ||
			infoField(info, "cluster_known_nodes") != strconv.Itoa(len(c.nodes)) ||
			infoField(info, "cluster_slots_ok") != strconv.Itoa(clusterSlots) {
			return errors.New(info)
		}
		nodes, err := client.ClusterNodes(ctx).Result()
		if got := strings.Count(nodes, "slave "); err == nil && got != replicas {
			return fmt.Errorf("%d replicas known", got)
		}
		if err != nil {
			return err
		}
		return inSync(ctx, client)
	})
}

// inSync returns nil for a master and for a replica with a working link.
func inSync(ctx context.Context, client *redis.Client) error {
	info, err := client.Info(ctx, "replication").Result()
	if err != nil {
		return err
	}
	if infoField(info, "role") == "slave" && infoField(info, "master_link_status") != "up" {
		return errors.New("the replica is not in sync")
	}
	return nil
}

// awaitEach waits until cond returns nil at every node.
func (c *Cluster) awaitEach(ctx context.Context, what string, cond func(context.Context, *redis.Client) error) error {
	for _, node := range c.nodes {
		_, err := onNode(ctx, node, func(ctx context.Context, client *redis.Client) (struct{}, error) {
			return struct{}{}, await(ctx, what+" at "+node.Addr(), func(ctx context.Context) error {
				return cond(ctx, client)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Stop ends all processes.
func (c *Cluster) Stop() error { return stopAll(c.nodes) }

// Nodes returns all servers; the first three started as masters.
func (c *Cluster) Nodes() []*Redis { return slices.Clone(c.nodes) }

// Addrs returns the addresses of all nodes, for a cluster client.
func (c *Cluster) Addrs() []string { return addrs(c.nodes) }

// Node returns the server with this address, or nil if there is none.
func (c *Cluster) Node(addr string) *Redis { return byAddr(c.nodes, addr) }
