package redlock

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A node to which the connection of the subscription is just being made holds up nobody
// who asks what is heard there: that is asked under the driver's mutex.
func TestASlowSubscriptionHoldsUpNobody(t *testing.T) {
	dialed, release := make(chan struct{}, 100), make(chan struct{})
	var clients []redis.UniversalClient
	for _, addr := range []string{"one:1", "two:1", "three:1"} {
		c := redis.NewClient(&redis.Options{
			Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				dialed <- struct{}{}
				<-release
				return nil, errors.New("no such host")
			},
		})
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	opened, err := New(clients).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d, _ := opened.(*redDriver)
	e := &d.nodes[0].ear
	e.want("channel")
	<-dialed
	closed, asked := make(chan struct{}), make(chan struct{})
	go func() { defer close(closed); e.close() }()
	go func() {
		defer close(asked)
		for !e.isEnded() {
			runtime.Gosched()
		}
		e.count("channel")
	}()
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Error("who asks waits for the connection")
	}
	close(release)
	<-closed
	_ = d.Close()
}

func (e *ear) isEnded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}
