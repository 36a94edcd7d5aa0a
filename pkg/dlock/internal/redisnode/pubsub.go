package redisnode

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// NoReconnect returns a context that has ended. go-redis would reconnect a broken subscription by
// itself, without a timeout and with all channels in one command: Close would wait for the
// connection, and a cluster refuses the command.
func NoReconnect() context.Context { return over }

var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Tell sends a command over the established connection of a subscription, within a timeout. If it
// fails, Tell closes the subscription, and its reader notices. A dialer that ignores its context
// may have opened another connection by now, on which no channel was requested.
func Tell(pubsub *redis.PubSub, within time.Duration, command func(context.Context) error) {
	ctx, cancel := context.WithTimeout(over, within)
	defer cancel()
	err := command(ctx)
	if err != nil {
		_ = pubsub.Close()
	}
}
