package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A refusal is an error as a server returns it.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// A command that a demoted master has refused is sent again and carried out, and the answer is lost. The refusal does
// not stand for it: that would be "not carried out".
func TestResentCommandForgetsItsRefusal(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), directTo(t, server)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ReadTimeout: 2 * time.Second, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	script := redisnode.NewScript("return redis.call('INCR', KEYS[1])", "")
	check(t, direct.ScriptLoad(t.Context(), script.Source).Err())
	for _, said := range []string{"READONLY You can't write against a read only replica.", "MOVED 1 127.0.0.1:1"} {
		check(t, direct.Del(t.Context(), "n").Err())
		check(t, rdb.Ping(t.Context()).Err()) // for the connection
		proxy.Delay(0, time.Hour)             // no answer gets through until all commands were carried out
		pipe := rdb.Pipeline()
		var cmds []*redisnode.Command
		for range 3 {
			cmd := script.Command(t.Context(), []string{"n"})
			cmd.Rewind()
			cmd.SetErr(refusal(said)) // as go-redis keeps it when it follows a redirect itself
			cmds = append(cmds, cmd)
			_ = pipe.Process(t.Context(), cmd)
		}
		executed := make(chan struct{})
		go func() {
			defer close(executed)
			redisnode.Execute(t.Context(), pipe)
		}()
		testenv.Eventually(t, time.Minute, "they were carried out", func() bool { return direct.Get(t.Context(), "n").Val() == "3" })
		proxy.Cut()
		<-executed
		for i, cmd := range cmds {
			err := cmd.Classify(cmd.Err())
			if err == nil || driver.ClassOf(err) != driver.Ambiguous {
				t.Errorf("command %d: %v is %v", i, err, driver.ClassOf(err))
			}
		}
		proxy.Heal()
	}
}

// A deadlineContext panics in one of its calls of Deadline.
type deadlineContext struct {
	context.Context
	left atomic.Int32
}

func (c *deadlineContext) Deadline() (time.Time, bool) {
	if c.left.Add(-1) == 0 {
		panic("the user's context")
	}
	return c.Context.Deadline()
}

// A context of the user panics, wherever it is asked for its deadline: others are served, and no release that was to
// be sent with the call is lost.
func TestContextThatPanicsStopsNobody(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	c := locksOn(t, redislock.New(dialRedis(t, server.Addr()), redislock.AlwaysInline(), redislock.ReleaseDelay(time.Hour)), dlock.Config{DefaultTTL: 20 * time.Second})
	panicked := 0
	for n := range int32(40) {
		unlock(t, acquire(t, c, "other", dlock.WithAsyncUnlock()))
		ctx := &deadlineContext{Context: t.Context()}
		ctx.left.Store(n%20 + 1)
		func() {
			defer func() {
				if recover() != nil {
					panicked++
				}
			}()
			g, err := c.Acquire(ctx, "k")
			check(t, err)
			unlock(t, g)
		}()
		unlock(t, acquire(t, c, "k"))
	}
	if panicked == 0 {
		t.Error("the context was never asked")
	}
	unlock(t, acquire(t, c, "other")) // with it, the last release is sent
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		check(t, err)
	case <-time.After(time.Minute):
		t.Fatal("Close does not return")
	}
	testenv.Eventually(t, time.Minute, "nothing is left", func() bool { return len(leftovers(t, directTo(t, server))) == 0 })
}

// A releasePanic panics once in a release.
type releasePanic struct{ panickingHook }

func (h *releasePanic) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		var words []string
		for _, a := range cmd.Args() {
			words = append(words, fmt.Sprint(a))
		}
		if kindOf(words) == releasing && h.on.CompareAndSwap(true, false) {
			panic("hook")
		}
		return next(ctx, cmd)
	}
}

// A hook panics in a release that nobody waits for: the process lives, and the release is made again.
func TestAsyncUnlockSurvivesAPanic(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := dialRedis(t, server.Addr())
	hook := &releasePanic{}
	rdb.AddHook(hook)
	c := locksOn(t, redislock.New(rdb), dlock.Config{DefaultTTL: 20 * time.Second})
	for range 5 {
		g := acquire(t, c, "k", dlock.WithAsyncUnlock())
		hook.on.Store(true)
		unlock(t, g)
		testenv.Eventually(t, time.Minute, "the lock is free", func() bool { return len(leftovers(t, directTo(t, server))) == 0 })
		if hook.on.Load() {
			t.Error("the hook did not panic")
		}
	}
	if err := c.Close(); err != nil && !errors.Is(err, dlock.ErrUnknownOutcome) {
		t.Error(err)
	}
}
