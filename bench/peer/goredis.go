package peer

import "github.com/redis/go-redis/v9"

const goRedis = "github.com/redis/go-redis/v9"

// poolSize lets 64 goroutines of one client have a connection each; the default, ten
// for each CPU, would make them queue for connections. All peers on go-redis have it.
const (
	poolSize    = 64
	poolChanged = "PoolSize 64 instead of ten for each CPU"
)

func dialGoRedis(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: poolSize})
}

// dialPrompt is a client that heeds deadlines.
func dialPrompt(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: poolSize, ContextTimeoutEnabled: true})
}

// compareDelete is the usual way to give back a key that was taken with SET NX.
var compareDelete = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
