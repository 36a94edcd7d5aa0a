package etcdlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// A deForeign is a concurrency.Mutex in a session of its own.
type deForeign struct {
	*concurrency.Mutex
	session *concurrency.Session
}

// deMutex makes one for the lock that our clients call key.
func deMutex(t testing.TB, endpoint, key string, ttl int) deForeign {
	t.Helper()
	session, err := concurrency.NewSession(dial(t, endpoint), concurrency.WithTTL(ttl))
	deCheck(t, err)
	t.Cleanup(session.Orphan)
	return deForeign{concurrency.NewMutex(session, etcdlock.Name(key)), session}
}

// await starts to wait and returns when the server has it queued.
func (f deForeign) await(t testing.TB, direct *clientv3.Client, key string) <-chan error {
	t.Helper()
	before := len(deLine(t, direct, key))
	ch, ctx := make(chan error, 1), t.Context()
	go func() { ch <- f.Lock(ctx) }()
	testenv.Eventually(t, patience, "the Mutex is queued", func() bool { return len(deLine(t, direct, key)) > before })
	return ch
}

// deSoon waits for the end of something that must end well, and soon.
func deSoon(t testing.TB, ch <-chan error) {
	t.Helper()
	select {
	case err := <-ch:
		deCheck(t, err)
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
}

// deStill asserts that something has not ended.
func deStill(t testing.TB, ch <-chan error) {
	t.Helper()
	select {
	case err := <-ch:
		t.Fatalf("it is over: %v", err)
	default:
	}
}

// A Mutex excludes us, and we wait for it, however it ends.
func TestInteropWaitForMutex(t *testing.T) {
	t.Parallel()
	const expiring = 5 * time.Second
	atOnce, late := testenv.UnderStress(beforeLease, 2*time.Second), testenv.UnderStress(beforeLease, 1500*time.Millisecond)
	ends := map[string]struct {
		end    func(*testing.T, deForeign)
		within time.Duration
	}{
		"Unlock":  {func(t *testing.T, f deForeign) { deCheck(t, f.Unlock(t.Context())) }, atOnce},
		"Close":   {func(t *testing.T, f deForeign) { deCheck(t, f.session.Close()) }, atOnce},
		"Expires": {func(_ *testing.T, f deForeign) { f.session.Orphan() }, expiring + late},
	}
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), deNew(t, server.Endpoint())
	for name, way := range ends {
		f := deMutex(t, server.Endpoint(), name, int(expiring/time.Second))
		deCheck(t, f.Lock(t.Context()))
		if ok, err := c.TryLock(t.Context(), name); ok || err != nil {
			t.Fatalf("%s: TryLock = %v, %v while a Mutex holds", name, ok, err)
		}
		ch := deAwait(t, c, direct, name)
		deIdle(t, ch)
		began := time.Now()
		way.end(t, f)
		got := deGrant(t, ch)
		if took := got.at.Sub(began); took > way.within {
			t.Errorf("%s: granted after %v", name, took)
		}
		deUnlock(t, got.guard)
	}
}

// A Mutex waits for us, however we end.
func TestInteropMutexWaits(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), deNew(t, server.Endpoint())
	f := deMutex(t, server.Endpoint(), "k", 60)
	for _, opts := range [][]dlock.LockOption{nil, {dlock.WithoutRenewal()}} {
		g := deAcquire(t, c, "k", opts...)
		if err := f.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
			t.Fatalf("TryLock = %v while we hold", err)
		}
		ch := f.await(t, direct, "k")
		deStill(t, ch)
		deUnlock(t, g)
		deSoon(t, ch)
		if ok, err := c.TryLock(t.Context(), "k"); ok || err != nil {
			t.Fatalf("TryLock = %v, %v while a Mutex holds", ok, err)
		}
		deCheck(t, f.Unlock(t.Context()))
	}
	child := deChild(t, 1, ttl, server.Endpoint())
	ch := f.await(t, direct, "k")
	deStill(t, ch)
	began := time.Now()
	deCheck(t, child.Kill())
	deSoon(t, ch)
	if took := time.Since(began); took > ttl+testenv.UnderStress(beforeLease, 1500*time.Millisecond) {
		t.Errorf("the Mutex of a dead process was free after %v", took)
	}
	deCheck(t, f.Unlock(t.Context()))
}

