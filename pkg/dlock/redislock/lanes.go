package redislock

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/bound"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// lanes carry calls to the server. A lone call goes at once and alone. When all lanes
// are busy, calls gather, and the lane that comes back first takes all of them in one
// pipeline; then those who come back gather as well. So a lone call never waits, and many
// share round trips and system calls.
//
// go-redis heeds deadlines, if it was told to, and never cancellation. So a call that can
// be cancelled, and any other if it was not told, is left to another goroutine, while its
// own waits for either end. That costs more than all else in a client. Where the server has lately been quick, the call
// is therefore made by its own goroutine, on a short leash: if it is not over by then, it
// is given up and made again the other way.
type lanes struct {
	driver *redisDriver

	bounds bound.Shared

	mu      sync.Mutex
	busy    int
	quick   int  // trips in a row that were
	crowded bool // the last trip was shared, so those who come next gather
	waiting []*passenger
}

// A manner says whether a call may be given up early, with driver.ErrHasty.
type manner bool

const (
	hasty   manner = true
	patient manner = false
)

// leash is how much longer than its context a hasty call may take. It may be up to a
// quarter shorter. A trip is quick if it is answered in far less, and a server if so many
// in a row are.
const (
	leash      = 25 * time.Millisecond
	quickTrip  = leash / 8
	quickTrips = 8
)

// leashes are shared by all drivers: many Clients in one process then need one timer.
var leashes bound.Shared

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
	lanesMax = 6
	busMost  = 128
)

// call runs a command and returns its reply, classified. A server that does not
// know the script gets it whole.
func (d *redisDriver) call(ctx context.Context, cmd *command, how manner) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err := d.lanes.carry(ctx, cmd, how)
	if redisnode.IsNoScript(err) && ctx.Err() == nil {
		cmd = cmd.Whole(ctx)
		err = d.lanes.carry(ctx, cmd, how)
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, redisnode.Classify(err)
	}
	return cmd.Val(), nil
}

func (l *lanes) carry(ctx context.Context, cmd *command, how manner) error {
	_, calm := ctx.(driver.Uncancelled)
	l.mu.Lock()
	quick := !calm && how == hasty && l.driver.swift != nil && l.quick == quickTrips
	calm = calm && l.driver.prompt
	if l.busy < lanesMax && !l.crowded && (calm || quick) {
		l.busy++
		l.mu.Unlock()
		return l.walk(ctx, cmd, calm)
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

// walk makes a call in the goroutine of its caller.
func (l *lanes) walk(ctx context.Context, cmd *command, calm bool) error {
	started := time.Now()
	client, call, end := l.driver.client, ctx, time.Time{}
	if !calm {
		client = l.driver.swift
		tied := leashes.Within(context.Background(), leash)
		end, _ = tied.Deadline()
		if own, ok := ctx.Deadline(); ok && own.Before(end) {
			var cancel context.CancelFunc
			tied, cancel = context.WithDeadline(l.driver.ctx, own)
			defer cancel()
			end = own
		}
		call = driver.Uncancelled{Context: tied, Values: ctx}
	}
	err := client.Process(call, cmd)
	answered := isAnswer(err)
	l.release(time.Since(started), answered)
	if answered || calm || time.Now().Before(end) {
		return err
	}
	return endOf(ctx, end)
}

// endOf is why a call on a leash was ended: by its context, or only by the leash.
func endOf(ctx context.Context, end time.Time) error {
	own, ok := ctx.Deadline()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case ok && !own.After(end): // its timer is about to fire
		return context.DeadlineExceeded
	}
	return driver.ErrHasty
}

// isAnswer reports whether the server has spoken.
func isAnswer(err error) bool {
	if err == nil {
		return true
	}
	var answer redis.Error
	return errors.As(err, &answer)
}

// ends are the channels that end a call, of which one may be nil.
func ends(ctx context.Context) (caller, bound <-chan struct{}) {
	if j, ok := ctx.(*driver.Joined); ok {
		return j.Ends()
	}
	return ctx.Done(), nil
}

// release gives a lane to those who wait, or back, after a trip of one.
func (l *lanes) release(took time.Duration, answered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(took, 1, answered)
	if len(l.waiting) > 0 && l.driver.ctx.Err() == nil {
		l.start()
		return
	}
	l.busy--
}

// note takes in how long a trip took, with how many, and whether it had an answer. It
// runs under mu.
func (l *lanes) note(took time.Duration, riders int, answered bool) {
	l.crowded = riders > 1
	if took > quickTrip || !answered {
		l.quick = 0
	} else if l.quick < quickTrips {
		l.quick++
	}
}

// start opens a lane. It runs under mu.
func (l *lanes) start() {
	l.driver.work.Go(func() {
		for bus := l.board(); len(bus) > 0; bus = l.board() {
			started := time.Now()
			answered := l.drive(bus)
			took := time.Since(started)
			l.mu.Lock()
			l.note(took, len(bus), answered)
			l.mu.Unlock()
			if len(bus) > 1 {
				runtime.Gosched() // those who just came back are about to come again
			}
		}
	})
}

// board takes all who wait and whose callers do. If there are none, the lane is given back.
func (l *lanes) board() (bus []*passenger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(bus) == 0 && len(l.waiting) > 0 && l.driver.ctx.Err() == nil {
		n := min(len(l.waiting), busMost)
		bus = slices.DeleteFunc(l.waiting[:n:n], func(p *passenger) bool { return p.gone })
		l.waiting = l.waiting[n:]
	}
	if len(bus) == 0 {
		l.busy--
	}
	return bus
}

// busBound is the longest that a trip may take, and so the longest that Close
// waits for one: nothing else ends a call that the client has begun.
const busBound = 750 * time.Millisecond

// drive makes a trip, and reports whether it had an answer. It lasts as long as the most
// patient of its riders.
func (l *lanes) drive(riders []*passenger) bool {
	var until time.Time
	for _, p := range riders {
		if p.until.After(until) {
			until = p.until
		}
	}
	ctx := l.bounds.Within(l.driver.ctx, busBound)
	if at, _ := ctx.Deadline(); at.After(until) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(l.driver.ctx, until)
		defer cancel()
	}
	if len(riders) == 1 {
		_ = l.driver.client.Process(ctx, riders[0].cmd) // the command has its error
	} else {
		pipe := l.driver.client.Pipeline()
		for _, p := range riders {
			_ = pipe.Process(ctx, p.cmd)
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
	}
	answered := isAnswer(riders[0].cmd.Err()) // before it goes back to its caller
	for _, p := range riders {
		close(p.done)
	}
	return answered
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
