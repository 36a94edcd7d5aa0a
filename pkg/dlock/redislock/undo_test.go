package redislock_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A claim that too few replicas have is taken back, and the release that does it arrives late,
// when the replicas are there again and the call has got its lock. It takes nothing away.
func TestLateUndoSparesTheNextGrant(t *testing.T) {
	t.Parallel()
	master, replica := startPair(t)
	direct := dialRedis(t, master.Addr())
	p := testenv.Proxy(t, master.Addr())
	p.DeliverAfterClose(true)
	a := locksOn(t, redislock.New(dialRedis(t, p.Addr()), redislock.WithMinReplicas(1, 100*time.Millisecond)), dlock.Config{})
	b := locksAt(t, master.Addr())
	unlock(t, acquire(t, a, "k")) // the server knows the scripts from here on
	isolate(t, master, replica)
	late, gate := make(chan []string, 1), make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	var held atomic.Bool
	releases := redislock.Scripts("release")
	p.Intercept(func(cmd []string) servers.Action {
		if len(cmd) > 1 && cmd[0] == "EVALSHA" && releases[cmd[1]] != "" && held.CompareAndSwap(false, true) {
			late <- cmd
			<-gate
		}
		return servers.Forward
	})
	got := make(chan *dlock.Guard, 1)
	go func() {
		g, err := a.Acquire(context.Background(), "k", dlock.WithTTL(time.Hour))
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	undo := <-late
	check(t, replica.Resume())
	g := <-got
	if g == nil {
		t.FailNow()
	}
	check(t, direct.ConfigSet(t.Context(), "slowlog-log-slower-than", "0").Err())
	open()
	testenv.Eventually(t, time.Minute, "the late release arrives", func() bool {
		log, err := direct.SlowLogGet(t.Context(), -1).Result()
		check(t, err)
		return slices.ContainsFunc(log, func(l redis.SlowLog) bool { return len(l.Args) > 2 && slices.Equal(l.Args[1:], undo[1:]) })
	})
	ok, err := b.TryLock(t.Context(), "k", dlock.WithTTL(time.Hour))
	if ok || g.Context().Err() != nil {
		t.Errorf("another gets the lock of token %d: %v, %v", g.Token(), ok, err)
	}
	unlock(t, g)
}
