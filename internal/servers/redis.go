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
)

// RedisOptions change how a server is started. The zero value is a server
// without persistence, password or limits.
type RedisOptions struct {
	// Args are appended to the arguments and win over the defaults, such as
	// "--appendonly", "yes", "--appendfsync", "always".
	Args []string
	// Dir is the data directory. Empty: a temporary one that Stop removes.
	Dir string
	// Password, if not empty, is required from clients; Client sends it.
	Password string
}

// A Redis is one redis-server process on a loopback port. It keeps its port
// for life, through Kill and Restart. Its methods may be called from any
// goroutine.
type Redis struct {
	proc     *Process
	ports    []*port // the first one is for clients
	password string
}

// StartRedis starts a server and returns when it answers. Without
// redis-server on this machine the error is ErrNotInstalled.
func StartRedis(ctx context.Context, opts RedisOptions) (*Redis, error) {
	args := opts.Args
	if opts.Password != "" {
		args = append([]string{"--requirepass", opts.Password, "--masterauth", opts.Password}, args...)
	}
	return launchRedis(ctx, redisPlan{
		ports:    1,
		dir:      opts.Dir,
		password: opts.Password,
		args:     func(p []*port) []string { return dataArgs(p[0], args) },
		files:    func([]*port) map[string]string { return map[string]string{redisConf: ""} },
	})
}

// redisConf starts empty. It exists because only a server with a
// configuration file can follow CONFIG REWRITE, with which a Sentinel makes
// a new role survive a restart.
const redisConf = "redis.conf"

// dataArgs are the arguments of a server that holds data.
func dataArgs(p *port, extra []string) []string {
	return slices.Concat([]string{
		redisConf,
		"--port", p.String(),
		"--bind", loopback,
		"--protected-mode", "no",
		"--daemonize", "no",
		"--save", "",
		"--appendonly", "no",
		"--enable-debug-command", "yes",
		// A replica is served at once, and a master that is told to end does
		// not wait for a replica that is paused or dead.
		"--repl-diskless-sync-delay", "0",
		"--shutdown-timeout", "0",
	}, extra)
}

// Addr is where clients connect.
func (r *Redis) Addr() string { return r.ports[0].addr() }

// Pid is the process id of the present or last life.
func (r *Redis) Pid() int { return r.proc.Pid() }

// Dir is the data directory.
func (r *Redis) Dir() string { return r.proc.Dir() }

// Log is the end of the server's log.
func (r *Redis) Log() string { return r.proc.Log() }

// Running says whether the process exists; a paused one does.
func (r *Redis) Running() bool { return r.proc.Running() }

// Client returns a new client of this server, which the caller closes. It
// hides nothing: no retries, neither of commands nor of dials, and deadlines
// of contexts count.
func (r *Redis) Client() *redis.Client { return r.ClientAt(r.Addr()) }

// ClientAt is Client through another address, such as a Proxy's.
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

// Pause stops the server with SIGSTOP: connections stay open and the kernel
// accepts new ones, but nothing is answered.
func (r *Redis) Pause() error { return r.proc.Pause() }

// Resume lets a paused server go on with everything that was sent meanwhile.
func (r *Redis) Resume() error { return r.proc.Resume() }

// Kill ends the server with SIGKILL: what was not persisted is lost.
func (r *Redis) Kill() error { return r.proc.Kill() }

// Restart starts the server again on the same port, ending it first if it
// runs, and returns when it answers.
//
// With keepData a running server, even a paused one, saves a snapshot before
// it ends, whatever its persistence; one that was killed comes back with what
// it had persisted, which by default is nothing. Without keepData it is
// killed and comes back empty. Its configuration, and its identity in a
// cluster, are kept either way.
func (r *Redis) Restart(ctx context.Context, keepData bool) error {
	ctx, cancel := context.WithTimeout(ctx, startBound)
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

// endSaved ends the server by SHUTDOWN SAVE. The server closes the connection
// instead of answering, so only an answer is an error.
func (r *Redis) endSaved(ctx context.Context) error {
	if !r.Running() {
		return nil
	}
	if err := r.Resume(); err != nil {
		return err
	}
	client := r.Client()
	defer client.Close()
	r.proc.expectEnd()
	err := client.Do(ctx, "SHUTDOWN", "SAVE").Err()
	if answer := redis.Error(nil); errors.As(err, &answer) {
		return err
	}
	return r.proc.awaitEnd(ctx)
}

// startAgain starts the process until the port can be bound: somebody who
// took it while the server was down may give it back.
func (r *Redis) startAgain(ctx context.Context) error {
	for {
		if err := r.proc.Restart(); err != nil {
			return err
		}
		err := r.awaitReady(ctx)
		if !errors.Is(err, errPortTaken) {
			return err
		}
		if !pause(ctx, startRetry) {
			return err
		}
	}
}

// Stop ends the server for good and gives back its port and its directory.
// It reports a server that had ended without being asked to. Stopping twice
// is harmless.
func (r *Redis) Stop() error {
	err := r.proc.Stop()
	releasePorts(r.ports)
	if err != nil {
		return fmt.Errorf("stop redis %s: %w", r.Addr(), err)
	}
	return nil
}
