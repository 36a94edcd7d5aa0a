package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

const (
	startBound = 30 * time.Second // no start takes longer, whatever the context says
	startTries = 10
	startRetry = 100 * time.Millisecond
	pollEvery  = 5 * time.Millisecond
	askBound   = 2 * time.Second // one question to a server that may be paused
	askFirst   = 100 * time.Millisecond
)

var errPortTaken = errors.New("port taken by another program")

// A redisPlan says how to start a server on ports that are not known yet.
type redisPlan struct {
	ports    int
	dir      string
	password string
	args     func([]*port) []string
	files    func([]*port) map[string]string
}

// launchRedis starts the plan, on other ports if somebody was faster, and
// returns a server that answers.
func launchRedis(ctx context.Context, plan redisPlan) (*Redis, error) {
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	binary, err := redisBinary()
	if err != nil {
		return nil, err
	}
	for range startTries {
		var r *Redis
		r, err = tryRedis(ctx, binary, plan)
		if err == nil {
			return r, nil
		}
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return nil, fmt.Errorf("start redis: %w", err)
}

func tryRedis(ctx context.Context, binary string, plan redisPlan) (*Redis, error) {
	ports, err := reservePorts(plan.ports)
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
		releasePorts(ports)
		return nil, err
	}
	r := &Redis{proc: proc, ports: ports, password: plan.password}
	if err := r.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, r.Kill(), r.Stop())
	}
	return r, nil
}

// awaitReady waits until the server answers. A server that ends instead
// says why in its log.
func (r *Redis) awaitReady(ctx context.Context) error {
	// Somebody who took the port need not answer at all: do not wait long for
	// the first answer, but do in the end, on a machine that is slow.
	for bound := askFirst; ; bound = min(2*bound, askBound) {
		err := r.ready(ctx, bound)
		if err == nil {
			return nil
		}
		if !r.Running() {
			return r.startFailure()
		}
		if !pause(ctx, pollEvery) {
			return fmt.Errorf("redis %s does not answer: %w (%w)\n%s", r.Addr(), context.Cause(ctx), err, r.Log())
		}
	}
}

// ready asks the server once. The process id tells whether it is ours that
// answers, and not the one that took the port; PING fails while a snapshot is
// being loaded. The client comes only after a plain dial has worked, because
// its pool answers failed dials with a goroutine that dials on.
func (r *Redis) ready(ctx context.Context, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	probe, err := new(net.Dialer).DialContext(ctx, "tcp4", r.Addr())
	if err != nil {
		return err
	}
	probe.Close()
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

func (r *Redis) startFailure() error {
	log := r.Log()
	if strings.Contains(log, "Address already in use") {
		return fmt.Errorf("%w: %s", errPortTaken, r.Addr())
	}
	return fmt.Errorf("redis %s ended while starting:\n%s", r.Addr(), log)
}

// infoField finds one value in the answer of INFO or CLUSTER INFO.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// await polls cond until it returns nil. The error at the end of the context
// says what was waited for and what was missing last.
func await(ctx context.Context, what string, cond func(context.Context) error) error {
	for {
		err := cond(ctx)
		if err == nil {
			return nil
		}
		if !pause(ctx, pollEvery) {
			return fmt.Errorf("waiting for %s: %w (%w)", what, context.Cause(ctx), err)
		}
	}
}

// pause waits and says whether the context still lives.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
