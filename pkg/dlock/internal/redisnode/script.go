package redisnode

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A Script is called by its hash. It is sent in full only if the server does not know it.
type Script struct {
	Hash, Source string
	hash, source []byte // the same, as they are sent
}

// NewScript inserts common at the line --@common of source.
func NewScript(source, common string) *Script {
	source = strings.Replace(source, "--@common\n", common, 1)
	sum := sha1.Sum([]byte(source)) //nolint:gosec // the server's way to name scripts
	hash := hex.EncodeToString(sum[:])
	return &Script{hash, source, []byte(hash), []byte(source)}
}

// A Command is a call of a script. The client must not retry it by itself: a release that was
// carried out and is sent again finds nothing.
type Command struct {
	*redis.Cmd
	body body
}

// NoRetry tells the client not to resend.
func (*Command) NoRetry() bool { return true }

// Command returns a call of the script by its hash.
func (s *Script) Command(ctx context.Context, keys []string, args ...any) *Command {
	cmd := &Command{body: body{script: s}}
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", &cmd.body, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	cmd.Cmd = redis.NewCmd(ctx, append(all, args...)...)
	cmd.body.cmd = cmd.Cmd
	cmd.SetFirstKeyPos(3)
	return cmd
}

// Whole returns the same call with the full script, for a server that does not know it.
func (c *Command) Whole(ctx context.Context) *Command {
	cmd := &Command{body: body{script: c.body.script, whole: true}}
	if c.body.state.Load() == withdrawn {
		cmd.body.state.Store(withdrawn) // the server did not know the placeholder
	}
	cmd.Cmd = redis.NewCmd(ctx, append([]any{"eval", &cmd.body}, c.Args()[2:]...)...)
	cmd.body.cmd = cmd.Cmd
	cmd.SetFirstKeyPos(3)
	return cmd
}

// IsNoScript reports whether the server did not know the script.
func IsNoScript(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") }
