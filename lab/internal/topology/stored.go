package topology

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// lastingKeys are those that are used throughout a trial, and whose locks all have the
// lease of the topology.
var lastingKeys = []string{"slow-0", "slow-1", "brisk-0", "brisk-1"}

// siblings are the keys next to a lock, by the last letter of their names: the queue, the
// waiters and the last token, which locks share on Redis.
func siblings(kind string) []string {
	if kind == "redlock" {
		return []string{"w", "f"}
	}
	return []string{"y", "r", tokens}
}

const tokens = "dlock:token\x01"

// deleteTokens deletes the last tokens of all locks of a server.
func deleteTokens(ctx context.Context, c *redis.Client) {
	all := c.Scan(ctx, 0, tokens+"*", 1000).Iterator()
	for all.Next(ctx) {
		_ = c.Del(ctx, all.Val()).Err() // where it is not writable, it need not go
	}
}

func sibling(key, letter string) string { return "{" + worker.Prefix + key + "}\x01" + letter }

// siblingDelete deletes one sibling of each lasting key, now and again until it is healed.
func siblingDelete(nodes []*servers.Redis, kind string, target int) healer {
	all := siblings(kind)
	letter := all[target%len(all)]
	var clients []*redis.Client
	for _, n := range nodes {
		clients = append(clients, n.Client())
	}
	again := repeat(250*time.Millisecond, func(ctx context.Context) {
		for _, c := range clients {
			if letter == tokens {
				deleteTokens(ctx, c)
				continue
			}
			for _, key := range lastingKeys {
				_ = c.Del(ctx, sibling(key, letter)).Err() // where it is not, or not writable, it need not go
			}
		}
	})
	return func(ctx context.Context) error {
		err := again(ctx)
		for _, c := range clients {
			_ = c.Close()
		}
		return err
	}
}

//go:embed ahead.lua
var aheadLua string

// clockBack makes what servers store an hour too late.
func clockBack(ctx context.Context, nodes []*servers.Redis) (err error) {
	lease := schedule.TTL(schedule.Single).Milliseconds()
	for _, n := range nodes {
		c := n.Client()
		for _, key := range lastingKeys {
			keys := []string{worker.Prefix + key, sibling(key, "y"), sibling(key, "r")}
			answer := c.Eval(ctx, aheadLua, keys, lease*6/10, lease*11/10).Err()
			if answer != nil && !notServed(answer) {
				err = errors.Join(err, fmt.Errorf("the clock of %s: %w", n.Addr(), answer))
			}
		}
		_ = c.Close()
	}
	return err
}

// notServed says whether a server has nothing to do with a key: another one is its master.
func notServed(err error) bool {
	return strings.HasPrefix(err.Error(), "MOVED") || strings.HasPrefix(err.Error(), "READONLY") || strings.HasPrefix(err.Error(), "ASK") || strings.HasPrefix(err.Error(), "TRYAGAIN")
}
