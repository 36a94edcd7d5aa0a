package dlock_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/suspend"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stress reports whether the full counts are requested.
func stress() bool { return os.Getenv("DLOCK_STRESS") != "" }

// times returns how often a random scenario runs: seldom in CI, in full under stress.
func times(ci, full int) int {
	if stress() {
		return full
	}
	return ci
}

var ctx = context.Background()

// virtual runs a test in virtual time. The machine's clock advances while virtual time does not,
// which would look like a suspend.
func virtual(t *testing.T, f func(*testing.T)) {
	t.Helper()
	suspend.Simulate(func() time.Duration { return 0 })
	defer suspend.Simulate(nil)
	synctest.Test(t, f)
}

// client returns a Client on b that is closed at the end of the test.
func client(t testing.TB, b driver.Opener, cfg dlock.Config, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c, err := dlock.New(&cfg, append([]dlock.Option{dlock.WithBackend(b), dlock.WithAdmin()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// faulty returns a store, and the faults through which remote Clients reach it.
func faulty(rules ...faultdriver.Rule) (*memlock.Store, *faultdriver.Faults) {
	store := memlock.New()
	return store, faultdriver.New(store, 1, rules...).Remote()
}

func acquire(t testing.TB, c *dlock.Client, key string, opts ...dlock.LockOption) *dlock.Guard {
	t.Helper()
	g, err := c.Acquire(ctx, key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func unlock(t testing.TB, g *dlock.Guard) {
	t.Helper()
	if err := g.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
}

// free asserts that key has no claims.
func free(t testing.TB, c *dlock.Client, key string) {
	t.Helper()
	if claims := inspect(t, c, key); len(claims) != 0 {
		t.Fatalf("%q has the claims %v", key, claims)
	}
}

func inspect(t testing.TB, c *dlock.Client, key string) []dlock.Claim {
	t.Helper()
	a, err := c.Admin()
	if err != nil {
		t.Fatal(err)
	}
	claims, err := a.Inspect(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

func wantErr(t testing.TB, err error, want ...error) {
	t.Helper()
	if len(want) == 0 && err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Fatalf("error is %v, want %v", err, w)
		}
	}
}

// ended asserts that the Guard has ended, with this cause.
func ended(t testing.TB, g *dlock.Guard, want error) {
	t.Helper()
	select {
	case <-g.Done():
	default:
		t.Fatal("the guard is not over")
	}
	wantErr(t, context.Cause(g.Context()), want)
}

func alive(t testing.TB, g *dlock.Guard) {
	t.Helper()
	if err := g.Context().Err(); err != nil || g.Remaining() <= 0 {
		t.Fatalf("the guard is over: %v", context.Cause(g.Context()))
	}
}

// elapse lets virtual time pass.
func elapse(d time.Duration) { <-time.After(d) }

// async runs f and returns its result through a channel.
func async[T any](f func() T) <-chan T {
	ch := make(chan T, 1)
	go func() { ch <- f() }()
	return ch
}
