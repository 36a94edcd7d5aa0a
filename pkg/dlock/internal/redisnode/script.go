package redisnode

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A Script is known to the server by its hash; it is sent whole only when the
// server does not know it.
type Script struct{ Hash, Source string }

// NewScript puts common where source says --@common.
func NewScript(source, common string) *Script {
	source = strings.Replace(source, "--@common\n", common, 1)
	sum := sha1.Sum([]byte(source)) //nolint:gosec // the server's way to name scripts
	return &Script{hex.EncodeToString(sum[:]), source}
}

// A Command is a call of a script. The client must not send it again by itself:
// a release that was carried out, and is sent again, finds nothing.
type Command struct {
	*redis.Cmd
	script *Script
}

// NoRetry tells the client not to resend.
func (*Command) NoRetry() bool { return true }

// Command is a call by hash.
func (s *Script) Command(ctx context.Context, keys []string, args ...any) *Command {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", s.Hash, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	cmd := &Command{redis.NewCmd(ctx, append(all, args...)...), s}
	cmd.SetFirstKeyPos(3)
	return cmd
}

// Whole is the same call with the script itself, for a server that does not know
// it.
func (c *Command) Whole(ctx context.Context) *Command {
	args := c.Args()
	again := append([]any{"eval", c.script.Source}, args[2:]...)
	cmd := &Command{redis.NewCmd(ctx, again...), c.script}
	cmd.SetFirstKeyPos(3)
	return cmd
}

// IsNoScript reports whether the server did not know the script.
func IsNoScript(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") }
