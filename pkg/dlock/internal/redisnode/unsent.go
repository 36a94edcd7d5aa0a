package redisnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A body is the argument of a Command that is the script or its hash. go-redis encodes arguments
// only when it writes a command to a connection, so the body knows whether any attempt to send the
// command was made. The error of a call does not show this: the client, or a hook of the user, may
// have sent the command, lost the connection, and failed to open the next one.
type body struct {
	script *Script
	cmd    *redis.Cmd
	whole  bool
	state  atomic.Uint32
}

const (
	unwritten uint32 = iota
	written
	withdrawn
)

// noHash and noScript are sent in place of a withdrawn script: the command may share a pipeline
// with others, so it cannot be left out. No script has that hash.
var (
	noHash   = []byte("0000000000000000000000000000000000000000")
	noScript = []byte("return false")
)

// MarshalBinary is called by go-redis when it writes the command. If a server has refused the command before, as
// one that is no longer its master does, that is no answer to this attempt: go-redis keeps the error if the
// attempt has none of its own.
func (b *body) MarshalBinary() ([]byte, error) {
	var refused redis.Error
	if errors.As(b.cmd.Err(), &refused) {
		b.cmd.SetErr(nil)
	}
	b.state.CompareAndSwap(unwritten, written)
	gone := b.state.Load() == withdrawn
	switch {
	case gone && b.whole:
		return noScript, nil
	case gone:
		return noHash, nil
	case b.whole:
		return b.script.source, nil
	}
	return b.script.hash, nil
}

// String is for code that logs commands.
func (b *body) String() string {
	if b.whole {
		return b.script.Source
	}
	return b.script.Hash
}

// Withdraw makes sure that the command will not be carried out, and reports whether it could: a
// command that was written may have been carried out.
func (c *Command) Withdraw() bool {
	return c.body.state.CompareAndSwap(unwritten, withdrawn) || c.body.state.Load() == withdrawn
}

// Execute sends a pipeline and returns its commands. Each then has its own error, also if a hook of the
// client has ended the pipeline without sending it, and none if it was answered before the pipeline failed.
func Execute(ctx context.Context, pipe redis.Pipeliner) []redis.Cmder {
	cmds, err := pipe.Exec(ctx)
	if err == nil {
		return cmds
	}
	for _, c := range cmds {
		cmd, ok := c.(*Command)
		switch {
		case !ok:
		case cmd.Val() != nil:
			cmd.SetErr(nil)
		case cmd.Err() == nil:
			cmd.SetErr(err)
		}
	}
	return cmds
}

// Rewind resets a command that a server has refused, so that it can be sent again.
func (c *Command) Rewind() {
	c.body.state.CompareAndSwap(written, unwritten)
	c.SetErr(nil)
}

// Answered reports whether the server has carried out the command. redis.Nil is an answer, except
// for a command that was not sent: sentinels return it for a master that they do not know.
func (c *Command) Answered(err error) bool {
	return err == nil || (errors.Is(err, redis.Nil) && c.body.state.Load() == written)
}

// Classify says what an error of this command means for the claim: if the command was never
// written, nothing was carried out, whatever the error is.
func (c *Command) Classify(err error) error {
	var reply redis.Error
	isReply := errors.As(err, &reply) && !errors.Is(err, redis.Nil)
	if err == nil || isReply || c.body.state.Load() == written {
		return classifyReply(err)
	}
	return Unsent(err)
}

// Unsent returns the error of a call that was not sent.
func Unsent(err error) error {
	if isContextError(err) {
		err = fmt.Errorf("nothing was sent in time: %w", err)
	}
	class := driver.Transient
	if driver.ClassOf(err) == driver.Fatal || errors.Is(err, redis.ErrClosed) {
		class = driver.Fatal
	}
	return driver.Classify(fmt.Errorf("%w: %w", driver.ErrUnavailable, err), class)
}

func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// isUnsent reports whether an error can only occur before anything is sent.
func isUnsent(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case errors.As(err, &op) && op.Op == "dial", errors.As(err, &dns):
		return true
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return true
	}
	return false
}

// explainWithin is how long a call without a connection may take beyond its timeout to learn the
// cause. explainedFor is how long a cause is used for other calls, and how long a dial may take: its result
// is for the calls that follow.
const (
	explainWithin = 50 * time.Millisecond
	explainedFor  = time.Second
)

// An Explainer finds out why there is no connection, for all calls to a server, because many calls
// may end together. One goroutine at a time dials, because a dialer may ignore its context.
type Explainer struct {
	mu    sync.Mutex
	began time.Time     // when the last dial began
	done  chan struct{} // closed when it has ended; nil if none is in progress
	until time.Time     // how long its cause counts
	cause error
}

// Explain dials once to find a cause that the client does not report when a call ends before all
// its attempts to connect have failed. If there is no cause, it returns err. It returns within
// explainWithin, whatever the dialer does.
func (e *Explainer) Explain(client redis.UniversalClient, err error) error {
	done, left := e.start(client)
	if done != nil && left > 0 {
		t := time.NewTimer(left)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
			runtime.Gosched() // if the process itself was stopped, the dial may be about to end
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return cmp.Or(e.cause, err)
}

// start returns the dial in progress, or a new one if the last cause is too old, and how long it is
// worth waiting for.
func (e *Explainer) start(client redis.UniversalClient) (done <-chan struct{}, left time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if e.done == nil && now.Before(e.until) {
		return nil, 0
	}
	if e.done == nil {
		e.done, e.began, e.cause = make(chan struct{}), now, nil
		go e.dial(client, e.done)
	}
	return e.done, explainWithin - now.Sub(e.began)
}

func (e *Explainer) dial(client redis.UniversalClient, done chan<- struct{}) {
	cause := dialOnce(client)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cause, e.until, e.done = cause, time.Now().Add(explainedFor), nil
	close(done)
}

// dialOnce returns why none of the addresses can be dialed, or nil if one can or if dialing takes
// long.
func dialOnce(client redis.UniversalClient) (err error) {
	dial, network, addrs := dialerOf(client)
	ctx, cancel := context.WithTimeout(context.Background(), explainedFor)
	defer cancel()
	for _, addr := range addrs {
		conn, cause := dial(ctx, network, addr)
		if cause == nil {
			_ = conn.Close()
			return nil
		}
		if ctx.Err() == nil {
			err = cause
		}
	}
	return err
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// dialerOf returns how a client connects. It returns no addresses if the dialer may ignore its
// context, as the TLS dialer of go-redis does.
func dialerOf(client redis.UniversalClient) (dial dialFunc, network string, addrs []string) {
	switch c := client.(type) {
	case *redis.Client:
		o := c.Options()
		if o.TLSConfig == nil {
			return o.Dialer, o.Network, []string{o.Addr}
		}
	case *redis.ClusterClient:
		o := c.Options()
		if o.TLSConfig != nil {
			break
		}
		if o.Dialer == nil {
			return new(net.Dialer).DialContext, "tcp", o.Addrs
		}
		return o.Dialer, "tcp", o.Addrs
	}
	return nil, "", nil
}
