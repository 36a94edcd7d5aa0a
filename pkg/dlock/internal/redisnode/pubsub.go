package redisnode

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// NoReconnect is a context that is over. go-redis would make a broken connection of a
// subscription anew by itself, without a timeout and with all channels in one command: Close
// would wait for the one, and a cluster refuses the other.
func NoReconnect() context.Context { return over }

var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Tell sends a command over the connection of a subscription that stands, within a time. If it
// fails the subscription is closed, which whoever reads it notices: a dialer that ignores
// its context may have made another connection by now, which was asked for nothing.
func Tell(pubsub *redis.PubSub, within time.Duration, command func(context.Context) error) {
	ctx, cancel := context.WithTimeout(over, within)
	defer cancel()
	err := command(ctx)
	if err != nil {
		_ = pubsub.Close()
	}
}
