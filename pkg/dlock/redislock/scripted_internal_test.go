package redislock

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A scripted hook answers the scripts of a driver in place of a server.
type scripted struct {
	answer   func(ctx context.Context, c sent) (any, error)
	replicas int64 // how many confirm a WAIT
	waitErr  error // of WAIT

	mu    sync.Mutex
	calls []sent
}

// A sent is a script that a driver has sent.
type sent struct {
	script     string // its name, with "whole" before it if its source was sent
	keys, args []string
	n          int // how many were sent before
}

var scriptNames = map[*redisnode.Script]string{
	acquireScript: "acquire", acquireJointScript: "acquireJoint", acquireBatchScript: "acquireBatch", renewHeldScript: "renewHeld",
	renewJointScript: "renewJoint", renewQueueScript: "renewQueue", releaseScript: "release", releaseBatchScript: "releaseBatch",
	inspectScript: "inspect", lookScript: "look",
}

func (*scripted) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *scripted) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return h.do(ctx, cmd) }
}

func (h *scripted) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (first error) {
		for _, cmd := range cmds {
			err := h.do(ctx, cmd)
			cmd.SetErr(err)
			if first == nil {
				first = err
			}
		}
		return first
	}
}

func (h *scripted) do(ctx context.Context, cmd redis.Cmder) error {
	if wait, ok := cmd.(*redis.IntCmd); ok && cmd.Name() == "wait" {
		wait.SetVal(h.replicas)
		return h.waitErr
	}
	c, ok := cmd.(*command)
	if !ok {
		return errors.New("only scripts are answered")
	}
	raw, err := c.Args()[1].(encoding.BinaryMarshaler).MarshalBinary() // as go-redis does when it writes the command
	if err != nil {
		return err
	}
	call := sent{}
	for s, name := range scriptNames {
		switch string(raw) {
		case s.Hash:
			call.script = name
		case s.Source:
			call.script = "whole " + name
		}
	}
	keys, _ := c.Args()[2].(int)
	for i, word := range c.Args()[3:] {
		if i < keys {
			call.keys = append(call.keys, fmt.Sprint(word))
		} else {
			call.args = append(call.args, fmt.Sprint(word))
		}
	}
	h.mu.Lock()
	call.n = len(h.calls)
	h.calls = append(h.calls, call)
	h.mu.Unlock()
	v, err := h.answer(ctx, call)
	if err == nil {
		c.SetVal(v)
	}
	return err
}

// sentScripts returns the names of the scripts that were sent.
func (h *scripted) sentScripts() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.calls {
		names = append(names, c.script)
	}
	return names
}

func (h *scripted) wantSent(t *testing.T, want ...string) {
	t.Helper()
	if got := h.sentScripts(); !slices.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
}

// openScripted returns a driver whose scripts a function answers.
func openScripted(t *testing.T, answer func(ctx context.Context, c sent) (any, error), opts ...Option) (*redisDriver, *scripted) {
	t.Helper()
	client, h := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true, DialerRetries: 1, MaxRetries: -1}), &scripted{answer: answer}
	client.AddHook(h)
	opened, err := New(client, opts...).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d, _ := opened.(*redisDriver)
	d.warned.Do(func() {}) // Check is not answered
	replicas, ok := d.replicaClient.(*redis.Client)
	if ok {
		replicas.AddHook(h)
	}
	t.Cleanup(func() {
		_ = d.Close()
		_ = client.Close()
	})
	return d, h
}

// always returns the same answer to each script.
func always(reply any, err error) func(context.Context, sent) (any, error) {
	return func(context.Context, sent) (any, error) { return reply, err }
}

// subscribedAt makes a driver consider itself subscribed in a slot.
func subscribedAt(t *testing.T, d *redisDriver, slot int) *subscription {
	t.Helper()
	client, _ := d.client.(*redis.Client)
	if client == nil {
		client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		t.Cleanup(func() { _ = client.Close() })
	}
	l := &d.subscriptions
	s := &slotSubscription{slot: slot, channel: d.channelFor(""), confirmed: true, attempted: make(chan struct{})}
	s.unblock()
	c := &subscription{all: l, client: client, slots: map[int]*slotSubscription{slot: s}}
	c.connection = redisnode.NewSubscription(d.ctx, client, false, tripTimeout)
	s.conn = c
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slots == nil {
		l.slots, l.conns, l.warned = map[int]*slotSubscription{}, map[string]*subscription{}, map[string]bool{}
	}
	l.slots[slot], l.conns[""] = s, c
	return c
}

// idOf returns the ID of a test claim.
func idOf(letter string) string { return strings.Repeat(letter, idLength) }
