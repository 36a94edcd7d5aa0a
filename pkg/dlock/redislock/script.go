package redislock

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/common.lua
	commonLua string
	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/hold.lua
	holdLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/inspect.lua
	inspectLua string
)

// A script is known to the server by its hash; it is sent whole only when the
// server does not know it.
type script struct{ hash, source string }

func newScript(source string) *script {
	source = strings.Replace(source, "--@common\n", commonLua, 1)
	sum := sha1.Sum([]byte(source)) //nolint:gosec // the server's way to name scripts
	return &script{hex.EncodeToString(sum[:]), source}
}

var (
	acquireScript = newScript(acquireLua)
	holdScript    = newScript(holdLua)
	renewScript   = newScript(renewLua)
	releaseScript = newScript(releaseLua)
	inspectScript = newScript(inspectLua)
)

// A command is a call of a script. The client must not send it again by itself:
// a release that was carried out, and is sent again, finds nothing.
type command struct {
	*redis.Cmd
	script *script
}

// NoRetry tells the client not to resend.
func (*command) NoRetry() bool { return true }

func (s *script) command(ctx context.Context, keys []string, args ...any) *command {
	return s.build(ctx, "evalsha", s.hash, keys, args)
}

// whole is the same call with the script itself, for a server that does not know
// it.
func (c *command) whole(ctx context.Context) *command {
	args := c.Args()
	again := append([]any{"eval", c.script.source}, args[2:]...)
	cmd := &command{redis.NewCmd(ctx, again...), c.script}
	cmd.SetFirstKeyPos(3)
	return cmd
}

func (s *script) build(ctx context.Context, verb, body string, keys []string, args []any) *command {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, verb, body, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	cmd := &command{redis.NewCmd(ctx, append(all, args...)...), s}
	cmd.SetFirstKeyPos(3)
	return cmd
}

func isNoScript(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") }
