package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/fencetest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
	"github.com/ceyewan/genesis/pkg/dlock/fence/redisfence"
)

func newClient(t *testing.T) *redis.Client {
	t.Helper()
	client := testenv.Redis(t).Client()
	t.Cleanup(func() { client.Close() })
	return client
}

func TestRedisRefusesLateWrites(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	record := redisfence.NewScript(`
		redis.call('APPEND', KEYS[2], ARGV[2] .. ',')
		return redis.call('SET', KEYS[1], ARGV[1])`)
	fencetest.Run(t, fencetest.Resource{
		Fenced: func(ctx context.Context, name string, token int64, value string) error {
			return record.Run(ctx, client, name+":fence", token, []string{name, name + ":history"}, value, token).Err()
		},
		Plain: func(ctx context.Context, name, value string) error { return client.Set(ctx, name, value, 0).Err() },
		Read:  func(ctx context.Context, name string) (string, error) { return client.Get(ctx, name).Result() },
	})
	fencetest.CheckHistory(t, client.Get(t.Context(), "random:history").Val())
}

func TestSetRefusesLateWrites(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	fencetest.Run(t, fencetest.Resource{
		Fenced: func(ctx context.Context, name string, token int64, value string) error {
			return redisfence.Set(ctx, client, name+":fence", token, name, value, 0)
		},
		Plain: func(ctx context.Context, name, value string) error { return client.Set(ctx, name, value, 0).Err() },
		Read:  func(ctx context.Context, name string) (string, error) { return client.Get(ctx, name).Result() },
	})
}

// Tokens are compared exactly, beyond what a number of Lua can hold and across lengths.
func TestBoundaries(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	for _, greater := range []int64{2, 10, 100, 1 << 53, 1<<53 + 1, 1<<53 + 2, 1e18, 1e18 + 1, math.MaxInt64} {
		key := fmt.Sprint("boundary:", greater)
		for i, c := range []struct {
			token int64
			stale bool
		}{{greater, false}, {greater - 1, true}, {1, true}, {greater, false}} {
			err := redisfence.Set(t.Context(), client, key+":fence", c.token, key, c.token, 0)
			if errors.Is(err, fence.ErrStale) != c.stale || (err != nil) != c.stale {
				t.Errorf("%d, step %d: token %d: %v", greater, i, c.token, err)
			}
			var stale *fence.StaleError
			if c.stale && (!errors.As(err, &stale) || *stale != (fence.StaleError{Resource: key + ":fence", Token: c.token, Seen: greater})) {
				t.Errorf("%d: %v", greater, err)
			}
		}
		if got := client.Get(t.Context(), key).Val(); got != fmt.Sprint(greater) {
			t.Errorf("%d: the value is %s", greater, got)
		}
	}
}

// The script sees its own keys and arguments, and its answers arrive as they are.
func TestScriptIsAsIfAlone(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	run := func(lua string, keys []string, args ...any) *redis.Cmd {
		return redisfence.NewScript(lua).Run(t.Context(), client, "fence", 7, keys, args...)
	}
	got, err := run("return {#KEYS, #ARGV, KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]}", []string{"a", "b"}, "x", 2, "z").Slice()
	if fmt.Sprint(got) != "[2 3 a b x 2 z]" || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	for name, arg := range map[string]any{"strings": []string{"x", "y"}, "values": []any{"x", "y"}} {
		got, err := run("return {#ARGV, ARGV[1], ARGV[2]}", nil, arg).Slice()
		if fmt.Sprint(got) != "[2 x y]" || err != nil {
			t.Errorf("one slice of %s: %v, %v", name, got, err)
		}
	}
	if err := run("return #ARGV", nil, map[string]string{"a": "b"}).Err(); err == nil {
		t.Error("a map was accepted")
	}
	if err := run("return redis.error_reply('STALE_TOKEN 5')", nil).Err(); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("its own error: %v", err)
	}
	if err := run("return false", nil).Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("nil: %v", err)
	}
	if n, err := run("local n = 40 -- a comment at the end\nreturn n + 2 -- and here", nil).Int(); n != 42 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := run("return redis.error_reply('MINE is mine')", nil).Err(); !redis.HasErrorPrefix(err, "MINE") {
		t.Errorf("its own error: %v", err)
	}
	if err := run("local a = 1\n\nerror('here')", nil).Err(); err == nil || !strings.Contains(err.Error(), ":3: here") {
		t.Errorf("a failure in line 3: %v", err)
	}
	if err := run("this is no Lua", nil).Err(); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("no Lua: %v", err)
	}
	if err := run("", nil).Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("an empty script: %v", err)
	}
}

