package servers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ceyewan/genesis/internal/loopback"
)

// A redisPlan says how to start a server on ports that are not known yet.
type redisPlan struct {
	ports    int
	dir      string
	password string
	args     func([]*loopback.Port) []string
	files    func([]*loopback.Port) map[string]string
}

// launchRedis starts the plan and returns a server that answers.
func launchRedis(ctx context.Context, plan redisPlan) (*Redis, error) {
	binary, err := redisBinary()
	if err != nil {
		return nil, err
	}
	return onFreePorts(ctx, "redis", func(ctx context.Context) (*Redis, error) {
		return tryRedis(ctx, binary, plan)
	})
}

func tryRedis(ctx context.Context, binary string, plan redisPlan) (*Redis, error) {
	ports, err := loopback.ReservePorts(plan.ports)
	if err != nil {
		return nil, err
	}
	proc, err := StartProcess(ProcessOptions{
		Path:  binary,
		Args:  plan.args(ports),
		Dir:   plan.dir,
		Files: plan.files(ports),
	})
	if err != nil {
		loopback.ReleasePorts(ports)
		return nil, err
	}
	r := &Redis{server{name: "redis", proc: proc, ports: ports}, plan.password}
	r.ask = r.identify
	if err := r.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, r.Kill(), r.Stop())
	}
	return r, nil
}

// identify asks the server once. The process ID shows whether the server that answers is this one
// and not another that took the port; PING fails while a snapshot is being loaded.
func (r *Redis) identify(ctx context.Context) error {
	client := r.Client()
	defer client.Close()
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	if pid := infoField(info, "process_id"); pid != strconv.Itoa(r.Pid()) {
		return fmt.Errorf("%w: process %s answers", errPortTaken, pid)
	}
	return client.Ping(ctx).Err()
}

// infoField returns one value from the answer of INFO or CLUSTER INFO.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
