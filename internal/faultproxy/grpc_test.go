package faultproxy_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

const (
	pathPut   = "/etcdserverpb.KV/Put"
	pathTxn   = "/etcdserverpb.KV/Txn"
	pathRange = "/etcdserverpb.KV/Range"
)

// An etcdRig is an etcd with a proxy in front of it, a client through the proxy whose connection is
// open, and a client that bypasses it.
type etcdRig struct {
	server          *servers.Etcd
	proxy           *faultproxy.Proxy
	through, direct *clientv3.Client
}

func newEtcdRig(t *testing.T) *etcdRig {
	t.Helper()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	r := &etcdRig{server, proxy, etcdClient(t, proxy.Addr()), etcdClient(t, server.Endpoint())}
	etcdPut(t, r.through, "open", "yes")
	return r
}

// commit writes the key by a transaction that does so only once.
func (r *etcdRig) commit(ctx context.Context, key string) error {
	_, err := r.through.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "committed")).
		Commit()
	return err
}

// commitBehind runs commit in the background, and returns once the proxy has seen it.
func (r *etcdRig) commitBehind(ctx context.Context, t *testing.T, key string) <-chan error {
	t.Helper()
	before, result := r.proxy.GRPCCalls()[pathTxn], make(chan error, 1)
	go func() { result <- r.commit(ctx, key) }()
	testenv.Eventually(t, patience, "the proxy has seen the transaction", func() bool {
		return r.proxy.GRPCCalls()[pathTxn] > before
	})
	return result
}

// lost reports whether a call ended with its connection, rather than by a timeout.
func lost(err error) bool {
	return err != nil && !timedOut(err) && strings.Contains(err.Error(), "Unavailable")
}