// Theirs and ours stand in one line.
func TestInteropOrder(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	clients := []*dlock.Client{deNew(t, server.Endpoint()), deNew(t, server.Endpoint())}
	g := deAcquire(t, clients[0], "k")
	order := make(chan int, 8)
	var wg sync.WaitGroup
	for i := range 8 { // ours, theirs, ours of another Client, theirs, …
		if i%2 == 1 {
			f := deMutex(t, server.Endpoint(), "k", 60)
			ch := f.await(t, direct, "k")
			wg.Go(func() {
				deSoonOr(t, ch)
				order <- i
				if err := f.Unlock(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			})
			continue
		}
		ch := deAwait(t, clients[i/2%2], direct, "k")
		wg.Go(func() {
			got := <-ch
			order <- i
			if got.err != nil {
				t.Error(got.err)
			} else if err := got.guard.Unlock(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
	}
	if len(deLine(t, direct, "k")) != 9 || len(order) != 0 {
		t.Fatalf("%d wait, %d do not", len(deLine(t, direct, "k"))-1, len(order))
	}
	deUnlock(t, g)
	wg.Wait()
	for want := range 8 {
		if got := <-order; got != want {
			t.Errorf("%d came as number %d", got, want)
		}
	}
}

// deSoonOr is deSoon for goroutines of a test.
func deSoonOr(t testing.TB, ch <-chan error) {
	t.Helper()
	select {
	case err := <-ch:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it goes on")
	}
}

// Three of ours and two of theirs contend, and nobody finds another inside.
func TestInteropHammer(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	each := testenv.UnderStress(15, 1000)
	var section deSection
	var wg sync.WaitGroup
	contend := func(lock func() (unlock func() error, err error)) {
		wg.Go(func() {
			for range each {
				unlock, err := lock()
				if err != nil {
					t.Error(err)
					return
				}
				section.enter()
				<-time.After(200 * time.Microsecond)
				section.leave()
				if err := unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.UnderStress(180*time.Second, 600*time.Second))
	defer cancel()
	for range 3 {
		c := deNew(t, server.Endpoint())
		contend(func() (func() error, error) {
			g, err := c.Acquire(ctx, "k")
			return func() error { return g.Unlock(t.Context()) }, err
		})
	}
	for range 2 {
		f := deMutex(t, server.Endpoint(), "k", 60)
		contend(func() (func() error, error) {
			return func() error { return f.Unlock(t.Context()) }, f.Lock(ctx)
		})
	}
	wg.Wait()
	section.judge(t, 5*each)
	if left := deLeft(t, direct); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// toolTTL is the lease of etcdctl in seconds, long enough for a machine that stalls.
const toolTTL = "5"

// A deTool is etcdctl at work. Its command runs until it is let go.
type deTool struct {
	*servers.Child
	in   string // exists while the command has run
	exit string // ends the command
}

// deTooled runs etcdctl lock on a name with a command.
func deTooled(t testing.TB, endpoint, name string) deTool {
	t.Helper()
	dir := t.TempDir()
	tool := deTool{in: filepath.Join(dir, "in"), exit: filepath.Join(dir, "exit")}
	// It ends with etcdctl, however that ends: nothing else would end it.
	const script = `: > "$0"; while [ ! -e "$1" ] && kill -0 $PPID; do sleep 0.02; done`
	tool.Child = testenv.Child(t, exec.CommandContext(t.Context(), testenv.Etcdctl(t), "--endpoints", endpoint,
		"lock", name, "--ttl", toolTTL, "--", "sh", "-c", script, tool.in, tool.exit))
	return tool
}

func (d deTool) inside() bool {
	_, err := os.Stat(d.in)
	return err == nil
}

func (d deTool) letGo(t testing.TB) {
	t.Helper()
	deCheck(t, os.WriteFile(d.exit, nil, 0o600))
}

// etcdctl lock excludes us and is excluded.
func TestInteropEtcdctl(t *testing.T) {
	t.Parallel()
	const key, prefix = "jobs/nightly 100%", "locks/"
	name := prefix + etcdlock.Name(key)
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	c := deOn(t, dial(t, server.Endpoint()), dlock.Config{Prefix: prefix})
	queued := func(n int) func() bool {
		return func() bool {
			resp, err := direct.Get(t.Context(), name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			return err == nil && resp.Count == int64(n)
		}
	}
	g := deAcquire(t, c, key)
	tool := deTooled(t, server.Endpoint(), name)
	testenv.Eventually(t, patience, "etcdctl is queued", queued(2))
	next := make(chan error, 1)
	go func() { next <- c.Lock(t.Context(), key) }()
	testenv.Eventually(t, patience, "we are queued again", queued(3))
	if tool.inside() {
		t.Fatal("the command runs while we hold")
	}
	deUnlock(t, g)
	testenv.Eventually(t, patience, "the command runs", tool.inside)
	deStill(t, next)
	tool.letGo(t)
	deSoon(t, next)
	deCheck(t, tool.Wait())
	deCheck(t, c.Unlock(t.Context(), key))

	dying := deTooled(t, server.Endpoint(), name)
	testenv.Eventually(t, patience, "the command runs", dying.inside)
	go func() { next <- c.Lock(t.Context(), key) }()
	testenv.Eventually(t, patience, "we are queued", queued(2))
	deStill(t, next)
	began := time.Now()
	dying.Kill()
	deSoon(t, next)
	if took := time.Since(began); took > 5*time.Second+testenv.UnderStress(beforeLease, 1500*time.Millisecond) {
		t.Errorf("we got what a dead etcdctl held after %v", took)
	}
	deCheck(t, c.Unlock(t.Context(), key))
}

// A name is no directory of another, for mutexes neither.
func TestInteropNoDirectories(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	c := deNew(t, server.Endpoint())
	inner := deAcquire(t, c, "a/b")
	outer := deMutex(t, server.Endpoint(), "a", 60)
	deCheck(t, outer.TryLock(t.Context()))
	if ok, err := c.TryLock(t.Context(), "a"); ok || err != nil {
		t.Errorf("TryLock = %v, %v while a Mutex holds", ok, err)
	}
	deUnlock(t, inner)
	below := deMutex(t, server.Endpoint(), "a/b", 60)
	deCheck(t, below.TryLock(t.Context()))
	deCheck(t, outer.Unlock(t.Context()))
	deUnlock(t, deTry(t, c, "a"))
}

// deStrangers puts ordinary data below the name of a lock: with and without a
// lease, called like leases and like claims, and more of it than a look brings.
func deStrangers(t testing.TB, direct *clientv3.Client, key, tag string) map[string]string {
	t.Helper()
	lease, err := direct.Grant(t.Context(), 3600)
	deCheck(t, err)
	data := map[string]string{}
	names := []string{"config", "beef", "deadbeef-dlock", "beef-dlockx", "-dlock1", "x-dlock1", "694d-", "", "a/b", "BEEF", strings.Repeat("f", 17)}
	for i := range 30 {
		names = append(names, fmt.Sprintf("%x", 0xbeef+i))
	}
	for i, name := range names {
		name = etcdlock.Name(key) + "/" + name + tag
		data[name] = "data of " + name
		var opts []clientv3.OpOption
		if i%2 == 0 {
			opts = append(opts, clientv3.WithLease(lease.ID))
		}
		_, err := direct.Put(t.Context(), name, data[name], opts...)
		deCheck(t, err)
	}
	return data
}

// Ordinary keys below a lock's name and the lock do not get into each other's way.
func TestInteropStrangers(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	a, b := deNew(t, server.Endpoint()), deNew(t, server.Endpoint())
	data := deStrangers(t, direct, "k", "")
	deUnlock(t, deTry(t, a, "k"))
	g := deAcquire(t, a, "k")
	if ok, err := b.TryLock(t.Context(), "k"); ok || err != nil {
		t.Fatalf("TryLock = %v, %v of a lock that is held", ok, err)
	}
	data2 := deStrangers(t, direct, "k", "a") // which is a digit
	waiters := []<-chan deGot{deAwait(t, b, direct, "k"), deAwait(t, a, direct, "k")}
	data3 := deStrangers(t, direct, "k", "aa")
	waiters = append(waiters, deAwait(t, a, direct, "k"), deAwait(t, b, direct, "k"))
	claims := deInspect(t, a, "k")
	if len(claims) != 5 || claims[0].Token != g.Token() {
		t.Errorf("shown are %v", claims)
	}
	for i, ch := range waiters {
		for _, later := range waiters[i:] {
			deIdle(t, later)
		}
		deAlive(t, g)
		deUnlock(t, g)
		g = deGrant(t, ch).guard
	}
	deRenewed(t, g)
	deUnlock(t, g)
	for _, all := range []map[string]string{data, data2, data3} {
		for name, want := range all {
			resp, err := direct.Get(t.Context(), name)
			deCheck(t, err)
			if len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != want {
				t.Errorf("%q is now %v", name, resp.Kvs)
			}
		}
	}
	admin, err := a.Admin()
	deCheck(t, err)
	if keys, _, err := admin.List(t.Context(), "", "", 10); err != nil || len(keys) != 0 {
		t.Errorf("data is listed as locks: %q, %v", keys, err)
	}
}

func deInspect(t testing.TB, c *dlock.Client, key string) []dlock.Claim {
	t.Helper()
	admin, err := c.Admin()
	deCheck(t, err)
	claims, err := admin.Inspect(t.Context(), key)
	deCheck(t, err)
	return claims
}

// A transaction of the user's own takes effect while the lock is held, and not
// after.
func TestInteropOwner(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	const prefix = "app/"
	c := deOn(t, dial(t, server.Endpoint()), dlock.Config{Prefix: prefix})
	name := prefix + etcdlock.Name("a/b")
	g := deAcquire(t, c, "a/b")
	still, err := etcdlock.Owner(t.Context(), direct, name, g.Token())
	deCheck(t, err)
	write := func(still clientv3.Cmp) bool {
		resp, err := direct.Txn(t.Context()).If(still).Then(clientv3.OpPut("stock", "1")).Commit()
		deCheck(t, err)
		return resp.Succeeded
	}
	if !write(still) {
		t.Error("refused while the lock is held")
	}
	deCheck(t, g.Extend(t.Context(), 30*time.Second)) // changes its lease
	waiting := make(chan error, 1)
	go func() { waiting <- c.Lock(t.Context(), "a/b") }()
	testenv.Eventually(t, patience, "another waits", func() bool { return len(deInspect(t, c, "a/b")) == 2 })
	if !write(still) {
		t.Error("refused while the lock is held")
	}
	for _, wrong := range []int64{0, 1, g.Token() - 1, g.Token() + 1, 1 << 60} {
		_, err := etcdlock.Owner(t.Context(), direct, name, wrong)
		deWant(t, err, etcdlock.ErrNotHeld)
	}
	deUnlock(t, g)
	deSoon(t, waiting)
	_, err = etcdlock.Owner(t.Context(), direct, name, g.Token())
	deWant(t, err, etcdlock.ErrNotHeld)
	next, _ := c.Held("a/b")
	now, err := etcdlock.Owner(t.Context(), direct, name, next.Token())
	deCheck(t, err)
	if !write(now) || write(still) {
		t.Error("the next holder is refused, or the last one is not")
	}
	deCheck(t, c.Unlock(t.Context(), "a/b"))
	for range 10 { // whatever keys are used again
		g := deAcquire(t, c, "a/b")
		if write(still) || write(now) {
			t.Error("written after the lock was lost")
		}
		deUnlock(t, g)
	}
	if _, err := direct.Delete(t.Context(), name+"/", clientv3.WithPrefix()); err != nil || write(now) {
		t.Errorf("written after the key was deleted: %v", err)
	}
}

// What a claim says of itself can be read with any tool.
func TestInteropValue(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), deNew(t, server.Endpoint())
	began := time.Now().Add(-time.Second)
	g := deAcquire(t, c, "a/b", dlock.WithInfo(dlock.Info{Owner: "billing", Purpose: "close the books"}))
	deCheck(t, g.Extend(t.Context(), 30*time.Second)) // does not overwrite it
	kv := deLine(t, direct, "a/b")[0]
	var got struct {
		Key, Owner, Host, Purpose, Lease, Mode string
		PID                                    int
		Created                                time.Time
	}
	deCheck(t, json.Unmarshal(kv.Value, &got))
	host, err := os.Hostname()
	deCheck(t, err)
	if got.Key != "a/b" || got.Owner != "billing" || got.Purpose != "close the books" || got.Host != host || got.PID != os.Getpid() || got.Mode != "exclusive" {
		t.Errorf("stored: %s", kv.Value)
	}
	if got.Lease == "" || got.Created.Before(began) || got.Created.After(time.Now().Add(time.Second)) {
		t.Errorf("stored: %s", kv.Value)
	}
	if kv.CreateRevision != g.Token() {
		t.Errorf("created at %d, token %d", kv.CreateRevision, g.Token())
	}
}

// Admins see what others hold and wait for, and can take it away.
func TestInteropAdmin(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), deNew(t, server.Endpoint())
	admin, err := c.Admin()
	deCheck(t, err)
	f, second := deMutex(t, server.Endpoint(), "a/b", 60), deMutex(t, server.Endpoint(), "a/b", 60)
	deCheck(t, f.Lock(t.Context()))
	ours := deAwait(t, c, direct, "a/b", dlock.WithInfo(dlock.Info{Owner: "us"}))
	theirs := second.await(t, direct, "a/b")
	if keys, _, err := admin.List(t.Context(), "a/", "", 10); err != nil || !slices.Equal(keys, []string{"a/b"}) {
		t.Errorf("listed: %q, %v", keys, err)
	}
	claims := deInspect(t, c, "a/b")
	if len(claims) != 3 {
		t.Fatalf("shown are %v", claims)
	}
	if cl := claims[0]; cl.Phase != driver.Held || cl.Token != deLine(t, direct, "a/b")[0].CreateRevision || cl.Info != (dlock.Info{}) || cl.Left <= 30*time.Second {
		t.Errorf("the holder is shown as %v", cl)
	}
	if claims[1].Phase != driver.Queued || claims[1].Info.Owner != "us" || claims[2].Phase != driver.Queued {
		t.Errorf("shown are %v", claims)
	}
	deWant(t, admin.Evict(t.Context(), "a/b", claims[0].Token+1), dlock.ErrLockNotHeld)
	store := deOpen(t, direct).(driver.Admin)
	seen, err := store.Inspect(t.Context(), "a/b")
	deCheck(t, err)
	for _, wrong := range []int64{0, claims[0].Token - 1, claims[0].Token + 1} {
		if st, err := store.Evict(t.Context(), "a/b", seen[0].ID, wrong); err != nil || st.Phase != driver.Gone {
			t.Errorf("evicted with token %d: %v, %v", wrong, st.Phase, err)
		}
	}
	deIdle(t, ours)
	deCheck(t, admin.Evict(t.Context(), "a/b", claims[0].Token))
	g := deGrant(t, ours).guard
	deStill(t, theirs)
	deWant(t, admin.Evict(t.Context(), "a/b", claims[0].Token), dlock.ErrLockNotHeld)
	deAlive(t, g)
	_, err = c.TryAcquire(t.Context(), "a/b")
	var busy *dlock.Error
	if deWant(t, err, dlock.ErrLockHeldByOther); !errors.As(err, &busy) || busy.Holder == nil || busy.Holder.Info.Owner != "us" || busy.Waiting != 1 {
		t.Errorf("busy: %v", err)
	}
	deUnlock(t, g)
	deSoon(t, theirs)
	deCheck(t, second.Unlock(t.Context()))
}

// deFull fills a server until it refuses to store more.
func deFull(t testing.TB, direct *clientv3.Client) {
	t.Helper()
	value := strings.Repeat("x", 100_000)
	for i := range 1000 {
		if _, err := direct.Put(t.Context(), fmt.Sprint("fill", i), value); err != nil {
			deWant(t, err, rpctypes.ErrNoSpace)
			return
		}
	}
	t.Fatal("the server does not fill up")
}

// Without space nothing new is locked, and the error says so. What is held is
// renewed and released, and who waits gets it.
func TestWithoutSpaceHeldLocksWork(t *testing.T) {
	t.Parallel()
	const ttl = 9 * time.Second
	server := testenv.Etcd(t, "--quota-backend-bytes", "1000000")
	proxy := testenv.Proxy(t, server.Addr())
	direct := dial(t, server.Endpoint())
	c := deNew(t, deURL(proxy))
	g := deAcquire(t, c, "held", dlock.WithTTL(ttl))
	waiter := deAwait(t, deNew(t, server.Endpoint()), direct, "held", dlock.WithTTL(ttl))
	deUnlock(t, deAcquire(t, c, "warm"))
	proxy.DropGRPC(deTxnPath, 1) // some attempt to file it was not answered
	unsure := deAcquire(t, c, "unsure", dlock.WithTTL(ttl))
	deFull(t, direct)
	for _, opts := range [][]dlock.LockOption{nil, {dlock.WithTTL(ttl)}, {dlock.WithoutRenewal()}, {dlock.WithTTL(time.Hour)}} {
		if _, err := c.TryAcquire(t.Context(), "new", opts...); err == nil {
			t.Fatal("there is space: the fault did not happen")
		} else {
			deWant(t, err, etcdlock.ErrNoSpace)
		}
	}
	deRenewed(t, g, unsure)
	if err := unsure.Unlock(t.Context()); err != nil {
		deWant(t, err, dlock.ErrUnknownOutcome) // there is no space to bar what may yet arrive
	}
	testenv.Eventually(t, testenv.UnderStress(ttl*2/3, time.Second+deSlack), "what was unlocked is free", func() bool { return len(deLine(t, direct, "unsure")) == 0 })
	deUnlock(t, g)
	next := deGrant(t, waiter).guard
	deRenewed(t, next)
	deUnlock(t, next)
	if n := len(deLine(t, direct, "held")); n != 0 {
		t.Errorf("%d claims of what was unlocked", n)
	}
}

// deFinding returns what Check says under a name, the worst first.
func deFinding(t testing.TB, findings []dlock.Finding, name string) dlock.Finding {
	t.Helper()
	var worst dlock.Finding
	for _, f := range findings {
		if f.Name == name && (worst.Name == "" || f.Level > worst.Level) {
			worst = f
		}
		if f.Level != driver.OK && f.Cure == "" {
			t.Errorf("no cure: %+v", f)
		}
	}
	return worst
}

// deCheckup asserts what Check finds.
func deCheckup(t testing.TB, c *dlock.Client, want map[string]driver.Level) []dlock.Finding {
	t.Helper()
	findings, err := c.Check(t.Context())
	deCheck(t, err)
	for name, level := range want {
		if f := deFinding(t, findings, name); f.Name == "" || f.Level != level {
			t.Errorf("%s: %+v, want %v", name, f, level)
		}
	}
	return findings
}

func TestCheckOneMember(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t, "--quota-backend-bytes", "1000000")
	c := deNew(t, server.Endpoint())
	findings := deCheckup(t, c, map[string]driver.Level{"version": driver.OK, "members": driver.Warning, "alarms": driver.OK, "round-trip": driver.OK})
	if f := deFinding(t, findings, "members"); !strings.Contains(f.Cure, "three") {
		t.Errorf("the cure for a single member is to %q", f.Cure)
	}
	deFull(t, dial(t, server.Endpoint()))
	findings = deCheckup(t, c, map[string]driver.Level{"version": driver.OK, "alarms": driver.Unsafe})
	if f := deFinding(t, findings, "alarms"); f.Detail != "NOSPACE" {
		t.Errorf("the alarm is %q", f.Detail)
	}
	deCheck(t, server.Kill())
	_, err := c.Check(t.Context())
	deWant(t, err, dlock.ErrUnavailable)
}

func TestCheckCluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.EtcdCluster(t)
	nodes := cluster.Nodes()
	c := deNew(t, cluster.Endpoints()...)
	fine := map[string]driver.Level{"version": driver.OK, "members": driver.OK, "alarms": driver.OK}
	findings := deCheckup(t, c, fine)
	if f := deFinding(t, findings, "member"); f.Name != "" {
		t.Errorf("all run, and %+v", f)
	}
	deCheckup(t, deNew(t, nodes[0].Endpoint()), map[string]driver.Level{"members": driver.Warning}) // knows only one

	deCheck(t, nodes[0].Kill())
	findings = deCheckup(t, c, map[string]driver.Level{"member": driver.Warning, "members": driver.OK})
	if f := deFinding(t, findings, "member"); !strings.Contains(f.Detail, nodes[0].Addr()) {
		t.Errorf("which one is down? %+v", f)
	}
	deUnlock(t, deAcquire(t, c, "k")) // two are enough

	deCheck(t, nodes[1].Kill())
	deBadly(t, deNew(t, nodes[2].Endpoint()))
}

// deBadly asserts that Check does not call a cluster without a majority safe, and
// says so before its context ends.
func deBadly(t testing.TB, c *dlock.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.UnderStress(120*time.Second, 20*time.Second))
	defer cancel()
	began := time.Now()
	findings, err := c.Check(ctx)
	if took := time.Since(began); took > testenv.UnderStress(60*time.Second, 10*time.Second) {
		t.Errorf("Check took %v", took)
	}
	if err != nil {
		deWant(t, err, dlock.ErrNotReady)
		return
	}
	if !slices.ContainsFunc(findings, func(f dlock.Finding) bool { return f.Level == driver.Unsafe }) {
		t.Errorf("no majority, and Check finds %+v", findings)
	}
}
