package redislock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/bound"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// lanes carry calls to the server. A call that finds a free lane goes at once and
// alone. When all are busy, calls gather, and the lane that comes back first
// takes all of them in one pipeline. So a lone call never waits, and many share
// round trips and system calls.
//
// go-redis heeds deadlines, if it was told to, and never cancellation. So only a
// call that is not cancelled is made by its own goroutine; for all others another
// one waits.
type lanes struct {
	driver *redisDriver

	bounds bound.Shared

	mu      sync.Mutex
	busy    int
	waiting []*passenger
}

// A passenger is a call that waits for a lane.
type passenger struct {
	cmd   *command
	until time.Time
	done  chan struct{}
	gone  bool // its caller has left; under lanes.mu
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
	if redisnode.IsNoScript(err) {
		cmd = cmd.Whole(ctx)
		err = d.lanes.carry(ctx, cmd)
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, redisnode.Classify(err)
	}
	return cmd.Val(), nil
}

func (l *lanes) carry(ctx context.Context, cmd *command) error {
	_, calm := ctx.(driver.Uncancelled)
	l.mu.Lock()
	if l.busy < lanesMax && l.driver.prompt && calm {
		l.busy++
		l.mu.Unlock()
		err := l.driver.client.Process(ctx, cmd)
		l.release()
		return err
	}
	p := &passenger{cmd: cmd, done: make(chan struct{}), until: time.Now().Add(busBound)}
	if at, ok := ctx.Deadline(); ok && at.Before(p.until) {
		p.until = at
	}
	l.waiting = append(l.waiting, p)
	if l.busy < lanesMax {
		l.busy++
		l.start()
	}
	l.mu.Unlock()
	caller, bound := ends(ctx)
	select {
	case <-p.done:
		return cmd.Err()
	case <-caller:
	case <-bound:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p.gone = true
	return ctx.Err()
}

// ends are the channels that end a call, of which one may be nil.
func ends(ctx context.Context) (caller, bound <-chan struct{}) {
	if j, ok := ctx.(*driver.Joined); ok {
		return j.Ends()
	}
	return ctx.Done(), nil
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

// busBound is the longest that a trip may take, and so the longest that Close
// waits for one: nothing else ends a call that the client has begun.
const busBound = 750 * time.Millisecond

// drive makes a trip with all whose callers still wait. It lasts as long as the
// most patient of them.
func (l *lanes) drive(bus []*passenger) {
	l.mu.Lock()
	riders := make([]*passenger, 0, len(bus))
	var until time.Time
	for _, p := range bus {
		if !p.gone {
			riders = append(riders, p)
			if p.until.After(until) {
				until = p.until
			}
		}
	}
	l.mu.Unlock()
	ctx := l.bounds.Within(l.driver.ctx, busBound)
	if at, _ := ctx.Deadline(); at.After(until) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(l.driver.ctx, until)
		defer cancel()
	}
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

// await runs f beside, since the client may not heed ctx, and returns when either
// is over.
func await[T any](ctx context.Context, d *redisDriver, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	d.work.Go(func() {
		v, err := f()
		done <- result{v, err}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
