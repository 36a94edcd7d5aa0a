package servers

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/loopback"
)

// Slot returns the hash slot of a key.
func (c *Cluster) Slot(ctx context.Context, key string) (int, error) {
	return onAny(ctx, c.nodes, func(ctx context.Context, client *redis.Client) (int, error) {
		slot, err := client.ClusterKeySlot(ctx, key).Result()
		return int(slot), err
	})
}

// NodeFor returns the master that serves the key, according to the first node that answers.
func (c *Cluster) NodeFor(ctx context.Context, key string) (*Redis, error) {
	slot, err := c.Slot(ctx, key)
	if err != nil {
		return nil, err
	}
	return c.Owner(ctx, slot)
}

// Owner returns the master that serves the slot.
func (c *Cluster) Owner(ctx context.Context, slot int) (*Redis, error) {
	ranges, err := onAny(ctx, c.nodes, func(ctx context.Context, client *redis.Client) ([]redis.ClusterSlot, error) {
		return client.ClusterSlots(ctx).Result() //nolint:staticcheck // its successor does not exist before Redis 7
	})
	if err != nil {
		return nil, err
	}
	for _, r := range ranges {
		if r.Start <= slot && slot <= r.End && len(r.Nodes) > 0 {
			if node := c.Node(r.Nodes[0].Addr); node != nil {
				return node, nil
			}
		}
	}
	return nil, fmt.Errorf("no node serves slot %d", slot)
}

// Masters returns the nodes that are masters now, according to each running node itself.
func (c *Cluster) Masters(ctx context.Context) ([]*Redis, error) {
	var masters []*Redis
	for _, node := range c.nodes {
		if !node.Running() {
			continue
		}
		info, err := node.info(ctx, "replication")
		if err != nil {
			return nil, err
		}
		if infoField(info, "role") == "master" {
			masters = append(masters, node)
		}
	}
	return masters, nil
}

func (c *Cluster) id(node *Redis) (string, error) {
	for i := range c.nodes {
		if c.nodes[i] == node {
			return c.ids[i], nil
		}
	}
	return "", errors.New("not a node of this cluster")
}

const keysPerMove = 100

// MigrateSlot moves a slot with all its keys from one master to another while clients use it. It
// calls BeginMigration, MoveSlotKeys and FinishMigration.
func (c *Cluster) MigrateSlot(ctx context.Context, slot int, from, to *Redis) error {
	for _, step := range []func(context.Context, int, *Redis, *Redis) error{
		c.BeginMigration, c.MoveSlotKeys, c.FinishMigration,
	} {
		if err := step(ctx, slot, from, to); err != nil {
			return fmt.Errorf("migrate slot %d: %w", slot, err)
		}
	}
	return nil
}

// BeginMigration opens the slot at both masters. From here on the old master answers ASK for keys
// that it does not have, and commands on several keys get TRYAGAIN when only some have moved.
func (c *Cluster) BeginMigration(ctx context.Context, slot int, from, to *Redis) error {
	fromID, err := c.id(from)
	if err != nil {
		return err
	}
	toID, err := c.id(to)
	if err != nil {
		return err
	}
	// IMPORTING comes first: the old master must not redirect clients to a node that would redirect
	// them back.
	if err := to.exec(ctx, []any{"CLUSTER", "SETSLOT", slot, "IMPORTING", fromID}); err != nil {
		return err
	}
	return from.exec(ctx, []any{"CLUSTER", "SETSLOT", slot, "MIGRATING", toID})
}

// MoveSlotKeys moves all keys of an opened slot.
func (c *Cluster) MoveSlotKeys(ctx context.Context, slot int, from, to *Redis) error {
	for {
		keys, err := onNode(ctx, from, func(ctx context.Context, client *redis.Client) ([]string, error) {
			return client.ClusterGetKeysInSlot(ctx, slot, keysPerMove).Result()
		})
		if err != nil || len(keys) == 0 {
			return err
		}
		if err := c.MoveKeys(ctx, from, to, keys...); err != nil {
			return err
		}
	}
}

// MoveKeys moves some keys of an opened slot, so that a slot can stay half moved.
func (c *Cluster) MoveKeys(ctx context.Context, from, to *Redis, keys ...string) error {
	command := []any{"MIGRATE", loopback.Host, to.ports[0].Number(), "", 0, 5000, "KEYS"}
	for _, key := range keys {
		command = append(command, key)
	}
	return from.exec(ctx, command)
}

// FinishMigration gives the slot to its new master and informs every master, so that no client is
// redirected to the old one. Clients cannot reach keys that were not moved, and the old master
// refuses while it has any.
func (c *Cluster) FinishMigration(ctx context.Context, slot int, from, to *Redis) error {
	toID, err := c.id(to)
	if err != nil {
		return err
	}
	masters, err := c.Masters(ctx)
	if err != nil {
		return err
	}
	// The new master comes first: if the old one gave the slot away before, a failure in between
	// would leave the slot without a master.
	for _, node := range append([]*Redis{to, from}, masters...) {
		if err := node.exec(ctx, []any{"CLUSTER", "SETSLOT", slot, "NODE", toID}); err != nil {
			return err
		}
	}
	return nil
}

// CancelMigration closes an opened slot at both masters and leaves it where it was. Keys that have
// moved stay where they are, and clients cannot reach them.
func (c *Cluster) CancelMigration(ctx context.Context, slot int, from, to *Redis) error {
	stable := []any{"CLUSTER", "SETSLOT", slot, "STABLE"}
	return errors.Join(from.exec(ctx, stable), to.exec(ctx, stable))
}
