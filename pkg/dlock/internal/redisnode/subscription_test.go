package redisnode_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A pause doubles from 10 ms to its maximum.
func TestBackoff(t *testing.T) {
	var b redisnode.Backoff
	for i, want := range []time.Duration{10, 20, 40, 80, 100, 100} {
		if got := b.Next(100 * time.Millisecond); got != want*time.Millisecond {
			t.Errorf("pause %d is %v, want %d ms", i, got, want)
		}
	}
}

// A pause is short again after a connection that lasted for a second, and not after one that broke at once or never was.
func TestBackoffAfterAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for lasted, want := range map[time.Duration]time.Duration{0: 20, time.Second - 1: 20, time.Second: 10} {
			var b redisnode.Backoff
			b.Next(time.Second)
			since := time.Now()
			time.Sleep(lasted)
			b.Lasted(since)
			if got := b.Next(time.Second); got != want*time.Millisecond {
				t.Errorf("after a connection of %v, the pause is %v, want %d ms", lasted, got, want)
			}
		}
		var b redisnode.Backoff
		b.Next(time.Second)
		b.Lasted(time.Time{})
		if got := b.Next(time.Second); got != 20*time.Millisecond {
			t.Errorf("without a connection, the second pause is %v", got)
		}
	})
}

// A channel that is wanted before the connection exists is requested by Open, a later one by its
// caller, and each of them once.
func TestEachChannelIsRequestedOnce(t *testing.T) {
	server := testenv.Redis(t)
	client := server.Client()
	defer client.Close()
	s := redisnode.NewSubscription(context.Background(), client, false, time.Minute)
	defer s.Close()
	receive := func(kind, channel string) {
		t.Helper()
		msg, err := s.Receive()
		m, ok := msg.(*redis.Subscription)
		if err != nil || !ok || m.Kind != kind || m.Channel != channel {
			t.Fatalf("%v, %v; want %s %s", msg, err, kind, channel)
		}
	}
	if s.Want("a") {
		t.Error("the caller is to request a channel before there is a connection")
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	receive("subscribe", "a")
	if !s.Want("b") || s.Want("b") || s.Want("a") {
		t.Error("a new channel is to be requested by its first caller only")
	}
	s.Request("b")
	if first, ok := s.FirstUnconfirmed(); !ok || first != "a" {
		t.Errorf("%q is the first without a confirmation", first)
	}
	if !s.Confirm("a") || s.Confirm("a") || !s.IsConfirmed("a") || s.IsConfirmed("b") || s.IsComplete() {
		t.Error("a channel is confirmed once, and b is not yet")
	}
	receive("subscribe", "b")
	if first, ok := s.FirstUnconfirmed(); !ok || first != "b" {
		t.Errorf("%q is the first without a confirmation", first)
	}
	if !s.Confirm("b") || !s.IsComplete() || s.Confirm("c") {
		t.Error("all that is wanted is confirmed, and nothing else can be")
	}
	if err := client.Publish(t.Context(), "b", "hello").Err(); err != nil {
		t.Fatal(err)
	}
	if msg, err := s.Receive(); err != nil || msg.(*redis.Message).Payload != "hello" {
		t.Errorf("%v, %v", msg, err)
	}
	s.Drop("b")
	s.Unsubscribe("b")
	receive("unsubscribe", "b")
	s.Unconfirm("b")
	if s.IsWanted("b") || s.IsConfirmed("b") || !s.Want("b") {
		t.Error("a dropped channel is still known")
	}
}

// A connection that breaks is reported, and is not made again by a request.
func TestBrokenConnectionStaysBroken(t *testing.T) {
	server := testenv.Redis(t)
	client := server.Client()
	defer client.Close()
	s := redisnode.NewSubscription(context.Background(), client, false, time.Minute)
	s.Want("a")
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Receive(); err != nil {
		t.Fatal(err)
	}
	if n, err := client.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Result(); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if msg, err := s.Receive(); err == nil {
		t.Errorf("received %v", msg)
	}
	s.Request("b")
	if msg, err := s.Receive(); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("received %v, %v", msg, err)
	}
	s.Close()
	s.Close()
	if n := client.PubSubNumSub(t.Context(), "a", "b").Val(); n["a"]+n["b"] > 0 {
		t.Errorf("subscribers: %v", n)
	}
}
