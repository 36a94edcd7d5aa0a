// Package redisfence fences writes to Redis: a script compares the fencing token of the writer with
// the greatest token that a key has seen, and writes only if it is not smaller. Comparison and
// writes are one script, so no other command comes in between.
//
// The fence key stores the greatest token and has no lifetime. If it is deleted, expires or is
// evicted (use noeviction), or if a failover loses it, the next token is accepted, whatever it is.
// So this is no safer than the data next to it. On a cluster, the fence key and all keys of the
// script must be in one slot: give them a common hash tag, such as "{order:123}:fence" and
// "{order:123}". Redis refuses others with CROSSSLOT. A redis.Ring does not refuse them: it sends
// the script to the server of the fence key, so use a hash tag there too. A Ring that loses a server
// moves its keys to others, which have no fence.
package redisfence

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/fence"
)

//go:embed lua/fence.lua
var fenceLua string

//go:embed lua/set.lua
var setLua string

// A Script is a script of the user that runs only for a token that is not stale.
type Script struct {
	script *redis.Script
	err    error
}

// NewScript returns the script with a fence in front of it. The script sees its own KEYS and ARGV,
// as if it were alone, and its lines keep their numbers in error messages. A script with a shebang
// line is refused by Run: Redis accepts such a line only at the beginning.
//
// The writes of a script that fails stay, as always in Redis, and its token counts as seen.
func NewScript(lua string) *Script {
	if strings.HasPrefix(lua, "#!") {
		return &Script{err: &fence.InputError{Argument: "script", Reason: "begins with #!, which Redis accepts only in a script of its own"}}
	}
	return &Script{script: redis.NewScript(strings.Replace(fenceLua, "--@body", lua, 1))}
}

// Run runs the script on behalf of the holder with this token. If the fence has seen a greater
// token, the error of the Cmd is a *fence.StaleError, and the script was not run. The answer is
// needed to know that, so the client must not be a pipeline or a transaction.
//
// As in go-redis, args may be one slice, []string or []any, instead of its elements. Other slices,
// maps and structs are refused. The script must not return errors that begin with DLOCK_FENCE_.
//
// A client sends a command again if it gets no answer (redis.Options.MaxRetries), so the script may
// run twice. The fence does not prevent that: both runs have the same token.
func (s *Script) Run(ctx context.Context, client redis.Scripter, fenceKey string, token int64, keys []string, args ...any) *redis.Cmd {
	err := s.validate(client, fenceKey, token, keys)
	if err != nil {
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(err)
		return cmd
	}
	all := append([]any{strconv.FormatInt(token, 10)}, flatten(args)...)
	cmd := s.script.Run(ctx, client, append([]string{fenceKey}, keys...), all...)
	err = cmd.Err()
	switch {
	case redis.HasErrorPrefix(err, stalePrefix):
		cmd.SetErr(stale(fenceKey, token, err))
	case redis.HasErrorPrefix(err, damagedPrefix):
		cmd.SetErr(fmt.Errorf("fence %q: %w: %w", fenceKey, fence.ErrDamaged, err))
	}
	return cmd
}

// flatten returns the elements of an argument that is the only one.
func flatten(args []any) []any {
	if len(args) != 1 {
		return args
	}
	switch only := args[0].(type) {
	case []any:
		return only
	case []string:
		all := make([]any, len(only))
		for i, s := range only {
			all[i] = s
		}
		return all
	}
	return args
}

const (
	stalePrefix   = "DLOCK_FENCE_STALE "
	damagedPrefix = "DLOCK_FENCE_DAMAGED "
)

func stale(fenceKey string, token int64, err error) error {
	seen, overlong := strconv.ParseInt(strings.TrimPrefix(err.Error(), stalePrefix), 10, 64)
	if overlong != nil {
		return fmt.Errorf("fence %q: %w: %w", fenceKey, fence.ErrDamaged, overlong)
	}
	return &fence.StaleError{Resource: fenceKey, Token: token, Seen: seen}
}

func (s *Script) validate(client redis.Scripter, fenceKey string, token int64, keys []string) error {
	_, pipeline := client.(redis.Pipeliner)
	switch {
	case s == nil || (s.script == nil && s.err == nil):
		return &fence.InputError{Argument: "script", Reason: "is empty: use NewScript"}
	case s.err != nil:
		return s.err
	case client == nil:
		return &fence.InputError{Argument: "client", Reason: "is nil"}
	case pipeline:
		return &fence.InputError{Argument: "client", Reason: "is a pipeline, whose answers come too late"}
	case fenceKey == "":
		return &fence.InputError{Argument: "fence key", Reason: "is empty"}
	case slices.Contains(keys, fenceKey):
		return &fence.InputError{Argument: "fence key", Reason: fmt.Sprintf("%q is also a key of the script, which would overwrite the token", fenceKey)}
	}
	return fence.ValidateToken(token)
}

var (
	setScript   = NewScript(setLua)
	raiseScript = NewScript("return redis.status_reply('OK')")
)

// Set sets a key on behalf of the holder with this token. ttl is the lifetime of the key, in whole
// milliseconds; 0 is unlimited. The error is a *fence.StaleError if the fence has seen a greater
// token.
func Set(ctx context.Context, client redis.Scripter, fenceKey string, token int64, key string, value any, ttl time.Duration) error {
	if ttl < 0 || ttl%time.Millisecond != 0 {
		return &fence.InputError{Argument: "ttl", Reason: fmt.Sprintf("%v is not a number of whole milliseconds", ttl)}
	}
	if key == "" {
		return &fence.InputError{Argument: "key", Reason: "is empty"}
	}
	return setScript.Run(ctx, client, fenceKey, token, []string{key}, value, ttl.Milliseconds()).Err()
}

// Raise records the token without writing anything else: from then on, smaller tokens are refused.
// It is the first step of a holder that reads before it writes.
func Raise(ctx context.Context, client redis.Scripter, fenceKey string, token int64) error {
	return raiseScript.Run(ctx, client, fenceKey, token, nil).Err()
}
