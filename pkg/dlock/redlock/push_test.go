package redlock

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// While the connection of a subscription to a node is being established, checking what is
// subscribed there does not block: that happens under the driver's mutex.
func TestASlowSubscriptionDelaysNoOther(t *testing.T) {
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
	e := &d.nodes[0].subscription
	e.want("channel")
	<-dialed
	closed, asked := make(chan struct{}), make(chan struct{})
	go func() { defer close(closed); e.close() }()
	go func() {
		defer close(asked)
		for !e.isEnded() {
			time.Sleep(time.Millisecond)
		}
		e.count("channel")
	}()
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Error("the caller waits for the connection")
	}
	close(release)
	<-closed
	_ = d.Close()
}

func (e *subscription) isEnded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}

// openOn returns a driver on three servers, and its first node. Only the driver limits a write.
func openOn(t *testing.T, addrs ...string) (*redDriver, *node) {
	t.Helper()
	var clients []redis.UniversalClient
	for _, addr := range addrs {
		c := redis.NewClient(&redis.Options{Addr: addr, WriteTimeout: -1, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	opened, err := New(clients).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d, _ := opened.(*redDriver)
	return d, d.nodes[0]
}

// A node that has stopped reading delays Close no longer than a call to it would.
func TestCloseDoesNotWaitForAWrite(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	d, n := openOn(t, server.Addr(), testenv.Redis(t).Addr(), testenv.Redis(t).Addr())
	e := &n.subscription
	e.want("first")
	testenv.Eventually(t, time.Minute, "a subscription", func() bool { return e.count("first") == 1 })
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Resume() }()
	name := strings.Repeat("x", 64<<10)
	for i := range 500 { // 32 MB, more than the buffers on the way to the server
		e.want(name + strconv.Itoa(i))
	}
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Close waits for a node that does not read")
		_ = server.Resume()
		<-closed
	}
}

// While a node is down, channels without a waiter are forgotten.
func TestADeadNodeCollectsNoChannels(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	d, n := openOn(t, server.Addr(), testenv.Redis(t).Addr(), testenv.Redis(t).Addr())
	defer func() { _ = d.Close() }()
	e := &n.subscription
	for i := range 100 {
		e.want(strconv.Itoa(i))
	}
	e.mu.Lock()
	for c := range e.wanted {
		e.wanted[c] = time.Now().Add(-2 * linger) // as time would
	}
	e.mu.Unlock()
	testenv.Eventually(t, time.Minute, "nothing is wanted", func() bool { return !e.isWanted() })
}

// A removal that the node refuses is retried, whatever happened to others in its batch.
func TestRefusedRemovalIsTriedAgain(t *testing.T) {
	t.Parallel()
	d, all := openPatient(t)
	n, direct := d.nodes[0], all[0].Client()
	defer func() { _ = direct.Close() }()
	set := func(name, value string) {
		t.Helper()
		if err := direct.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ref := driver.Ref{Key: "k", ID: letterID("a"), TTL: time.Hour}
	if st, err := d.Acquire(t.Context(), driver.Request{Ref: ref}); err != nil || st.Phase != driver.Held {
		t.Fatal(st, err)
	}
	testenv.Eventually(t, time.Minute, "the node has the claim and its token", func() bool {
		fields := strings.Fields(direct.Get(t.Context(), "k").Val())
		return len(fields) > 1 && fields[1] != "0"
	})
	set("min-replicas-to-write", "1")
	by := time.Now().Add(time.Hour)
	n.leave(leftover{names: d.namesOf("k"), id: ref.ID, by: by}, // which writes
		leftover{names: d.namesOf("other"), id: letterID("b"), round: 1, by: by}) // which need not
	testenv.Eventually(t, time.Minute, "the node refuses", func() bool {
		return strings.Contains(direct.Info(t.Context(), "errorstats").Val(), "NOREPLICAS")
	})
	set("min-replicas-to-write", "0")
	testenv.Eventually(t, time.Minute, "the claim is removed", func() bool { return direct.Exists(t.Context(), "k").Val() == 0 })
}
