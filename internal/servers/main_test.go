package servers_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/servers"
)

// parentEnv makes the test binary the parent of a server in
// TestServerDiesWithItsParent.
const parentEnv = "DLOCK_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parentEnv) != "" {
		beParent()
	}
	redis.SetLogger(quiet{}) // servers that cannot be reached are the point
	// A pool whose dials fail keeps dialing, and notices its Close a second late.
	dialer := "github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(dialer))
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// beParent starts a server, prints its process id and waits to be killed.
func beParent() {
	r, err := servers.StartRedis(context.Background(), servers.RedisOptions{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(r.Pid())
	select {}
}

const (
	patience = time.Minute            // for what must happen, on a busy machine
	soon     = 100 * time.Millisecond // for what is not going to happen
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clientOf returns a client that ends with the test.
func clientOf(t *testing.T, r *servers.Redis) *redis.Client {
	return clientAt(t, r, r.Addr())
}

func clientAt(t *testing.T, r *servers.Redis, addr string) *redis.Client {
	client := r.ClientAt(addr)
	t.Cleanup(func() { client.Close() })
	return client
}

// within returns a context that ends soon, for events that must not happen.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func get(t *testing.T, client redis.Cmdable, key string) string {
	t.Helper()
	value, err := client.Get(t.Context(), key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return value
}

// timedOut reports whether a call ended because of its timeout: clients report that in several
// ways.
func timedOut(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
