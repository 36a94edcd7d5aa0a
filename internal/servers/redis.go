package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/ceyewan/genesis/internal/loopback"
)

// RedisOptions change how a server is started. The zero value is a server
// without persistence, password or limits.
type RedisOptions struct {
	// Args are appended to the arguments and override the defaults, for example "--appendonly",
	// "yes", "--appendfsync", "always".
	Args []string
	// Dir is the data directory. Empty: a temporary one that Stop removes.
	Dir string
	// Password, if not empty, is required from clients; Client sends it.
	Password string
}

// A Redis is one redis-server process on a loopback port. It keeps its port through Kill and
// Restart. Its methods may be called from any goroutine.
type Redis struct {
	server
	password string
}

// StartRedis starts a server and returns when it answers. If redis-server is not installed, the
// error is ErrNotInstalled.
func StartRedis(ctx context.Context, opts RedisOptions) (*Redis, error) {
	args := opts.Args
	if opts.Password != "" {
		args = append([]string{"--requirepass", opts.Password, "--masterauth", opts.Password}, args...)
	}
	return launchRedis(ctx, redisPlan{
		ports:    1,
		dir:      opts.Dir,
		password: opts.Password,
		args:     func(p []*loopback.Port) []string { return dataArgs(p[0], args) },
		files:    func([]*loopback.Port) map[string]string { return map[string]string{redisConf: ""} },
	})
}

// redisConf starts empty. It exists because only a server with a configuration file can carry out
// CONFIG REWRITE, with which a Sentinel makes a new role survive a restart.
const redisConf = "redis.conf"

// dataArgs returns the arguments of a server that holds data.
func dataArgs(p *loopback.Port, extra []string) []string {
	return slices.Concat([]string{
		redisConf,
		"--port", p.String(),
		"--bind", loopback.Host,
		"--protected-mode", "no",
		"--daemonize", "no",
		"--save", "",
		"--appendonly", "no",
		"--enable-debug-command", "yes",
		// A replica is served at once, and a master that is asked to end does not wait for a
		// replica that is paused or dead.
		"--repl-diskless-sync-delay", "0",
		"--shutdown-timeout", "0",
	}, extra)
}

// Client returns a new client of this server, which the caller closes. It hides no failure: it
// retries neither commands nor dials, and it honors the deadlines of contexts.
func (r *Redis) Client() *redis.Client { return r.ClientAt(r.Addr()) }

// ClientAt is Client through another address, such as that of a Proxy.
func (r *Redis) ClientAt(addr string) *redis.Client {
	return redis.NewClient(r.options(addr))
}

func (r *Redis) options(addr string) *redis.Options {
	return &redis.Options{
		Addr:                  addr,
		Password:              r.password,
		MaxRetries:            -1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
		DisableIdentity:       true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
}

// Restart starts the server again on the same port, ending it first if it runs, and returns when it
// answers.
//
// With keepData, a running server, even a paused one, saves a snapshot before it ends, whatever its
// persistence; a killed server comes back with what it had persisted, which by default is nothing.
// Without keepData it is killed and comes back empty. Its configuration, and its identity in a
// cluster, are kept in both cases.
func (r *Redis) Restart(ctx context.Context, keepData bool) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	end := r.endEmpty
	if keepData {
		end = r.endSaved
	}
	if err := end(ctx); err != nil {
		return fmt.Errorf("restart redis %s: %w", r.Addr(), err)
	}
	return r.startAgain(ctx)
}

func (r *Redis) endEmpty(context.Context) error {
	if err := r.Kill(); err != nil {
		return err
	}
	return errors.Join(
		os.RemoveAll(filepath.Join(r.Dir(), "dump.rdb")),
		os.RemoveAll(filepath.Join(r.Dir(), "appendonlydir")),
	)
}

// endSaved ends the server by SHUTDOWN SAVE. The server closes the connection instead of answering,
// so only an answer is an error. The command is repeated until the server has ended: one that is
// still starting does not listen yet.
func (r *Redis) endSaved(ctx context.Context) error {
	if !r.Running() {
		return nil
	}
	if err := r.Resume(); err != nil {
		return err
	}
	r.proc.expectEnd()
	for ctx.Err() == nil && r.Running() {
		if err := r.shutdown(ctx); err != nil {
			return err
		}
	}
	return r.proc.awaitEnd(ctx)
}

// shutdown sends SHUTDOWN once, and gives the server some time.
func (r *Redis) shutdown(ctx context.Context) error {
	client := r.Client()
	defer client.Close()
	err := client.Do(ctx, "SHUTDOWN", "SAVE").Err()
	answer := redis.Error(nil)
	if errors.As(err, &answer) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startRetry)
	defer cancel()
	_ = r.proc.awaitEnd(ctx) // the caller checks
	return nil
}
