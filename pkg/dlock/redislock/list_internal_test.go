package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/xerrors"
)

// A keeper answers what operators ask: it has keys, which it returns a step at a time, and the state of a cluster.
type keeper struct {
	steps [][]string // the keys of each step; those that begin with j are of readers
	state string     // the answer to CLUSTER INFO; "": an error
	info  string     // the answer to INFO; "": it does not come
	fail  error      // the answer to the first SCAN
	sent  []string
}

func (*keeper) DialHook(next redis.DialHook) redis.DialHook { return next }

func (k *keeper) ProcessHook(redis.ProcessHook) redis.ProcessHook { return k.do }

func (k *keeper) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			cmd.SetErr(k.do(ctx, cmd))
		}
		return nil
	}
}

func (k *keeper) do(ctx context.Context, cmd redis.Cmder) error {
	k.sent = append(k.sent, cmd.Name())
	end, ok := ctx.Deadline()
	if left := time.Until(end); !ok || left > tripTimeout {
		return fmt.Errorf("%s has %v", cmd.Name(), left)
	}
	switch c := cmd.(type) {
	case *redis.ScanCmd:
		if err := k.fail; err != nil {
			k.fail = nil
			return err
		}
		at, _ := c.Args()[1].(uint64)
		next := (at + 1) % uint64(len(k.steps)) //nolint:gosec // a few
		c.SetVal(slices.Clone(k.steps[at]), next)
	case *redis.StringCmd:
		return k.text(ctx, c)
	case *redis.ZSliceCmd:
		c.SetVal([]redis.Z{{Score: math.Inf(1), Member: "s"}})
	case *redis.StatusCmd:
		c.SetVal("PONG")
	default:
		return replyError("ERR " + cmd.Name())
	}
	return nil
}

func (k *keeper) text(ctx context.Context, c *redis.StringCmd) error {
	switch text := fmt.Sprint(c.Args()...); {
	case strings.HasPrefix(text, "cluster"):
		if k.state == "" {
			return replyError("NOPERM no")
		}
		c.SetVal(k.state)
	case c.Name() == "info":
		if k.info == "" {
			<-ctx.Done()
			return ctx.Err()
		}
		c.SetVal(k.info)
	case c.Name() != "getrange":
		return replyError("ERR " + text)
	case strings.Contains(fmt.Sprint(c.Args()[1]), "j"):
		return replyError("WRONGTYPE no string")
	default:
		c.SetVal(idOf("a") + ". 1794882929000000 1 - {}")
	}
	return nil
}

// openKeepers returns a driver for a cluster of these masters, in the order of their addresses. It needs virtual time.
func openKeepers(t *testing.T, prefix string, log *slog.Logger, keepers ...*keeper) *redisDriver {
	t.Helper()
	c := &silentCluster{}
	for i := range keepers {
		c.nodes = append(c.nodes, fmt.Sprint("192.0.2.", 9-i, ":7000")) // the cluster names them in another order
	}
	slices.Reverse(keepers)
	client := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: c.slots, ContextTimeoutEnabled: true, NewClient: func(o *redis.Options) *redis.Client {
		node := redis.NewClient(o)
		node.AddHook(keepers[slices.Index(c.nodes, o.Addr)])
		return node
	}})
	opened, err := New(client).Open(driver.Options{Prefix: prefix, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	d, _ := opened.(*redisDriver)
	t.Cleanup(func() {
		_ = d.Close()
		_ = client.Close()
	})
	return d
}

// List returns the locks of all masters, with the prefix removed, in pages of the size that was asked for: what a step finds beyond
// that is in the cursor, and is not looked for again.
func TestPagesOfAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &keeper{steps: [][]string{{"p:c", "p:a", "p:j", "p:b"}, {}, {"p:d\x01q"}}}, &keeper{steps: [][]string{{"p:e", "p:f"}}}
		d := openKeepers(t, "p:", slog.New(slog.DiscardHandler), first, second)
		for limit, want := range map[int][]string{1: {"a", "b", "c", "j", "e", "f"}, 2: {"a b", "c j", "e f"}, 4: {"a b c j", "e f"}, 5: {"a b c j e", "f"}, 6: {"a b c j e f"}, 9: {"a b c j e f"}} {
			var got []string
			for from := ""; ; {
				keys, next, err := d.List(t.Context(), "", from, limit)
				if err != nil {
					t.Fatal(err)
				}
				got, from = append(got, strings.Join(keys, " ")), next
				if next == "" {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d at a time: %q, want %q", limit, got, want)
			}
		}
	})
}

