package peer

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

type ourRedlock struct{}

func (ourRedlock) Info() Info {
	return Info{
		Name: "dlock-redlock-5", Title: "Genesis DLock on 5 independent Redis", Backend: "redlock", Version: version(goRedis),
		Setup: "dlock.Config{} on redlock.New with five clients: fenced, not FIFO", Changed: poolChanged, Ours: true, Waits: true, Renews: true,
	}
}

func (ourRedlock) Open(_ context.Context, env *Env) (Client, error) {
	var nodes []redis.UniversalClient
	for _, addr := range env.Redlock {
		nodes = append(nodes, dialPrompt(addr))
	}
	closing := func() error {
		var errs []error
		for _, n := range nodes {
			errs = append(errs, n.Close())
		}
		return errors.Join(errs...)
	}
	return openOurs(env, dlock.Config{}, redlock.New(nodes), closing)
}
