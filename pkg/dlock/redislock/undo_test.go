package redislock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A claim with too few replicas is taken back, and the release that does it arrives late, when the
// replicas are back and the call has got its lock. The release does not remove the lock.
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
	p.Intercept(func(cmd []string) faultproxy.Action {
		if len(cmd) > 1 && cmd[0] == "EVALSHA" && releases[cmd[1]] != "" && held.CompareAndSwap(false, true) {
			late <- cmd
			<-gate
		}
		return faultproxy.Forward
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

// A claim that a replica does not confirm is taken back, and the release is never answered:
// MaxRetries still ends the call, and the error does not say that another claim holds the lock.
func TestRetriesEndACallThatIsTakenBack(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	p := testenv.Proxy(t, server.Addr())
	c := locksOn(t, redislock.New(dialRedis(t, p.Addr()), redislock.WithMinReplicas(1, 10*time.Millisecond)),
		dlock.Config{MaxRetries: 3, RetryInterval: 10 * time.Millisecond})
	_ = c.Lock(t.Context(), "warm", dlock.WithWait(0)) // the server knows the scripts from here on
	releases := redislock.Scripts("release")
	p.Intercept(func(cmd []string) faultproxy.Action {
		if len(cmd) > 1 && releases[cmd[1]] != "" {
			return faultproxy.DropReply
		}
		return faultproxy.Forward
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := c.Lock(ctx, "k")
	if ctx.Err() != nil || !errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrLockHeldByOther) {
		t.Errorf("Lock, which gives up after three attempts: %v; %v", err, ctx.Err())
	}
}

// A request that arrives twice is granted the lock after its caller has left. The process releases
// it as soon as it receives the push, also if it waits for replicas.
func TestUnwantedGrantGoesBackBeforeReplicasConfirm(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, unwantedWait+place, unwantedGrantGoesBackBeforeReplicasConfirm)
}

// unwantedWait is how long the caller waits who then leaves: with the answer that it is queued.
var unwantedWait = testenv.UnderStress(5*time.Second, time.Second)

func unwantedGrantGoesBackBeforeReplicasConfirm(t testing.TB) {
	t.Helper()
	master, _ := startPair(t)
	p, direct := testenv.Proxy(t, master.Addr()), dialRedis(t, master.Addr())
	replicas := redislock.WithMinReplicas(1, 10*time.Second) // which a busy machine keeps as well
	waiter := locksOn(t, redislock.New(dialRedis(t, p.Addr()), replicas), dlock.Config{})
	holder := locksAt(t, master.Addr())
	g := acquire(t, holder, "k", dlock.WithTTL(time.Hour))
	sent := make(chan []any, 64)
	acquires := redislock.Scripts("acquire")
	p.Intercept(func(cmd []string) faultproxy.Action {
		if len(cmd) > 3 && acquires[cmd[1]] != "" && cmd[3] == "k" {
			words := make([]any, len(cmd))
			for i, word := range cmd {
				words[i] = word
			}
			sent <- words
		}
		return faultproxy.Forward
	})
	acquire(t, holder, "other")
	startWait(t, waiter, "other") // so that the process goes on listening
	awaitChannels(t, direct, "other", nil)
	err := waiter.Lock(t.Context(), "k", dlock.WithTTL(time.Hour), dlock.WithWait(unwantedWait))
	if !errors.Is(err, dlock.ErrLockHeldByOther) {
		t.Fatal(err)
	}
	awaitQueued(t, holder, "k", 0)
	check(t, direct.Do(t.Context(), (<-sent)...).Err())
	awaitQueued(t, holder, "k", 1)
	releases := make(chan struct{}, 64)
	gone := redislock.Scripts("release")
	p.Intercept(func(cmd []string) faultproxy.Action {
		if len(cmd) > 3 && gone[cmd[1]] != "" && cmd[3] == "k" {
			releases <- struct{}{}
		}
		return faultproxy.Forward
	})
	unlock(t, g)
	select {
	case <-releases:
	case <-time.After(time.Minute):
		t.Error("an unwanted grant was not given back")
	}
}
