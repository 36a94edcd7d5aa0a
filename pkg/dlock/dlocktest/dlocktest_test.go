package dlocktest_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dlocktest"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// work is a user's job: it stops when it loses its lock.
func work(ctx context.Context, locks *dlock.Client, begin func()) error {
	return locks.Do(ctx, "job", func(ctx context.Context) error {
		begin()
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

func TestWorkStopsWhenTheLockIsLost(t *testing.T) {
	locks := dlocktest.New(t)
	done, begun := make(chan error), make(chan struct{})
	go func() { done <- work(t.Context(), locks, func() { close(begun) }) }()
	<-begun
	dlocktest.Lose(t, locks, "job")
	if err := <-done; !errors.Is(err, dlock.ErrOwnershipLost) {
		t.Error(err)
	}
}

// Two Clients on one store stand for two processes, and virtual time makes a wait of an hour
// instant.
func TestTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		one := dlocktest.NewOn(t, store, &dlock.Config{})
		two := dlocktest.NewOn(t, store, &dlock.Config{DefaultTTL: time.Second})
		if err := one.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Hour, func() { _ = one.Unlock(context.Background(), "k") })
		start := time.Now()
		if err := two.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited != time.Hour {
			t.Errorf("waited %v", waited)
		}
		dlocktest.Lose(t, two, "k")
		if _, held := two.Held("k"); held {
			t.Error("held after it was lost")
		}
	})
}

// Misuse fails the test that does it.
func TestMisuse(t *testing.T) {
	for name, misuse := range map[string]func(testing.TB){
		"bad config":  func(tb testing.TB) { dlocktest.NewOn(tb, memlock.New(), nil) },
		"free":        func(tb testing.TB) { dlocktest.Lose(tb, dlocktest.New(t), "free") },
		"not allowed": func(tb testing.TB) { dlocktest.Lose(tb, plain(t), "k") },
	} {
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() { // Fatal ends the goroutine
			defer close(done)
			misuse(r)
		}()
		<-done
		if !r.failed {
			t.Errorf("%s did not fail", name)
		}
	}
}

func plain(t *testing.T) *dlock.Client {
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(memlock.New()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Fatalf(string, ...any) {
	r.failed = true
	runtime.Goexit()
}