// A cursor of more masters than there are is refused. A master that does not answer in time is asked again, and one that refuses is not.
func TestListOfMastersInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keeper{steps: [][]string{{"a"}}}
		d := openKeepers(t, "", slog.New(slog.DiscardHandler), k)
		for node, want := range map[int]error{1: nil, 2: xerrors.ErrInvalidConfig} {
			if keys, _, err := d.List(t.Context(), "", position{node: node}.String(), 5); !errors.Is(err, want) || len(keys) != 0 {
				t.Errorf("from master %d: %q, %v", node, keys, err)
			}
		}
		k.fail = context.DeadlineExceeded
		if keys, next, err := d.List(t.Context(), "", "", 5); len(keys) != 1 || next != "" || err != nil {
			t.Errorf("%q, %q, %v", keys, next, err)
		}
		k.fail = replyError("NOPERM no")
		if keys, _, err := d.List(t.Context(), "", "", 5); driver.ClassOf(err) != driver.Fatal {
			t.Errorf("%q, %v", keys, err)
		}
		d, c := openCluster(t)
		c.assign()
		if keys, _, err := d.List(t.Context(), "", "", 5); err == nil {
			t.Errorf("%q without a state of the cluster", keys)
		}
		if findings, err := d.Check(t.Context()); err == nil {
			t.Errorf("%v without a state of the cluster", findings)
		}
	})
}

// A cluster is safe only if it is up and serves every slot.
func TestFindingsOfSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keeper{}
		d := openKeepers(t, "", slog.New(slog.DiscardHandler), k)
		for _, tc := range []struct {
			state, says string
			level       driver.Level
		}{
			{"cluster_state:ok\r\ncluster_slots_ok:16384\r\n", "in state ok, and 16384 of 16384", driver.OK},
			{"cluster_state:ok\r\ncluster_slots_ok:16383\r\n", "16383 of 16384", driver.Unsafe},
			{"cluster_state:fail\r\ncluster_slots_ok:16384\r\n", "in state fail", driver.Unsafe},
			{"", "not known: NOPERM", driver.OK},
		} {
			k.state = tc.state
			nodes, err := d.masters(t.Context())
			if err != nil || len(nodes) != 1 {
				t.Fatalf("%v, %v", nodes, err)
			}
			if f := allSlots(t.Context(), nodes[0]); f.Level != tc.level || !strings.Contains(f.Detail, tc.says) || (f.Fix != "") != (f.Level != driver.OK) || f.Name != "slots" {
				t.Errorf("%q: %+v", tc.state, f)
			}
		}
	})
}

// The first lock has the servers checked, once, and what is unsafe is logged. A server that does not answer is not waited for.
func TestFirstLockHasTheServerChecked(t *testing.T) {
	const unsafe, safe = "role:master\r\nredis_version:7.0.1\r\nmaxmemory:9\r\nmaxmemory_policy:allkeys-lru\r\n", "role:master\r\nredis_version:7.0.1\r\nmaxmemory_policy:noeviction\r\n"
	for _, tc := range []struct {
		infos []string
		lines int
		took  time.Duration
	}{
		{[]string{unsafe, safe}, 1, 0},
		{[]string{safe, safe}, 0, 0},
		{[]string{unsafe, unsafe}, 2, 0},
		{[]string{unsafe, ""}, 0, tripTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			var text strings.Builder
			servers := []*keeper{{info: tc.infos[0]}, {info: tc.infos[1]}}
			d := openKeepers(t, "", slog.New(slog.NewTextHandler(&text, nil)), servers...)
			began := time.Now()
			for range 2 {
				d.warnOnce()
				d.work.Wait()
			}
			asked := strings.Count(strings.Join(append(servers[0].sent, servers[1].sent...), " "), "info")
			if lines := strings.Count(text.String(), "finding=eviction-policy"); lines != tc.lines || strings.Count(text.String(), "finding=") != lines || asked != 2 {
				t.Errorf("asked %d times, and logged\n%s", asked, &text)
			}
			if took := time.Since(began); took != tc.took {
				t.Errorf("it took %v", took)
			}
		})
	}
}
