package etcdlock_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// namespaced returns a client whose keys are all below a prefix, which its user does not see.
func namespaced(t *testing.T, endpoint, prefix string) *clientv3.Client {
	client := dial(t, endpoint)
	client.KV = namespace.NewKV(client.KV, prefix)
	client.Watcher = namespace.NewWatcher(client.Watcher, prefix)
	client.Lease = namespace.NewLease(client.Lease, prefix)
	return client
}

// A wrapped client is used through its wrapper, for everything.
func TestNamespaceOfTheClient(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	raw := dial(t, server.Endpoint())
	stored := func() (names []string) {
		resp, err := raw.Get(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
		check(t, err)
		for _, kv := range resp.Kvs {
			names = append(names, string(kv.Key))
		}
		return names
	}
	const ttl = 10 * time.Second // much is left when it is renewed
	inOne := namespaced(t, server.Endpoint(), "one/")
	one := locksOn(t, inOne, dlock.Config{DefaultTTL: ttl})
	two := locksOn(t, namespaced(t, server.Endpoint(), "two/"), dlock.Config{DefaultTTL: ttl})
	g, h := acquire(t, one, "k"), acquire(t, two, "k") // which do not exclude each other
	for _, name := range stored() {
		if !strings.HasPrefix(name, "one/") && !strings.HasPrefix(name, "two/") {
			t.Errorf("%q is outside the namespaces", name)
		}
	}
	waiting := startWait(t, one, inOne, "k")
	outlive(t, g, h)
	unlock(t, g)
	unlock(t, granted(t, waiting).guard)
	_, err := raw.Delete(t.Context(), "two/", clientv3.WithPrefix())
	check(t, err)
	select { // else its lease is renewed forever
	case <-h.Done():
	case <-time.After(patience):
		t.Error("a deleted key is not a loss")
	}
	if left := stored(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// submitMany holds locks with long names and long leases, on a server that may be slow to store so many.
func submitMany(t *testing.T, d driver.Driver, endpoint string, n int, name func(int) string) {
	t.Helper()
	stall := sharedStall{writes: &etcdlock.Writes{}}
	stop := stall.writes.KeepWriting(t, dial(t, endpoint))
	defer stop()
	var submitting sync.WaitGroup
	for w := range 32 {
		submitting.Go(func() {
			for i := w; i < n && !t.Failed(); i += 32 {
				ref := refOf(name(i), i)
				ref.TTL = 10 * time.Minute
				submitDelayed(t, d, ref, &stall)
			}
		})
	}
	submitting.Wait()
	if t.Failed() {
		t.FailNow() // what is missing would be waited for
	}
}

// submitDelayed submits a claim that must be granted, again if a stall has delayed it. It has a limit of its own: how long many
// claims take depends on the machine.
func submitDelayed(t *testing.T, d driver.Driver, ref driver.Ref, stall *sharedStall) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	st, err := d.Acquire(ctx, driver.Request{Ref: ref})
	for err != nil && driver.ClassOf(err) != driver.Fatal && ctx.Err() == nil && stall.excuses(t, began, giveUpAfter) {
		began = time.Now()
		st, err = d.Acquire(ctx, driver.Request{Ref: ref})
	}
	if err != nil || st.Phase != driver.Held {
		t.Errorf("a claim is %v after %v: %v", st.Phase, time.Since(began), err)
	}
}

// watchers waits until the server has a number of watches.
func watchers(t *testing.T, endpoint, what string, enough func(n int) bool) {
	t.Helper()
	testenv.Eventually(t, patience, "watches, "+what, func() bool { return enough(countWatchers(t, endpoint)) })
}

// Thousands of keys are watched again after a cut: the responses do not block the requests.
func TestManyKeysAreWatchedAgain(t *testing.T) {
	const n = 6000
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	d := openDriver(t, dial(t, "http://"+proxy.Addr()))
	name := func(i int) string { return fmt.Sprintf("k%d-%s", i, strings.Repeat("x", 60)) }
	submitMany(t, d, server.Endpoint(), n, name)
	all := func(have int) bool { return have >= n }
	watchers(t, server.Endpoint(), "before the cut", all)
	proxy.Refuse(true) // until we have seen that they are gone
	proxy.Cut()
	watchers(t, server.Endpoint(), "the server ends what was cut", func(have int) bool { return have < n })
	proxy.Refuse(false)
	watchers(t, server.Endpoint(), "after the cut", all)
	_, err := dial(t, server.Endpoint()).Delete(t.Context(), name(7)+"/", clientv3.WithPrefix())
	check(t, err)
	select {
	case <-d.Events():
	case <-time.After(time.Minute):
		t.Error("a loss is not told")
	}
}

// A key that is in constant use does not keep the watches of unused keys.
func TestBusyKeyKeepsNoOtherWatch(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	c := locksOn(t, dial(t, server.Endpoint()), dlock.Config{DefaultTTL: 10 * time.Second})
	stop := make(chan struct{})
	var busy sync.WaitGroup
	defer busy.Wait()
	defer close(stop)
	busy.Go(func() {
		for {
			g := acquire(t, c, "busy")
			select { // long enough for a watch to begin
			case <-stop:
			case <-time.After(60 * time.Millisecond):
			}
			unlock(t, g)
			select {
			case <-stop:
				return
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	watchers(t, server.Endpoint(), "the busy key", func(n int) bool { return n > 0 })
	var held []*dlock.Guard
	for i := range 200 {
		held = append(held, acquire(t, c, fmt.Sprintf("once-%d", i)))
	}
	watchers(t, server.Endpoint(), "all that is held", func(n int) bool { return n >= 200 })
	for _, g := range held {
		unlock(t, g)
	}
	watchers(t, server.Endpoint(), "of keys that were released", func(n int) bool { return n <= 5 })
}

// The watches of keys that were found gone when their watch started are dropped too.
func TestWatchesOfWhatIsGone(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	raw := dial(t, server.Endpoint())
	d := openDriver(t, dial(t, server.Endpoint()))
	submitMany(t, d, server.Endpoint(), 1, func(int) string { return "keep" })
	for i := range 100 {
		ref := refOf(fmt.Sprintf("k%d", i), i+1)
		ref.TTL = time.Minute
		submit(t, d, ref)
		_, err := raw.Delete(t.Context(), fmt.Sprintf("k%d/", i), clientv3.WithPrefix())
		check(t, err)
	}
	for range 100 {
		nextEvent(t, d)
	}
	watchers(t, server.Endpoint(), "of keys that are gone", func(n int) bool { return n <= 5 })
}

// For a lease with less than a second left, the server reports a TTL of 0, but the lease is alive.
func TestLastSecondOfALease(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	raw := dial(t, server.Endpoint())
	client, looks := countLooks(t, server.Endpoint())
	d := openDriver(t, client)
	var refs []driver.Ref
	for i := range 3 {
		ref := refOf(fmt.Sprintf("k%d", i), i)
		ref.TTL = 6 * time.Second
		refs = append(refs, ref)
		submit(t, d, ref)
	}
	get := func() *clientv3.GetResponse {
		resp, err := raw.Get(t.Context(), "k2/", clientv3.WithPrefix())
		check(t, err)
		return resp
	}
	id := clientv3.LeaseID(get().Kvs[0].Lease)
	testenv.Eventually(t, patience, "the last second", func() bool {
		left, err := raw.TimeToLive(t.Context(), id)
		return err == nil && left.TTL <= 0
	})
	_, err := raw.Txn(t.Context()).Then(clientv3.OpDelete("k0/", clientv3.WithPrefix()), clientv3.OpDelete("k1/", clientv3.WithPrefix())).Commit()
	check(t, err)
	for told := 0; told < 2; { // at one revision, which makes the driver ask after the lease
		if nextEvent(t, d).State.Phase == driver.Gone {
			told++
		}
	}
	testenv.Eventually(t, patience, "the driver has looked, and taken in what it saw", func() bool {
		return looks.Load() > 0 && !isRunning("verifyLease")
	})
	st := renew(t, d, refs[2])
	if there := len(get().Kvs) > 0; there && st.Phase != driver.Held {
		t.Errorf("%v, and the server has the key", st.Phase)
	}
}

// countLooks returns a client, and how often it was told the remaining time of a lease.
func countLooks(t *testing.T, endpoint string) (*clientv3.Client, *atomic.Int64) {
	t.Helper()
	looks := new(atomic.Int64)
	count := func(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := call(ctx, path, req, reply, cc, opts...)
		if path == "/etcdserverpb.Lease/LeaseTimeToLive" {
			looks.Add(1)
		}
		return err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count)},
	})
	check(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client, looks
}

// isRunning reports whether a goroutine is in a function of the driver, or in one that it calls.
func isRunning(method string) bool {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Contains(stacks, []byte("(*etcdDriver)."+method))
}
