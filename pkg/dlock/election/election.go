// Package election lets one of several processes lead, on any backend of package dlock.
//
// Each process creates an Election and calls Run. One of them is elected; the others wait in order of
// arrival, where the backend has one. The leader's context ends before another process can be elected, unless the
// process was paused for longer than its lease. Where that matters, pass the term, which is a fencing token, to
// the system that you write to.
//
//	e, err := election.New(locks, "billing:leader", election.Callbacks{
//		OnElected: func(ctx context.Context, term int64) { serve(ctx, term) },
//	})
//	if err != nil {
//		return err
//	}
//	ctx, stop := context.WithCancel(ctx)
//	done := make(chan error, 1)
//	go func() { done <- e.Run(ctx) }() // until ctx ends
//	...
//	stop()
//	<-done // OnElected has returned: now locks.Close may be called
//
// Close the Client after Run has returned: a Client that is closed while OnElected runs gives the lease back, and another process
// leads while this one is still stopping.
package election

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/internal/recipes"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

var (
	// ErrNoLeader: no process leads at the moment.
	ErrNoLeader = xerrors.New("no_leader", "there is no leader")
	// ErrNotLeader: this process does not lead.
	ErrNotLeader = xerrors.New("not_leader", "this process is not the leader")
	// ErrNotRenewed: this process leads, and less than half of its lease is left, because renewals fail.
	ErrNotRenewed = xerrors.New("leader_not_renewed", "the leader's lease is not renewed")
	// ErrResigned is the cause of a leader's context after Resign.
	ErrResigned = xerrors.New("resigned", "the leader has resigned")
	// ErrRunning: Run was called while it runs.
	ErrRunning = xerrors.New("election_running", "the election is running")
)

// Callbacks are called by Run, one at a time except for OnNewLeader.
type Callbacks struct {
	// OnElected runs while this process leads. Its context ends when the process no longer does; it must
	// return then. If it returns earlier, the process resigns. term is greater than that of every earlier
	// leader; it is 0 on a backend without fencing. It is required.
	OnElected func(ctx context.Context, term int64)
	// OnResigned is called after OnElected has returned and the lease was given back or has ended, or its release
	// continues in the background. cause says why: nil if OnElected returned by itself, dlock.ErrOwnershipLost after a loss, ErrResigned after Resign.
	OnResigned func(term int64, cause error)
	// OnNewLeader is called when another process or this one is seen to lead, some time after it was elected. It must not
	// block.
	OnNewLeader func(Leader)
}

// A Leader is the process that leads.
type Leader struct {
	Term  int64
	Owner string // the program
	Host  string
	PID   int
	Value string        // what it has published; see SetValue
	For   time.Duration // how long it has led; on etcd, since it stood for election
}

// An Option changes an Election.
type Option func(*Election)

// WithTTL sets the lease: how long a leader that died is still the leader. The default is that of the Client.
func WithTTL(ttl time.Duration) Option { return func(e *Election) { e.ttl = ttl } }

// WithValue sets the value that the leader publishes, such as its address. See SetValue.
func WithValue(value string) Option { return func(e *Election) { e.value = value } }

// WithPoll sets how often Observe and OnNewLeader ask who leads, and how long Run pauses after a term that was shorter,
// and after an error. The default is a second.
func WithPoll(every time.Duration) Option { return func(e *Election) { e.poll = every } }

// An Election is one process's candidacy. Its methods may be called from any goroutine.
type Election struct {
	locks *dlock.Client
	name  string
	calls Callbacks
	ttl   time.Duration
	poll  time.Duration

	mu      sync.Mutex
	running bool
	value   string
	changed chan struct{} // buffered by one: value was changed
	led     *leadership   // nil while this process does not lead
}

// A leadership is one term of this process.
type leadership struct {
	guard  *dlock.Guard
	since  time.Time
	resign context.CancelCauseFunc
	ended  chan struct{} // closed when the lease was given back
}

const (
	maxValue = 200 // bytes
	maxName  = 1024
)

// New returns an Election. It does no I/O. It uses the locks name and name+":value" of the Client.
func New(locks *dlock.Client, name string, calls Callbacks, opts ...Option) (*Election, error) {
	e := &Election{locks: locks, name: name, calls: calls, poll: time.Second, changed: make(chan struct{}, 1)}
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%w: election: option %d is nil", dlock.ErrInvalidConfig, i)
		}
		opt(e)
	}
	switch {
	case locks == nil:
		return nil, fmt.Errorf("%w: election: the Client is nil", dlock.ErrInvalidConfig)
	case name == "" || len(e.valueKey()) > maxName:
		return nil, fmt.Errorf("%w: election: the name has %d bytes, not 1 to %d", dlock.ErrInvalidKey, len(name), maxName-len(recipes.ValueSuffix))
	case calls.OnElected == nil:
		return nil, fmt.Errorf("%w: election: OnElected is nil", dlock.ErrInvalidConfig)
	case e.ttl < 0:
		return nil, fmt.Errorf("%w: election: WithTTL(%v)", dlock.ErrInvalidTTL, e.ttl)
	case e.poll < time.Millisecond:
		return nil, fmt.Errorf("%w: election: WithPoll(%v) is below 1ms", dlock.ErrInvalidConfig, e.poll)
	}
	if err := checkValue(e.value); err != nil {
		return nil, err
	}
	return e, nil
}

