package connector

import (
	"context"
	"net"

	"github.com/redis/go-redis/v9"
)

// A redactor is a hook that keeps passwords out of the errors of a client, wherever they are shown.
type redactor struct {
	link *link
	// all: answers to every command are redacted, not only answers to the commands that send a
	// password. It is not set for the users' own commands and their answers.
	all bool
}

// addTo adds the hook to a client that has not been used yet.
func (r redactor) addTo(client redis.UniversalClient) {
	if len(r.link.secrets) == 0 {
		return
	}
	client.AddHook(r)
	if cluster, ok := client.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(r) })
	}
}

// DialHook covers sentinels, which are queried while dialing.
func (r redactor) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		return conn, r.link.redact(err)
	}
}

// ProcessHook also covers the commands that begin a connection.
func (r redactor) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil || !r.covers(cmd) {
			return err
		}
		shown := r.link.redact(err)
		if shown.Error() != err.Error() {
			cmd.SetErr(shown)
		}
		return shown
	}
}

// ProcessPipelineHook is ProcessHook for each command.
func (r redactor) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			failure := cmd.Err()
			if failure == nil || !r.covers(cmd) {
				continue
			}
			shown := r.link.redact(failure)
			if shown.Error() != failure.Error() {
				cmd.SetErr(shown)
			}
		}
		if r.all {
			return r.link.redact(err)
		}
		return err
	}
}

func (r redactor) covers(cmd redis.Cmder) bool {
	return r.all || cmd.Name() == "hello" || cmd.Name() == "auth"
}