func TestGRPCPassesUnharmed(t *testing.T) {
	t.Parallel()
	r := newEtcdRig(t)
	ctx := within(t, patience)
	events := r.through.Watch(ctx, "count/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if created := <-events; !created.Created {
		t.Fatalf("no watch: %v", created.Err())
	}
	lease, err := r.through.Grant(ctx, 60)
	check(t, err)
	_, err = r.through.KeepAliveOnce(ctx, lease.ID)
	check(t, err)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if _, err := r.through.Put(ctx, "count/"+string(rune('a'+i%26)), "x"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for seen := 0; seen < 100; {
		event := <-events
		check(t, event.Err())
		seen += len(event.Events)
	}
	big := strings.Repeat("x", 1<<20) // more than a window of HTTP/2
	etcdPut(t, r.through, "big", big)
	if etcdGet(t, r.through, "big") != big {
		t.Error("a big value came back changed")
	}
	for path, want := range map[string]int{
		pathPut: 102, pathRange: 1, "/etcdserverpb.Watch/Watch": 1,
		"/etcdserverpb.Lease/LeaseGrant": 1, "/etcdserverpb.Lease/LeaseKeepAlive": 1,
	} {
		if got := r.proxy.GRPCCalls()[path]; got != want {
			t.Errorf("%d calls of %s, want %d", got, path, want)
		}
	}
	if r.proxy.Connections() != 1 {
		t.Errorf("%d connections", r.proxy.Connections())
	}
}

func TestDropGRPC(t *testing.T) {
	t.Parallel()
	r := newEtcdRig(t)
	r.proxy.DropGRPC(pathTxn, 2)
	etcdPut(t, r.through, "put", "value") // of another path
	for _, key := range []string{"first", "second"} {
		if err := r.commit(within(t, patience), key); !lost(err) {
			t.Errorf("%s: %v", key, err)
		}
		if got := etcdGet(t, r.direct, key); got != "committed" {
			t.Errorf("%s was not carried out: %q", key, got)
		}
		etcdPut(t, r.through, "again", "connected")
	}
	check(t, r.commit(within(t, patience), "third"))
	if got := r.proxy.GRPCCalls()[pathTxn]; got != 3 {
		t.Errorf("%d transactions: the client has repeated one", got)
	}
}

func TestDropRepliesOfGRPC(t *testing.T) {
	t.Parallel()
	r := newEtcdRig(t)
	r.proxy.DropReplies(1)
	if _, err := r.through.Put(within(t, patience), "key", "value"); !lost(err) {
		t.Errorf("the reply was not dropped: %v", err)
	}
	if got := etcdGet(t, r.direct, "key"); got != "value" {
		t.Errorf("it was not carried out: %q", got)
	}
	etcdPut(t, r.through, "key", "other")
}

func TestHoldGRPC(t *testing.T) {
	t.Parallel()
	for name, abandon := range map[string]func(*testing.T, *etcdRig){
		"given up": func(*testing.T, *etcdRig) {},
		"closed":   func(t *testing.T, r *etcdRig) { check(t, r.through.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newEtcdRig(t)
			release := r.proxy.HoldGRPC(pathTxn, 1)
			// The server receives this deadline, too.
			if err := r.commit(within(t, sent), "late"); !timedOut(err) {
				t.Errorf("the held transaction: %v", err)
			}
			check(t, r.commit(within(t, patience), "early"))
			abandon(t, r)
			if got := etcdGet(t, r.direct, "late"); got != "" {
				t.Errorf("late is %q before its time", got)
			}
			release()
			testenv.Eventually(t, patience, "the held transaction is carried out", func() bool {
				return etcdGet(t, r.direct, "late") == "committed"
			})
			if r.proxy.Connections() != 1 {
				t.Errorf("%d connections", r.proxy.Connections())
			}
		})
	}
}

// Of two calls of the same path, a rule holds the one with the mark.
func TestInterceptGRPC(t *testing.T) {
	t.Parallel()
	r := newEtcdRig(t)
	until := make(chan struct{})
	r.proxy.InterceptGRPC(func(path, mark string) (bool, <-chan struct{}) {
		switch {
		case path == pathTxn && mark == "hold":
			return false, until
		case path == pathTxn && mark == "drop":
			return true, nil
		}
		return false, nil
	})
	marked := func(mark string) context.Context {
		return metadata.AppendToOutgoingContext(within(t, patience), faultproxy.MarkHeader, mark)
	}
	if err := r.commit(marked("drop"), "dropped"); !lost(err) {
		t.Errorf("the answer was not dropped: %v", err)
	}
	result := r.commitBehind(marked("hold"), t, "held")
	check(t, r.commit(marked("other"), "other"))
	check(t, r.commit(within(t, patience), "unmarked"))
	if got := etcdGet(t, r.direct, "held"); got != "" {
		t.Errorf("held is %q before its time", got)
	}
	close(until)
	check(t, <-result)
	r.proxy.Heal()
	check(t, r.commit(marked("drop"), "healed"))
}

func TestHealReleasesHeldGRPC(t *testing.T) {
	t.Parallel()
	r := newEtcdRig(t)
	r.proxy.HoldGRPC(pathTxn, 5)
	result := r.commitBehind(t.Context(), t, "key")
	r.proxy.Heal()
	check(t, <-result)
	check(t, r.commit(within(t, patience), "other"))
}

func TestProxyClosesWithHeldGRPC(t *testing.T) {
	t.Parallel()
	r := newEtcdRig(t)
	r.proxy.HoldGRPC(pathTxn, 1)
	result := r.commitBehind(t.Context(), t, "key")
	check(t, r.proxy.Close())
	if err := <-result; !lost(err) {
		t.Errorf("the client sees %v", err)
	}
	if got := etcdGet(t, r.direct, "key"); got != "" {
		t.Errorf("the server saw it: %q", got)
	}
}

func TestDelayGRPC(t *testing.T) {
	t.Parallel()
	r := newEtcdRig(t)
	const delay = 100 * time.Millisecond
	r.proxy.DelayGRPC(pathTxn, time.Hour)
	r.proxy.DelayGRPC(pathTxn, delay) // instead
	for _, key := range []string{"first", "second"} {
		begin := time.Now()
		check(t, r.commit(within(t, patience), key))
		if took := time.Since(begin); took < delay {
			t.Errorf("it took %v", took)
		}
	}
	r.proxy.DelayGRPC(pathTxn, time.Hour)
	etcdPut(t, r.through, "key", "value")
	r.proxy.DelayGRPC(pathTxn, 0)
	check(t, r.commit(within(t, patience), "third"))
}

func TestGRPCDelays(t *testing.T) {
	t.Parallel()
	r := newEtcdRig(t)
	r.proxy.Delay(30*time.Millisecond, 50*time.Millisecond)
	begin := time.Now()
	etcdPut(t, r.through, "key", "value")
	if took := time.Since(begin); took < 80*time.Millisecond {
		t.Errorf("it took %v", took)
	}
}

func TestGRPCBlackHoles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		hole    func(*faultproxy.Proxy, bool)
		arrives bool
	}{
		{"both ways", (*faultproxy.Proxy).BlackHole, false},
		{"up", (*faultproxy.Proxy).BlackHoleUp, false},
		{"down", (*faultproxy.Proxy).BlackHoleDown, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newEtcdRig(t)
			c.hole(r.proxy, true)
			ctx, abandon := context.WithCancel(t.Context())
			defer abandon()
			result := r.commitBehind(ctx, t, "key")
			if c.arrives {
				testenv.Eventually(t, patience, "it is carried out", func() bool {
					return etcdGet(t, r.direct, "key") == "committed"
				})
			} else if got := etcdGet(t, r.direct, "key"); got != "" {
				t.Errorf("it was carried out: %q", got)
			}
			abandon()
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Errorf("through the hole came %v", err)
			}
			r.proxy.Heal()
			etcdPut(t, r.through, "other", "value")
			if r.proxy.Connections() != 1 {
				t.Error("the connection did not survive")
			}
		})
	}
}

func TestGRPCCutAndRefuse(t *testing.T) {
	t.Parallel()
	r := newEtcdRig(t)
	r.proxy.Refuse(true)
	etcdPut(t, r.through, "key", "value") // on the open connection
	r.proxy.Cut()
	if _, err := r.through.Put(within(t, soon), "key", "refused"); !timedOut(err) && !lost(err) {
		t.Errorf("without a connection: %v", err)
	}
	if got := etcdGet(t, r.direct, "key"); got != "value" {
		t.Errorf("key is %q", got)
	}
	r.proxy.Refuse(false)
	testenv.Eventually(t, patience, "the client connects again", func() bool {
		_, err := r.through.Put(within(t, patience), "key", "again")
		return err == nil
	})
}

// Data that a client wrote before it closed arrives late, and the end right behind it. Whether etcd
// still carries it out is a race inside etcd.
func TestGRPCDeliversAfterClose(t *testing.T) {
	t.Parallel()
	r := newEtcdRig(t)
	r.proxy.DeliverAfterClose(true)
	r.proxy.Delay(time.Hour, 0)
	ctx, giveUp := context.WithCancel(t.Context())
	result := r.commitBehind(ctx, t, "key")
	giveUp()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("the delayed transaction: %v", err)
	}
	check(t, r.through.Close())
	before := r.proxy.BytesUp()
	r.proxy.Delay(0, 0)
	testenv.Eventually(t, patience, "the connection has ended", func() bool { return r.proxy.Open() == 0 })
	if r.proxy.BytesUp() == before {
		t.Error("nothing was delivered")
	}
}