// Run stands for election until ctx ends, and returns its cause. After each term it stands again: behind the
// others, where the backend serves waiters in order of arrival. After a term that was shorter than WithPoll, it
// pauses for that time. It returns earlier only with an error that waiting does not cure, such as dlock.ErrDenied
// or dlock.ErrClosed. It returns after OnElected has: close the Client only then, because Close gives the lease back.
func (e *Election) Run(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%w: election: the context is nil", dlock.ErrInvalidConfig)
	}
	e.mu.Lock()
	if e.running {
		e.mu.Unlock()
		return ErrRunning
	}
	e.running = true
	e.mu.Unlock()
	watched, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	if e.calls.OnNewLeader != nil {
		watching.Go(func() { e.announce(watched) })
	}
	defer func() {
		stop()
		watching.Wait()
		e.mu.Lock()
		e.running = false
		e.mu.Unlock()
	}()
	for {
		guard, err := e.locks.Acquire(ctx, e.name, e.options(recipes.Candidate)...)
		switch {
		case ctx.Err() != nil && err != nil:
			return context.Cause(ctx)
		case err != nil && recipes.IsTemporary(err):
			if !sleep(ctx, e.poll) { // a Client with MaxRetries does not try again
				return context.Cause(ctx)
			}
			continue
		case err != nil:
			return err
		}
		began := time.Now()
		e.lead(ctx, guard)
		if ctx.Err() != nil || (time.Since(began) < e.poll && !sleep(ctx, e.poll)) {
			return context.Cause(ctx)
		}
	}
}

func (e *Election) options(purpose string) (opts []dlock.LockOption) {
	if e.ttl > 0 {
		opts = append(opts, dlock.WithTTL(e.ttl))
	}
	return append(opts, dlock.WithInfo(dlock.Info{Purpose: purpose}))
}

// errPanicked is the cause of a term whose OnElected has panicked.
var errPanicked = errors.New("election: OnElected panicked")

// lead runs one term.
func (e *Election) lead(ctx context.Context, guard *dlock.Guard) {
	term, cause := guard.Token(), errPanicked
	l := &leadership{guard: guard, since: time.Now(), resign: func(error) {}, ended: make(chan struct{})}
	var publishing sync.WaitGroup
	defer func() { // also if OnElected or the context panics
		l.resign(nil)
		failed := guard.Unlock(ctx)
		publishing.Wait()
		if errors.Is(failed, dlock.ErrOwnershipLost) {
			cause = failed
		}
		e.mu.Lock()
		e.led = nil
		e.mu.Unlock()
		close(l.ended)
		if e.calls.OnResigned != nil {
			e.calls.OnResigned(term, cause)
		}
	}()
	owned, cancel := guard.WithContext(ctx)
	defer cancel()
	leading, resign := context.WithCancelCause(owned)
	l.resign = resign
	e.mu.Lock()
	e.led = l
	select {
	case <-e.changed: // it is published anyway
	default:
	}
	e.mu.Unlock()
	publishing.Go(func() { e.publish(leading, term) })
	e.calls.OnElected(leading, term)
	cause = context.Cause(leading)
}

// Resign ends the leader's context, waits until OnElected has returned, and gives the lease back. This process
// then stands again, behind the others where the backend serves in order of arrival. If it does not lead, the error is
// ErrNotLeader. If ctx ends first, the process resigns nevertheless. OnElected itself just returns instead: with its
// context, Resign does not wait.
func (e *Election) Resign(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("%w: election: the context is nil", dlock.ErrInvalidConfig)
	}
	e.mu.Lock()
	l := e.led
	e.mu.Unlock()
	if l == nil {
		return ErrNotLeader
	}
	l.resign(ErrResigned)
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Term returns the term of this process, and whether it leads now.
func (e *Election) Term() (term int64, leads bool) {
	e.mu.Lock()
	l := e.led
	e.mu.Unlock()
	if l == nil || l.guard.Remaining() <= 0 {
		return 0, false
	}
	return l.guard.Token(), true
}

// Check is for health checks. It returns ErrNotRenewed if this process leads and less than half of its lease
// is left: it is renewed every third, so renewals fail. A process that does not lead is healthy.
func (e *Election) Check(context.Context) error {
	e.mu.Lock()
	l := e.led
	e.mu.Unlock()
	if l == nil {
		return nil
	}
	if errors.Is(l.guard.Err(), dlock.ErrLockNotHeld) {
		return nil // it is giving the lease back
	}
	left, ttl := l.guard.Remaining(), l.guard.TTL()
	if left < ttl/2 && time.Since(l.since) > granted {
		return fmt.Errorf("%w: %v are left of %v", ErrNotRenewed, left, ttl)
	}
	return nil
}

// granted is how long a lock that was just granted to a waiter may have less than its whole lease.
const granted = 3 * time.Second