// A script that fails has raised the fence.
func TestFailedScriptHasRaisedTheFence(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	err := redisfence.NewScript("redis.call('SET', KEYS[1], 'first'); error('later')").Run(t.Context(), client, "fence", 9, []string{"key"}).Err()
	if err == nil {
		t.Fatal("it did not fail")
	}
	err = redisfence.Set(t.Context(), client, "fence", 8, "key", "late", 0)
	if got := client.Get(t.Context(), "key").Val(); !errors.Is(err, fence.ErrStale) || got != "first" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestRaise(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	if err := redisfence.Raise(t.Context(), client, "fence", 9); err != nil {
		t.Fatal(err)
	}
	if err := redisfence.Raise(t.Context(), client, "fence", 8); !errors.Is(err, fence.ErrStale) {
		t.Errorf("error is %v", err)
	}
	if err := redisfence.Set(t.Context(), client, "fence", 8, "key", "late", 0); !errors.Is(err, fence.ErrStale) {
		t.Errorf("error is %v", err)
	}
	if n := client.Exists(t.Context(), "key").Val(); n != 0 {
		t.Error("the key was written")
	}
	if ttl := client.TTL(t.Context(), "fence").Val(); ttl != -1 {
		t.Errorf("the fence expires in %v", ttl)
	}
}

func TestSetTTL(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	if err := redisfence.Set(t.Context(), client, "fence", 1, "key", "value", time.Hour); err != nil {
		t.Fatal(err)
	}
	if ttl := client.PTTL(t.Context(), "key").Val(); ttl <= 0 || ttl > time.Hour {
		t.Errorf("the key expires in %v", ttl)
	}
}

// A key that holds something else refuses: the fence cannot be compared.
func TestDamagedFence(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	for _, value := range []string{"", "abc", "007", "-5", "1.5", "5 ", "9999999999999999999", "10000000000000000000000"} {
		client.Set(t.Context(), "fence", value, 0)
		if err := redisfence.Set(t.Context(), client, "fence", 9, "key", "value", 0); !errors.Is(err, fence.ErrDamaged) {
			t.Errorf("%q: %v", value, err)
		}
	}
	client.Del(t.Context(), "fence")
	client.LPush(t.Context(), "fence", "5")
	if err := redisfence.Set(t.Context(), client, "fence", 9, "key", "value", 0); !redis.HasErrorPrefix(err, "WRONGTYPE") {
		t.Errorf("a list: %v", err)
	}
	if n := client.Exists(t.Context(), "key").Val(); n != 0 {
		t.Error("the key was written")
	}
}

// Nothing is sent for bad input: the client has no server.
func TestBadInput(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer client.Close()
	set := func(c redis.Scripter, fenceKey string, token int64, key string, ttl time.Duration) error {
		return redisfence.Set(t.Context(), c, fenceKey, token, key, "value", ttl)
	}
	for name, err := range map[string]error{
		"no client":      set(nil, "fence", 1, "key", 0),
		"pipeline":       set(client.Pipeline(), "fence", 1, "key", 0),
		"transaction":    set(client.TxPipeline(), "fence", 1, "key", 0),
		"no fence key":   set(client, "", 1, "key", 0),
		"no key":         set(client, "fence", 1, "", 0),
		"same key":       set(client, "fence", 1, "fence", 0),
		"token 0":        set(client, "fence", 0, "key", 0),
		"negative token": set(client, "fence", -1, "key", 0),
		"negative ttl":   set(client, "fence", 1, "key", -time.Second),
		"half a ms":      set(client, "fence", 1, "key", 500*time.Microsecond),
		"no script":      (*redisfence.Script)(nil).Run(t.Context(), client, "fence", 1, nil).Err(),
		"zero script":    new(redisfence.Script).Run(t.Context(), client, "fence", 1, nil).Err(),
		"shebang":        redisfence.NewScript("#!lua flags=no-writes\nreturn 1").Run(t.Context(), client, "fence", 1, nil).Err(),
	} {
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// On a cluster, the fence and the data share a slot, or Redis refuses.
func TestCluster(t *testing.T) {
	t.Parallel()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testenv.Cluster(t).Addrs()})
	defer client.Close()
	for i := range 20 {
		key := fmt.Sprintf("{order:%d}", i)
		for token, stale := range map[int64]bool{5: false, 4: true} {
			if token == 4 {
				if err := redisfence.Raise(t.Context(), client, key+":fence", 5); err != nil {
					t.Fatal(err)
				}
			}
			err := redisfence.Set(t.Context(), client, key+":fence", token, key, token, 0)
			if errors.Is(err, fence.ErrStale) != stale || (err != nil) != stale {
				t.Errorf("%s, token %d: %v", key, token, err)
			}
		}
	}
	err := redisfence.Set(t.Context(), client, "{a}:fence", 1, "{b}", "value", 0)
	if !redis.HasErrorPrefix(err, "CROSSSLOT") {
		t.Errorf("two slots: %v", err)
	}
}
