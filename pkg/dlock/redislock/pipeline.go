package redislock

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// pipeline sends commands together, again for those whose script the server did
// not know; each then has its own error. With MinReplicas, it returns why the
// answers do not count.
func (d *redisDriver) pipeline(ctx context.Context, lock string, cmds []*command) (short error) {
	todo := cmds
	for range 2 {
		short = d.exec(ctx, lock, todo)
		todo = nil
		for i, c := range cmds {
			if redisnode.IsNoScript(c.Err()) {
				cmds[i] = c.Whole(ctx)
				todo = append(todo, cmds[i])
			}
		}
		if len(todo) == 0 {
			break
		}
	}
	return short
}

// exec is one trip. WAIT speaks of the writes of its own connection, so it goes
// in the same pipeline, and on a cluster to the master itself.
func (d *redisDriver) exec(ctx context.Context, lock string, cmds []*command) error {
	ctx, cancel := context.WithTimeout(ctx, busBound+d.settings.replicaWait)
	defer cancel()
	client := d.client
	if d.settings.replicas > 0 && d.cluster != nil {
		master, err := d.cluster.MasterForKey(ctx, lock)
		if err != nil {
			return err
		}
		client = master
	}
	pipe := client.Pipeline()
	for _, c := range cmds {
		_ = pipe.Process(ctx, c)
	}
	if d.settings.replicas == 0 {
		_, _ = pipe.Exec(ctx) // each command has its own error
		return nil
	}
	wait := redis.NewIntCmd(ctx, "wait", d.settings.replicas, d.settings.replicaWait.Milliseconds())
	_ = pipe.Process(ctx, wait)
	_, _ = pipe.Exec(ctx)
	n, err := wait.Result()
	if err == nil && int(n) < d.settings.replicas {
		err = driver.Classify(ErrReplicas, driver.Transient)
	}
	return err
}

// replicated is a reply, and why it does not count if too few replicas have it.
type replicated struct {
	reply any
	short error
}

// callReplicated runs one command and waits for the replicas.
func (d *redisDriver) callReplicated(ctx context.Context, lock string, cmd *command) (replicated, error) {
	if err := ctx.Err(); err != nil {
		return replicated{}, err
	}
	cmds := []*command{cmd}
	short := d.pipeline(ctx, lock, cmds)
	if err := cmds[0].Err(); err != nil && !errors.Is(err, redis.Nil) {
		if d.cluster != nil {
			d.cluster.ReloadState(ctx) // a master that has moved answers so for ever
		}
		return replicated{}, redisnode.Classify(err)
	}
	return replicated{cmds[0].Val(), short}, nil
}
