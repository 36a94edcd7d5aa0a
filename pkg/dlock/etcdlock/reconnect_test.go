package etcdlock_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// A deadServer closes every connection, and counts them.
type deadServer struct {
	net.Listener
	dials atomic.Int64
}

func startDead(t *testing.T) *deadServer {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, done := &deadServer{Listener: l}, make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.dials.Add(1)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return s
}

// dialsOf counts how often a process tries to connect to a dead server. The process has called the
// server once and then uses locks as use says.
func dialsOf(t *testing.T, span time.Duration, use func(context.Context, *clientv3.Client)) int64 {
	t.Helper()
	server := startDead(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + server.Addr().String()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	once, end := context.WithTimeout(ctx, 500*time.Millisecond)
	_, _ = client.Get(once, "x")
	end()
	use(ctx, client)
	<-ctx.Done()
	return server.dials.Load()
}

// openLocks opens locks on a client, and closes them when the context ends.
func openLocks(ctx context.Context, t *testing.T, backend driver.Opener) *dlock.Client {
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(backend))
	if err != nil {
		t.Error(err)
		return nil
	}
	context.AfterFunc(ctx, func() { _ = c.Close() })
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A server is down. A process that needs no lock leaves reconnecting to the client's own backoff;
// so does a process with that option. A process that waits for a lock reconnects sooner, but not
// forever at the same rate.
func TestReconnectsAreLimited(t *testing.T) {
	t.Parallel()
	span := 10 * time.Second
	if testenv.UnderStress(0, 1) == 1 {
		span = 20 * time.Second
	}
	uses := []func(context.Context, *clientv3.Client){
		func(context.Context, *clientv3.Client) {},
		func(ctx context.Context, client *clientv3.Client) { openLocks(ctx, t, etcdlock.New(client)) },
		func(ctx context.Context, client *clientv3.Client) {
			_, _ = openLocks(ctx, t, etcdlock.New(client, etcdlock.WithClientBackoff())).Acquire(ctx, "k")
		},
		func(ctx context.Context, client *clientv3.Client) {
			_, _ = openLocks(ctx, t, etcdlock.New(client)).Acquire(ctx, "k")
		},
	}
	dials := make([]int64, len(uses))
	var wg sync.WaitGroup
	for i, use := range uses {
		wg.Go(func() { dials[i] = dialsOf(t, span, use) })
	}
	wg.Wait()
	alone, idle, asked, waiting := dials[0], dials[1], dials[2], dials[3]
	t.Logf("%v: %d dials without locks, %d with unused locks, %d with the client's back-off, %d with a waiter", span, alone, idle, asked, waiting)
	if alone == 0 {
		t.Fatal("nothing was dialled")
	}
	alone = max(alone, 7) // as many as there may be with the shortest pauses: they differ by chance, and on a slow machine by more
	if idle > alone+2 || asked > alone+2 {
		t.Errorf("%d and %d dials, not %d", idle, asked, alone)
	}
	if waiting > alone+22 {
		t.Errorf("%d dials for a waiter", waiting)
	}
}
