package redislock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// lanes carry calls to the server. A call that finds a free lane goes at once and
// alone. When all are busy, calls gather, and the lane that comes back first
// takes all of them in one pipeline. So a lone call never waits, and many share
// round trips and system calls.
type lanes struct {
	driver *redisDriver

	mu      sync.Mutex
	busy    int
	waiting []*passenger
}

// A passenger is a call that waits for a lane.
type passenger struct {
	cmd  *command
	done chan struct{}
	gone bool // its caller has left; under lanes.mu
}

// lanesMax is how many round trips are under way at a time, busMost how many
// calls share one.
const (
	lanesMax = 4
	busMost  = 128
)

// call runs a command and returns its reply, classified. A server that does not
// know the script gets it whole.
func (d *redisDriver) call(ctx context.Context, cmd *command) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err := d.lanes.carry(ctx, cmd)
	if isNoScript(err) {
		cmd = cmd.whole(ctx)
		err = d.lanes.carry(ctx, cmd)
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, classify(err)
	}
	return cmd.Val(), nil
}

func (l *lanes) carry(ctx context.Context, cmd *command) error {
	l.mu.Lock()
	if l.busy < lanesMax && l.driver.prompt {
		l.busy++
		l.mu.Unlock()
		err := l.driver.client.Process(ctx, cmd)
		l.release()
		return err
	}
	p := &passenger{cmd: cmd, done: make(chan struct{})}
	l.waiting = append(l.waiting, p)
	if l.busy < lanesMax { // the client does not heed contexts: somebody else must wait for it
		l.busy++
		l.start()
	}
	l.mu.Unlock()
	select {
	case <-p.done:
		return cmd.Err()
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		p.gone = true
		return ctx.Err()
	}
}

// release gives a lane to those who wait, or back.
func (l *lanes) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) > 0 && l.driver.ctx.Err() == nil {
		l.start()
		return
	}
	l.busy--
}

// start sends off all who wait. It runs under mu.
func (l *lanes) start() {
	n := min(len(l.waiting), busMost)
	bus := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	l.driver.work.Go(func() {
		l.drive(bus)
		l.release()
	})
}

// busBound is how long a pipeline may take. Its callers have bounds of their own;
// this one frees the lane.
const busBound = 5 * time.Second

func (l *lanes) drive(bus []*passenger) {
	ctx, cancel := context.WithTimeout(l.driver.ctx, busBound)
	defer cancel()
	l.mu.Lock()
	riders := make([]*passenger, 0, len(bus))
	for _, p := range bus {
		if !p.gone {
			riders = append(riders, p)
		}
	}
	l.mu.Unlock()
	if len(riders) == 1 {
		_ = l.driver.client.Process(ctx, riders[0].cmd) // the command has its error
	} else if len(riders) > 1 {
		pipe := l.driver.client.Pipeline()
		for _, p := range riders {
			_ = pipe.Process(ctx, p.cmd)
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
	}
	for _, p := range riders {
		close(p.done)
	}
}
