package remote

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// traffic counts the commands that clients send. The server could count as well, but
// of all its clients together, and not to each.
func traffic(clients ...redis.UniversalClient) func() func() int64 {
	return func() func() int64 {
		c := &counter{}
		for _, client := range clients {
			client.AddHook(c)
		}
		return c.sent.Load
	}
}

type counter struct{ sent atomic.Int64 }

func (*counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.sent.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.sent.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// forget removes the last token of a lock, which redlock would keep for a day. See the
// layout in docs/backends/redlock.md: the name of the lock is a tag of its own, or has
// one.
func forget(clients ...redis.UniversalClient) func(context.Context, string) error {
	return func(ctx context.Context, lock string) error {
		var errs []error
		for _, client := range clients {
			for _, fence := range []string{lock + "\x01\x01f", "{" + lock + "}\x01f"} {
				errs = append(errs, client.Del(ctx, fence).Err())
			}
		}
		return errors.Join(errs...)
	}
}
