package topology

import (
	"context"
	"errors"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// The users that workers log in as. They have exactly the rights that the pages of the
// backends name; MuteUser has those without any channel.
const (
	user     = "locks"
	MuteUser = "mute"
	password = "secret"
)

// Redis users, as docs/backends/redis.md and docs/backends/redlock.md have them.
const (
	keyRights     = "resetkeys resetchannels -@all ~" + worker.Prefix + "* ~{" + worker.Prefix + "*"
	scriptRights  = "+eval +evalsha +get +set +del +exists +pexpire +pttl +time"
	queueRights   = "~dlock:token* +setrange +hget +hset +hsetnx +hdel +hmget +hrandfield +zadd +zrange +zrank +zrem +zcard +zcount +zscore"
	lookRights    = "+ping +info +scan +getrange"
	oneRights     = "+publish +subscribe +pubsub|numsub"
	clusterRights = "+spublish +ssubscribe +sunsubscribe +asking +cluster|slots +cluster|shards +cluster|info +command +pubsub|shardnumsub"
	redlockRights = "+mget +hget +hset +hdel +hgetall +zadd +zrem +zrange +publish +subscribe +unsubscribe +pubsub|numsub"
)

func redisRights(kind string) (rules, channels string) {
	switch kind {
	case "cluster":
		return strings.Join([]string{keyRights, scriptRights, queueRights, lookRights, clusterRights}, " "), "&{*}dlock:*"
	case "redlock":
		return strings.Join([]string{keyRights, scriptRights, redlockRights, lookRights}, " "), "&dlock:*"
	}
	return strings.Join([]string{keyRights, scriptRights, queueRights, lookRights, oneRights}, " "), "&dlock:*"
}

// addUsers makes the users of Redis servers, in a way that survives a restart.
func addUsers(ctx context.Context, nodes []*servers.Redis, kind string, setup schedule.Setup) (err error) {
	if setup.Rights == schedule.AllRights {
		return nil
	}
	rules, channels := redisRights(kind)
	if setup.Routing != schedule.ToMasters {
		rules += " +readonly"
	}
	for _, n := range nodes {
		err = errors.Join(err,
			say(ctx, n, words("ACL SETUSER "+user+" on >"+password+" "+rules+" "+channels)...),
			say(ctx, n, words("ACL SETUSER "+MuteUser+" on >"+password+" "+rules)...),
			say(ctx, n, "CONFIG", "REWRITE"))
	}
	return err
}

func words(text string) (all []any) {
	for _, w := range strings.Fields(text) {
		all = append(all, w)
	}
	return all
}

// as is a backend as its user.
func as(b worker.Backend, setup schedule.Setup) worker.Backend {
	if setup.Rights != schedule.AllRights {
		b.User, b.Password = user, password
	}
	return b
}

// root is the user that may do everything on etcd.
const root = "root"

// addRole makes a user of etcd with rights on the prefix only, and switches users on.
func addRole(ctx context.Context, c *clientv3.Client) error {
	end := clientv3.GetPrefixRangeEnd(worker.Prefix)
	all := clientv3.PermissionType(clientv3.PermReadWrite)
	for _, step := range []func() error{
		func() error { _, err := c.UserAdd(ctx, root, password); return err },
		func() error { _, err := c.UserGrantRole(ctx, root, root); return err },
		func() error { _, err := c.RoleAdd(ctx, user); return err },
		func() error { _, err := c.RoleGrantPermission(ctx, user, worker.Prefix, end, all); return err },
		func() error { _, err := c.UserAdd(ctx, user, password); return err },
		func() error { _, err := c.UserGrantRole(ctx, user, user); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
