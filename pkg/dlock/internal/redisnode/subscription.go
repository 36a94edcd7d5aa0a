package redisnode

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Quiet is how long a connection may be silent before it is pinged: a half-open connection would
// never report its end.
const Quiet = 5 * time.Second

// A Subscription is one connection on which a server sends what is published to some channels. It
// does not reconnect: when it breaks, its owner opens another one.
type Subscription struct {
	ctx     context.Context // ends with the owner
	timeout time.Duration   // of each command
	sharded bool
	pubsub  *redis.PubSub
	pinged  bool          // since the last message
	sending chan struct{} // has an element while a command is sent, or the connection closed

	mu          sync.Mutex // held for moments, never while the server is called
	channels    map[string]*channel
	requests    int
	established bool // the connection is made, and everything that was wanted is requested
}

// A channel is the state of one channel that is wanted.
type channel struct {
	taken     bool // its request is made or about to be
	request   int  // its place among the requests
	confirmed bool
}

// NewSubscription returns a subscription that has no connection yet.
func NewSubscription(ctx context.Context, client *redis.Client, sharded bool, timeout time.Duration) *Subscription {
	return &Subscription{
		ctx: ctx, timeout: timeout, sharded: sharded, pubsub: client.Subscribe(ctx),
		sending: make(chan struct{}, 1), channels: map[string]*channel{},
	}
}

// Want adds a channel. It reports whether the caller has to Request it; otherwise Open does, or it
// is already requested.
func (s *Subscription) Want(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[name]
	if c == nil {
		c = &channel{}
		s.channels[name] = c
	}
	if c.taken || !s.established {
		return false
	}
	c.taken = true
	return true
}

// IsWanted reports whether a channel was added and not dropped.
func (s *Subscription) IsWanted(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channels[name] != nil
}

// Drop forgets channels. The server still sends them until Unsubscribe.
func (s *Subscription) Drop(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.channels, name)
	}
}

// Open makes the connection and requests the channels that are wanted, also those that are added
// meanwhile. Nothing else makes a connection: this has a timeout, so that Close does not wait for a
// dead link.
func (s *Subscription) Open() error {
	for names := s.untaken(); len(names) > 0; names = s.untaken() {
		err := s.request(s.ctx, names...)
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Subscription) untaken() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, c := range s.channels {
		if !c.taken {
			c.taken = true
			names = append(names, name)
		}
	}
	s.established = len(names) == 0
	return names
}

// Request asks the server for a channel. If it fails, the subscription is closed, and Receive
// returns an error.
func (s *Subscription) Request(name string) { _ = s.request(over, name) }

// request asks for channels, one at a time if they are sharded: the server refuses a command with
// channels of several slots.
func (s *Subscription) request(ctx context.Context, names ...string) error {
	s.sending <- struct{}{} // answers come in the order of what was sent
	defer func() { <-s.sending }()
	for len(names) > 0 {
		n := len(names)
		if s.sharded {
			n = 1
		}
		s.number(names[:n])
		err := s.send(ctx, func(ctx context.Context) error {
			if s.sharded {
				return s.pubsub.SSubscribe(ctx, names[:n]...)
			}
			return s.pubsub.Subscribe(ctx, names[:n]...)
		})
		if err != nil {
			return err
		}
		names = names[n:]
	}
	return nil
}

func (s *Subscription) number(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		s.requests++
		if c := s.channels[name]; c != nil {
			c.request = s.requests
		}
	}
}

// Unsubscribe asks the server to send channels no more.
func (s *Subscription) Unsubscribe(names ...string) {
	if len(names) == 0 {
		return
	}
	s.sending <- struct{}{}
	defer func() { <-s.sending }()
	if !s.sharded {
		_ = s.send(over, func(ctx context.Context) error { return s.pubsub.Unsubscribe(ctx, names...) })
		return
	}
	for _, name := range names {
		_ = s.send(over, func(ctx context.Context) error { return s.pubsub.SUnsubscribe(ctx, name) })
	}
}

// send sends a command. If it fails, send closes the subscription, and Receive returns an error: a
// dialer that ignores its context may have opened another connection by now, on which no channel
// was requested.
func (s *Subscription) send(ctx context.Context, command func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := command(ctx)
	if err != nil {
		_ = s.pubsub.Close()
	}
	return err
}

// over is a context that has ended. With it, go-redis does not reconnect a broken subscription by
// itself, without a timeout and with all channels in one command: Close would wait for the
// connection, and a cluster refuses the command.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Receive returns the next message, or nil after a while without one. A reply of the server that is
// an error does not break the connection, and Receive may be called again.
func (s *Subscription) Receive() (any, error) {
	msg, err := s.pubsub.ReceiveTimeout(over, Quiet)
	if err == nil {
		s.pinged = false
		return msg, nil
	}
	var late net.Error
	if !errors.As(err, &late) || !late.Timeout() || s.pinged {
		return nil, err
	}
	s.pinged = true
	_ = s.send(over, func(ctx context.Context) error { return s.pubsub.Ping(ctx) }) // the answer, or its absence, says more
	return nil, nil
}

// Confirm records that the server has confirmed a channel, and reports whether that is new.
func (s *Subscription) Confirm(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[name]
	if c == nil || c.confirmed {
		return false
	}
	c.confirmed = true
	return true
}

// Unconfirm records that the server sends a channel no more.
func (s *Subscription) Unconfirm(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.channels[name]; c != nil {
		c.confirmed = false
	}
}

// IsConfirmed reports whether the server sends a channel.
func (s *Subscription) IsConfirmed(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[name]
	return c != nil && c.confirmed
}

// IsComplete reports whether the server sends every channel that is wanted.
func (s *Subscription) IsComplete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.channels {
		if !c.confirmed {
			return false
		}
	}
	return true
}

// FirstUnconfirmed returns the channel that was requested first of those that are not confirmed:
// an error that the server replies is about it.
func (s *Subscription) FirstUnconfirmed() (name string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := 0
	for n, c := range s.channels {
		if !c.confirmed && c.request > 0 && (first == 0 || c.request < first) {
			name, first = n, c.request
		}
	}
	return name, first > 0
}

// Close closes the connection, after waiting while a command is sent. Receive then returns an error.
func (s *Subscription) Close() {
	s.sending <- struct{}{}
	_ = s.pubsub.Close()
	<-s.sending
}

// A Backoff is a pause that doubles each time.
type Backoff time.Duration

// MaxBackoff is the longest pause before the next attempt to subscribe, unless the server refuses.
const MaxBackoff = time.Second

// Next returns the next pause, which is at most most.
func (b *Backoff) Next(most time.Duration) time.Duration {
	*b = Backoff(min(max(2*time.Duration(*b), 10*time.Millisecond), most))
	return time.Duration(*b)
}

// steady is how long a connection must last for the next pause to be short again. After each new connection all waiters ask, and
// a connection that breaks again and again must not make them do so all the time.
const steady = time.Second

// Lasted records that a connection broke which had been complete since then; since is zero if it never was.
func (b *Backoff) Lasted(since time.Time) {
	if !since.IsZero() && time.Since(since) >= steady {
		*b = 0
	}
}
