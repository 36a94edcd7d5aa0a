package etcdfence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/fencetest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/fence"
	"github.com/ceyewan/genesis/pkg/dlock/fence/etcdfence"
)

func newClient(t *testing.T) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{testenv.Etcd(t).Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func get(t *testing.T, client *clientv3.Client, key string) string {
	t.Helper()
	resp, err := client.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}

func TestEtcdRefusesLateWrites(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	fencetest.Run(t, fencetest.Resource{
		Fenced: func(ctx context.Context, name string, token int64, value string) error {
			_, err := etcdfence.Commit(ctx, client, "fence/"+name, token, clientv3.OpPut(name, value))
			return err
		},
		Plain: func(ctx context.Context, name, value string) error {
			_, err := client.Put(ctx, name, value)
			return err
		},
		Read: func(_ context.Context, name string) (string, error) { return get(t, client, name), nil },
	})
	fencetest.CheckHistory(t, history(t, client, "random"))
}

// history returns all values that a key has had, in their order.
func history(t *testing.T, client *clientv3.Client, key string) string {
	t.Helper()
	resp, err := client.Get(t.Context(), key)
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var values []string
	for answer := range client.Watch(ctx, key, clientv3.WithRev(resp.Kvs[0].CreateRevision)) {
		if answer.Err() != nil {
			t.Fatal(answer.Err())
		}
		for _, e := range answer.Events {
			values = append(values, string(e.Kv.Value))
		}
		if int64(len(values)) == resp.Kvs[0].Version {
			break
		}
	}
	return strings.Join(values, ",")
}

func TestBoundaries(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	for _, greater := range []int64{2, 10, 100, 1<<53 + 1, 1e18, math.MaxInt64} {
		key := fmt.Sprint("fence", greater)
		for i, c := range []struct {
			token int64
			stale bool
		}{{greater, false}, {greater - 1, true}, {1, true}, {greater, false}} {
			_, err := etcdfence.Commit(t.Context(), client, key, c.token)
			if errors.Is(err, fence.ErrStale) != c.stale || (err != nil) != c.stale {
				t.Errorf("%d, step %d: token %d: %v", greater, i, c.token, err)
			}
			var stale *fence.StaleError
			if c.stale && (!errors.As(err, &stale) || *stale != (fence.StaleError{Resource: key, Token: c.token, Seen: greater})) {
				t.Errorf("%d: %v", greater, err)
			}
		}
	}
}

// The answer is that of the caller's operations.
func TestAnswer(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	resp, err := etcdfence.Commit(t.Context(), client, "fence", 1, clientv3.OpPut("a", "1"), clientv3.OpGet("a"),
		clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Version("b"), "=", 0)}, []clientv3.Op{clientv3.OpPut("b", "2")}, nil))
	if err != nil {
		t.Fatal(err)
	}
	if !resp.Succeeded || len(resp.Responses) != 3 || string(resp.Responses[1].GetResponseRange().Kvs[0].Value) != "1" || !resp.Responses[2].GetResponseTxn().Succeeded {
		t.Errorf("answer is %v", resp)
	}
	resp, err = etcdfence.Commit(t.Context(), client, "fence", 1)
	if err != nil || !resp.Succeeded || len(resp.Responses) != 0 {
		t.Errorf("without operations: %v, %v", resp, err)
	}
}

// etcd refuses operations that would write the fence.
func TestFenceCannotBeWritten(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	for name, op := range map[string]clientv3.Op{
		"put":           clientv3.OpPut("fence/a", "x"),
		"delete":        clientv3.OpDelete("fence/a"),
		"delete prefix": clientv3.OpDelete("fence/", clientv3.WithPrefix()),
	} {
		_, err := etcdfence.Commit(t.Context(), client, "fence/a", 5, op)
		if err == nil || !strings.Contains(err.Error(), "duplicate key") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A key that holds something else refuses: the fence cannot be compared.
func TestDamagedFence(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	for _, value := range []string{"", "0", "-5", "00", strings.Repeat("0", 18), "5", "abc", "00000000000000000x9", strings.Repeat("9", 19), strings.Repeat("9", 20)} {
		if _, err := client.Put(t.Context(), "fence", value); err != nil {
			t.Fatal(err)
		}
		_, err := etcdfence.Commit(t.Context(), client, "fence", 7, clientv3.OpPut("key", "value"))
		if !errors.Is(err, fence.ErrDamaged) {
			t.Errorf("%q: %v", value, err)
		}
	}
	if got := get(t, client, "key"); got != "" {
		t.Errorf("the key was written: %q", got)
	}
}

// The fence counts as two of the operations that etcd allows, which are 128.
func TestManyOperations(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	for _, c := range []struct {
		n  int
		ok bool
	}{{126, true}, {127, false}} {
		var ops []clientv3.Op
		for i := range c.n {
			ops = append(ops, clientv3.OpPut(fmt.Sprint("key", i), "value"))
		}
		resp, err := etcdfence.Commit(t.Context(), client, "fence", 1, ops...)
		if (err == nil) != c.ok || (c.ok && len(resp.Responses) != c.n) {
			t.Errorf("%d operations: %v", c.n, err)
		}
	}
}

// Nothing is sent for bad input: the client has no server.
func TestBadInput(t *testing.T) {
	t.Parallel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	commit := func(kv clientv3.KV, fenceKey string, token int64) error {
		_, err := etcdfence.Commit(t.Context(), kv, fenceKey, token)
		return err
	}
	for name, err := range map[string]error{
		"no client": commit(nil, "fence", 1), "no fence key": commit(client, "", 1),
		"token 0": commit(client, "fence", 0), "negative token": commit(client, "fence", -1),
	} {
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
