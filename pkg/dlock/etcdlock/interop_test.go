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

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// A plainMutex is a concurrency.Mutex in its own session.
type plainMutex struct {
	*concurrency.Mutex
	session *concurrency.Session
}

// newMutex makes one for the lock that this library's clients call key.
func newMutex(t testing.TB, endpoint, key string, ttl int) plainMutex {
	t.Helper()
	session, err := concurrency.NewSession(dial(t, endpoint), concurrency.WithTTL(ttl))
	check(t, err)
	t.Cleanup(session.Orphan)
	return plainMutex{concurrency.NewMutex(session, etcdlock.Name(key)), session}
}

// await starts to wait and returns when the server has it queued.
func (f plainMutex) await(t testing.TB, direct *clientv3.Client, key string) <-chan error {
	t.Helper()
	before := len(storedClaims(t, direct, key))
	ch, ctx := make(chan error, 1), t.Context()
	go func() { ch <- f.Lock(ctx) }()
	testenv.Eventually(t, patience, "the Mutex is queued", func() bool { return len(storedClaims(t, direct, key)) > before })
	return ch
}

// endsSoon waits for an operation that must end soon and without error.
func endsSoon(t testing.TB, ch <-chan error) {
	t.Helper()
	select {
	case err := <-ch:
		check(t, err)
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
}

// notEnded asserts that an operation has not ended.
func notEnded(t testing.TB, ch <-chan error) {
	t.Helper()
	select {
	case err := <-ch:
		t.Fatalf("it is over: %v", err)
	default:
	}
}

// notOurs asserts that TryLock finds a lock held by another.
func notOurs(t testing.TB, c *dlock.Client, key string) {
	t.Helper()
	began := time.Now()
	ok, err := c.TryLock(t.Context(), key)
	for hazardtest.GaveUp(t, err, began) {
		began = time.Now()
		ok, err = c.TryLock(t.Context(), key)
	}
	if ok || err != nil {
		t.Fatalf("TryLock(%q) = %v, %v while another holds the lock", key, ok, err)
	}
}

// unlockKey unlocks a lock by its key, as unlock does.
func unlockKey(t testing.TB, c *dlock.Client, key string) {
	t.Helper()
	began := time.Now()
	err := c.Unlock(t.Context(), key)
	if err != nil && !hazardtest.GaveUp(t, err, began) {
		t.Fatalf("unlock: %v", err)
	}
}

// A Mutex excludes this library, whose claim waits for it, however the Mutex ends.
func TestInteropWaitForMutex(t *testing.T) {
	t.Parallel()
	const expiring = 5 * time.Second
	atOnce, late := testenv.UnderStress(beforeLease, 2*time.Second), testenv.UnderStress(beforeLease, 1500*time.Millisecond)
	ends := map[string]struct {
		end    func(*testing.T, plainMutex)
		within time.Duration
	}{
		"Unlock":  {func(t *testing.T, f plainMutex) { check(t, f.Unlock(t.Context())) }, atOnce},
		"Close":   {func(t *testing.T, f plainMutex) { check(t, f.session.Close()) }, atOnce},
		"Expires": {func(_ *testing.T, f plainMutex) { f.session.Orphan() }, expiring + late},
	}
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), locksAt(t, server.Endpoint())
	for name, way := range ends {
		f := newMutex(t, server.Endpoint(), name, int(expiring/time.Second))
		check(t, f.Lock(t.Context()))
		notOurs(t, c, name)
		ch := startWait(t, c, direct, name)
		stillWaits(t, ch)
		began := time.Now()
		way.end(t, f)
		got := granted(t, ch)
		if took := got.at.Sub(began); took > way.within {
			t.Errorf("%s: granted after %v", name, took)
		}
		unlock(t, got.guard)
	}
}

// A Mutex waits for a claim of this library, however the claim ends.
func TestInteropMutexWaits(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), locksAt(t, server.Endpoint())
	f := newMutex(t, server.Endpoint(), "k", 60)
	for _, opts := range [][]dlock.LockOption{nil, {dlock.WithoutRenewal()}} {
		g := acquire(t, c, "k", opts...)
		if err := f.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
			t.Fatalf("TryLock = %v while we hold", err)
		}
		ch := f.await(t, direct, "k")
		notEnded(t, ch)
		unlock(t, g)
		endsSoon(t, ch)
		notOurs(t, c, "k")
		check(t, f.Unlock(t.Context()))
	}
	child := startClaimant(t, 1, ttl, server.Endpoint())
	ch := f.await(t, direct, "k")
	notEnded(t, ch)
	began := time.Now()
	check(t, child.Kill())
	endsSoon(t, ch)
	if took := time.Since(began); took > ttl+testenv.UnderStress(beforeLease, 1500*time.Millisecond) {
		t.Errorf("the Mutex of a dead process was free after %v", took)
	}
	check(t, f.Unlock(t.Context()))
}

// Mutexes and claims of this library share one queue.
func TestInteropOrder(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	clients := []*dlock.Client{locksAt(t, server.Endpoint()), locksAt(t, server.Endpoint())}
	g := acquire(t, clients[0], "k")
	order := make(chan int, 8)
	var wg sync.WaitGroup
	for i := range 8 { // a Client, a Mutex, another Client, a Mutex, …
		if i%2 == 1 {
			f := newMutex(t, server.Endpoint(), "k", 60)
			ch := f.await(t, direct, "k")
			wg.Go(func() {
				endsSoonOr(t, ch)
				order <- i
				if err := f.Unlock(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			})
			continue
		}
		ch := startWait(t, clients[i/2%2], direct, "k")
		wg.Go(func() {
			got := <-ch
			order <- i
			if got.err != nil {
				t.Error(got.err)
				return
			}
			began := time.Now()
			err := got.guard.Unlock(context.WithoutCancel(t.Context()))
			if err != nil && !hazardtest.GaveUp(t, err, began) {
				t.Error(err)
			}
		})
	}
	if len(storedClaims(t, direct, "k")) != 9 || len(order) != 0 {
		t.Fatalf("%d wait, %d do not", len(storedClaims(t, direct, "k"))-1, len(order))
	}
	unlock(t, g)
	wg.Wait()
	for want := range 8 {
		if got := <-order; got != want {
			t.Errorf("%d came as number %d", got, want)
		}
	}
}

// endsSoonOr is endsSoon for goroutines of a test.
func endsSoonOr(t testing.TB, ch <-chan error) {
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

// Three Clients and two Mutexes contend, and none finds another inside.
func TestInteropHammer(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	each := testenv.UnderStress(15, 1000)
	var section section
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
		c := locksAt(t, server.Endpoint())
		contend(func() (func() error, error) {
			g, err := c.Acquire(ctx, "k")
			return func() error {
				began := time.Now()
				err := g.Unlock(t.Context())
				if hazardtest.GaveUp(t, err, began) {
					return nil // the Client goes on releasing
				}
				return err
			}, err
		})
	}
	for range 2 {
		f := newMutex(t, server.Endpoint(), "k", 60)
		contend(func() (func() error, error) {
			return func() error { return f.Unlock(t.Context()) }, f.Lock(ctx)
		})
	}
	wg.Wait()
	section.judge(t, 5*each)
	if left := leftovers(t, direct); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// toolTTL is the lease of etcdctl in seconds, long enough for a machine that stalls.
const toolTTL = "5"

// An etcdctlLock is a running etcdctl. Its command runs until the test ends it.
type etcdctlLock struct {
	*servers.Child
	in   string // exists while the command has run
	exit string // ends the command
}

// startEtcdctl runs etcdctl lock on a name with a command.
func startEtcdctl(t testing.TB, endpoint, name string) etcdctlLock {
	t.Helper()
	dir := t.TempDir()
	tool := etcdctlLock{in: filepath.Join(dir, "in"), exit: filepath.Join(dir, "exit")}
	// The script ends with etcdctl, however that ends: nothing else would end it.
	const script = `: > "$0"; while [ ! -e "$1" ] && kill -0 $PPID; do sleep 0.02; done`
	tool.Child = testenv.Child(t, exec.CommandContext(t.Context(), testenv.Etcdctl(t), "--endpoints", endpoint,
		"lock", name, "--ttl", toolTTL, "--", "sh", "-c", script, tool.in, tool.exit))
	return tool
}

func (d etcdctlLock) inside() bool {
	_, err := os.Stat(d.in)
	return err == nil
}

func (d etcdctlLock) letGo(t testing.TB) {
	t.Helper()
	check(t, os.WriteFile(d.exit, nil, 0o600))
}

// etcdctl lock excludes this library and is excluded by it.
func TestInteropEtcdctl(t *testing.T) {
	t.Parallel()
	const key, prefix = "jobs/nightly 100%", "locks/"
	name := prefix + etcdlock.Name(key)
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	c := locksOn(t, dial(t, server.Endpoint()), dlock.Config{Prefix: prefix})
	queued := func(n int) func() bool {
		return func() bool {
			resp, err := direct.Get(t.Context(), name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			return err == nil && resp.Count == int64(n)
		}
	}
	g := acquire(t, c, key)
	tool := startEtcdctl(t, server.Endpoint(), name)
	testenv.Eventually(t, patience, "etcdctl is queued", queued(2))
	next := make(chan error, 1)
	go func() { next <- c.Lock(t.Context(), key) }()
	testenv.Eventually(t, patience, "we are queued again", queued(3))
	if tool.inside() {
		t.Fatal("the command runs while we hold")
	}
	unlock(t, g)
	testenv.Eventually(t, patience, "the command runs", tool.inside)
	notEnded(t, next)
	tool.letGo(t)
	endsSoon(t, next)
	check(t, tool.Wait())
	unlockKey(t, c, key)

	dying := startEtcdctl(t, server.Endpoint(), name)
	testenv.Eventually(t, patience, "the command runs", dying.inside)
	go func() { next <- c.Lock(t.Context(), key) }()
	testenv.Eventually(t, patience, "we are queued", queued(2))
	notEnded(t, next)
	began := time.Now()
	dying.Kill()
	endsSoon(t, next)
	if took := time.Since(began); took > 5*time.Second+testenv.UnderStress(beforeLease, 1500*time.Millisecond) {
		t.Errorf("we got what a dead etcdctl held after %v", took)
	}
	unlockKey(t, c, key)
}

// No name is a directory of another, for mutexes as well.
func TestInteropNoDirectories(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	c := locksAt(t, server.Endpoint())
	inner := acquire(t, c, "a/b")
	outer := newMutex(t, server.Endpoint(), "a", 60)
	check(t, outer.TryLock(t.Context()))
	notOurs(t, c, "a")
	unlock(t, inner)
	below := newMutex(t, server.Endpoint(), "a/b", 60)
	check(t, below.TryLock(t.Context()))
	check(t, outer.Unlock(t.Context()))
	unlock(t, tryAcquire(t, c, "a"))
}

// putStrangers puts ordinary data below the name of a lock: with and without a lease, named like
// leases and like claims, and more of it than one look reads.
func putStrangers(t testing.TB, direct *clientv3.Client, key, tag string) map[string]string {
	t.Helper()
	lease, err := direct.Grant(t.Context(), 3600)
	check(t, err)
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
		check(t, err)
	}
	return data
}

// Ordinary keys below a lock's name and the lock do not affect each other.
func TestInteropStrangers(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	a, b := locksAt(t, server.Endpoint()), locksAt(t, server.Endpoint())
	data := putStrangers(t, direct, "k", "")
	unlock(t, tryAcquire(t, a, "k"))
	g := acquire(t, a, "k")
	notOurs(t, b, "k")
	data2 := putStrangers(t, direct, "k", "a") // which is a digit
	waiters := []<-chan outcome{startWait(t, b, direct, "k"), startWait(t, a, direct, "k")}
	data3 := putStrangers(t, direct, "k", "aa")
	waiters = append(waiters, startWait(t, a, direct, "k"), startWait(t, b, direct, "k"))
	claims := inspect(t, a, "k")
	if len(claims) != 5 || claims[0].Token != g.Token() {
		t.Errorf("shown are %v", claims)
	}
	for i, ch := range waiters {
		for _, later := range waiters[i:] {
			stillWaits(t, later)
		}
		alive(t, g)
		unlock(t, g)
		g = granted(t, ch).guard
	}
	awaitRenewal(t, g)
	unlock(t, g)
	for _, all := range []map[string]string{data, data2, data3} {
		for name, want := range all {
			resp, err := direct.Get(t.Context(), name)
			check(t, err)
			if len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != want {
				t.Errorf("%q is now %v", name, resp.Kvs)
			}
		}
	}
	admin, err := a.Admin()
	check(t, err)
	if keys, _, err := admin.ListPage(t.Context(), "", "", 10); err != nil || len(keys) != 0 {
		t.Errorf("data is listed as locks: %q, %v", keys, err)
	}
}

func inspect(t testing.TB, c *dlock.Client, key string) []dlock.Claim {
	t.Helper()
	admin, err := c.Admin()
	check(t, err)
	claims, err := admin.Inspect(t.Context(), key)
	check(t, err)
	return claims
}

// A user's own transaction takes effect while the lock is held, and not after.
func TestInteropOwner(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	const prefix = "app/"
	c := locksOn(t, dial(t, server.Endpoint()), dlock.Config{Prefix: prefix})
	name := prefix + etcdlock.Name("a/b")
	g := acquire(t, c, "a/b")
	still, err := etcdlock.IsOwner(t.Context(), direct, name, g.Token())
	check(t, err)
	write := func(still clientv3.Cmp) bool {
		resp, err := direct.Txn(t.Context()).If(still).Then(clientv3.OpPut("stock", "1")).Commit()
		check(t, err)
		return resp.Succeeded
	}
	if !write(still) {
		t.Error("refused while the lock is held")
	}
	check(t, g.Extend(t.Context(), 30*time.Second)) // changes its lease
	waiting := make(chan error, 1)
	go func() { waiting <- c.Lock(t.Context(), "a/b") }()
	testenv.Eventually(t, patience, "another waits", func() bool { return len(inspect(t, c, "a/b")) == 2 })
	if !write(still) {
		t.Error("refused while the lock is held")
	}
	for _, wrong := range []int64{0, 1, g.Token() - 1, g.Token() + 1, 1 << 60} {
		_, err := etcdlock.IsOwner(t.Context(), direct, name, wrong)
		wantError(t, err, etcdlock.ErrNotHeld)
	}
	unlock(t, g)
	endsSoon(t, waiting)
	_, err = etcdlock.IsOwner(t.Context(), direct, name, g.Token())
	wantError(t, err, etcdlock.ErrNotHeld)
	next, _ := c.Held("a/b")
	now, err := etcdlock.IsOwner(t.Context(), direct, name, next.Token())
	check(t, err)
	if !write(now) || write(still) {
		t.Error("the next holder is refused, or the last one is not")
	}
	unlockKey(t, c, "a/b")
	for range 10 { // whatever keys are used again
		g := acquire(t, c, "a/b")
		if write(still) || write(now) {
			t.Error("written after the lock was lost")
		}
		unlock(t, g)
	}
	if _, err := direct.Delete(t.Context(), name+"/", clientv3.WithPrefix()); err != nil || write(now) {
		t.Errorf("written after the key was deleted: %v", err)
	}
}

// Any tool can read what a claim says about itself.
func TestInteropValue(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), locksAt(t, server.Endpoint())
	began := time.Now().Add(-time.Second)
	g := acquire(t, c, "a/b", dlock.WithInfo(dlock.Info{Owner: "billing", Purpose: "close the books"}))
	check(t, g.Extend(t.Context(), 30*time.Second)) // does not overwrite it
	kv := storedClaims(t, direct, "a/b")[0]
	var got struct {
		Key, Owner, Host, Purpose, Lease, Mode string
		PID                                    int
		Created                                time.Time
	}
	check(t, json.Unmarshal(kv.Value, &got))
	host, err := os.Hostname()
	check(t, err)
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

// Admins see the holders and waiters of other programs, and can evict them.
func TestInteropAdmin(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), locksAt(t, server.Endpoint())
	admin, err := c.Admin()
	check(t, err)
	f, second := newMutex(t, server.Endpoint(), "a/b", 60), newMutex(t, server.Endpoint(), "a/b", 60)
	check(t, f.Lock(t.Context()))
	ours := startWait(t, c, direct, "a/b", dlock.WithInfo(dlock.Info{Owner: "us"}))
	theirs := second.await(t, direct, "a/b")
	if keys, _, err := admin.ListPage(t.Context(), "a/", "", 10); err != nil || !slices.Equal(keys, []string{"a/b"}) {
		t.Errorf("listed: %q, %v", keys, err)
	}
	claims := inspect(t, c, "a/b")
	if len(claims) != 3 {
		t.Fatalf("shown are %v", claims)
	}
	if cl := claims[0]; cl.Phase != dlock.PhaseHeld || cl.Token != storedClaims(t, direct, "a/b")[0].CreateRevision || cl.Info != (dlock.Info{}) || cl.Remaining <= 30*time.Second {
		t.Errorf("the holder is shown as %v", cl)
	}
	if claims[1].Phase != dlock.PhaseQueued || claims[1].Info.Owner != "us" || claims[2].Phase != dlock.PhaseQueued {
		t.Errorf("shown are %v", claims)
	}
	wantError(t, admin.Evict(t.Context(), "a/b", claims[0].Token+1), dlock.ErrLockNotHeld)
	store := openDriver(t, direct).(driver.Admin)
	seen, err := store.Inspect(t.Context(), "a/b")
	check(t, err)
	for _, wrong := range []int64{0, claims[0].Token - 1, claims[0].Token + 1} {
		if st, err := store.Evict(t.Context(), "a/b", seen[0].ID, wrong); err != nil || st.Phase != driver.Gone {
			t.Errorf("evicted with token %d: %v, %v", wrong, st.Phase, err)
		}
	}
	stillWaits(t, ours)
	check(t, admin.Evict(t.Context(), "a/b", claims[0].Token))
	g := granted(t, ours).guard
	notEnded(t, theirs)
	wantError(t, admin.Evict(t.Context(), "a/b", claims[0].Token), dlock.ErrLockNotHeld)
	alive(t, g)
	if busy := namedHolder(t, c, "a/b"); busy.Holder.Info.Owner != "us" || busy.Waiters != 1 {
		t.Errorf("busy: %v", busy)
	}
	unlock(t, g)
	endsSoon(t, theirs)
	check(t, second.Unlock(t.Context()))
}

// fillUp fills a server until it refuses to store more.
func fillUp(t testing.TB, direct *clientv3.Client) {
	t.Helper()
	value := strings.Repeat("x", 100_000)
	for i := range 1000 {
		if _, err := direct.Put(t.Context(), fmt.Sprint("fill", i), value); err != nil {
			wantError(t, err, rpctypes.ErrNoSpace)
			return
		}
	}
	t.Fatal("the server does not fill up")
}

// Without space nothing new is locked, and the error says so. Held locks are renewed and released,
// and waiters get them.
func TestWithoutSpaceHeldLocksWork(t *testing.T) {
	t.Parallel()
	const ttl = 9 * time.Second
	server := testenv.Etcd(t, "--quota-backend-bytes", "1000000")
	proxy := testenv.Proxy(t, server.Addr())
	direct := dial(t, server.Endpoint())
	c := locksAt(t, urlOf(proxy))
	g := acquire(t, c, "held", dlock.WithTTL(ttl))
	waiter := startWait(t, locksAt(t, server.Endpoint()), direct, "held", dlock.WithTTL(ttl))
	unlock(t, acquire(t, c, "warm"))
	proxy.DropGRPC(txnPath, 1) // some attempt to submit it was not answered
	unsure := acquire(t, c, "unsure", dlock.WithTTL(ttl))
	fillUp(t, direct)
	for _, opts := range [][]dlock.LockOption{nil, {dlock.WithTTL(ttl)}, {dlock.WithoutRenewal()}, {dlock.WithTTL(time.Hour)}} {
		began := time.Now()
		_, err := c.TryAcquire(t.Context(), "new", opts...)
		for !errors.Is(err, etcdlock.ErrNoSpace) && hazardtest.GaveUp(t, err, began) {
			began = time.Now()
			_, err = c.TryAcquire(t.Context(), "new", opts...)
		}
		if err == nil {
			t.Fatal("there is space: the fault did not happen")
		}
		wantError(t, err, etcdlock.ErrNoSpace)
	}
	awaitRenewal(t, g, unsure)
	began := time.Now()
	err := unsure.Unlock(t.Context())
	if err != nil && !hazardtest.GaveUp(t, err, began) {
		wantError(t, err, dlock.ErrUnknownOutcome) // there is no space for a tombstone
	}
	testenv.Eventually(t, testenv.UnderStress(ttl*2/3, time.Second+slack), "what was unlocked is free", func() bool { return len(storedClaims(t, direct, "unsure")) == 0 })
	unlock(t, g)
	next := granted(t, waiter).guard
	awaitRenewal(t, next)
	released(t, direct, next)
	if n := len(storedClaims(t, direct, "held")); n != 0 {
		t.Errorf("%d claims of what was unlocked", n)
	}
}

// findingOf returns the finding of Check with this name, the worst first.
func findingOf(t testing.TB, findings []dlock.Finding, name string) dlock.Finding {
	t.Helper()
	var worst dlock.Finding
	for _, f := range findings {
		if f.Name == name && (worst.Name == "" || f.Level > worst.Level) {
			worst = f
		}
		if f.Level != dlock.LevelOK && f.Fix == "" {
			t.Errorf("no fix: %+v", f)
		}
	}
	return worst
}

// wantFindings asserts what Check finds.
func wantFindings(t testing.TB, c *dlock.Client, want map[string]dlock.Level) []dlock.Finding {
	t.Helper()
	findings, err := c.Check(t.Context())
	check(t, err)
	wantLevels(t, findings, want)
	return findings
}

func wantLevels(t testing.TB, findings []dlock.Finding, want map[string]dlock.Level) {
	t.Helper()
	for name, level := range want {
		if f := findingOf(t, findings, name); f.Name == "" || f.Level != level {
			t.Errorf("%s: %+v, want %v", name, f, level)
		}
	}
}

// calmFindings is wantFindings for a cluster, of which these members run. During an election a member has no leader, and when
// the machine stalls, one may not answer in the two seconds that it has: then Check is repeated. Five elections are no calm.
func calmFindings(t testing.TB, direct *clientv3.Client, running []*servers.Etcd, c *dlock.Client, want map[string]dlock.Level) []dlock.Finding {
	t.Helper()
	for elections := 0; ; {
		term, began := awaitTerm(t, direct, running), time.Now()
		findings, err := c.Check(t.Context())
		stalled := testenv.Stalled(t, began, giveUpAfter)
		now := awaitTerm(t, direct, running)
		if now != term {
			elections++
		}
		if stalled || now != term && elections < 5 {
			t.Logf("a stall, or an election in term %d, now %d: %+v, %v", term, now, findings, err)
			continue
		}
		check(t, err)
		wantLevels(t, findings, want)
		return findings
	}
}

// awaitTerm waits until all members have a leader in the same term, and returns it.
func awaitTerm(t testing.TB, direct *clientv3.Client, members []*servers.Etcd) (term uint64) {
	t.Helper()
	testenv.Eventually(t, patience, "all members have the same leader", func() bool {
		for i, m := range members {
			ctx, cancel := context.WithTimeout(t.Context(), patience/10)
			st, err := direct.Status(ctx, m.Endpoint())
			cancel()
			if err != nil || st.Leader == 0 || i > 0 && st.RaftTerm != term {
				return false
			}
			term = st.RaftTerm
		}
		return true
	})
	return term
}

func TestCheckOneMember(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t, "--quota-backend-bytes", "1000000")
	c := locksAt(t, server.Endpoint())
	findings := wantFindings(t, c, map[string]dlock.Level{"version": dlock.LevelOK, "members": dlock.LevelWarning, "alarms": dlock.LevelOK})
	f := findingOf(t, findings, "round-trip")
	median, err := time.ParseDuration(strings.TrimPrefix(f.Detail, "median "))
	check(t, err)
	if (f.Level == dlock.LevelOK) != (median <= 200*time.Millisecond) { // a busy machine is slow as well
		t.Errorf("round trip: %+v", f)
	}
	if f := findingOf(t, findings, "members"); !strings.Contains(f.Fix, "three") {
		t.Errorf("the fix for a single member is to %q", f.Fix)
	}
	fillUp(t, dial(t, server.Endpoint()))
	findings = wantFindings(t, c, map[string]dlock.Level{"version": dlock.LevelOK, "alarms": dlock.LevelUnsafe})
	if f := findingOf(t, findings, "alarms"); f.Detail != "NOSPACE" {
		t.Errorf("the alarm is %q", f.Detail)
	}
	check(t, server.Kill())
	_, err = c.Check(t.Context())
	wantError(t, err, dlock.ErrUnavailable)
}

func TestCheckCluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.EtcdCluster(t)
	nodes := cluster.Nodes()
	c, direct := locksAt(t, cluster.Endpoints()...), dial(t, cluster.Endpoints()...)
	fine := map[string]dlock.Level{"version": dlock.LevelOK, "members": dlock.LevelOK, "alarms": dlock.LevelOK}
	findings := calmFindings(t, direct, nodes, c, fine)
	if f := findingOf(t, findings, "member"); f.Name != "" {
		t.Errorf("all run, and %+v", f)
	}
	one := locksAt(t, nodes[0].Endpoint()) // knows only one
	calmFindings(t, direct, nodes, one, map[string]dlock.Level{"members": dlock.LevelWarning})

	check(t, nodes[0].Kill())
	findings = calmFindings(t, direct, nodes[1:], c, map[string]dlock.Level{"member": dlock.LevelWarning, "members": dlock.LevelOK})
	if f := findingOf(t, findings, "member"); !strings.Contains(f.Detail, nodes[0].Addr()) {
		t.Errorf("which one is down? %+v", f)
	}
	unlock(t, acquire(t, c, "k")) // two are enough

	check(t, nodes[1].Kill())
	wantUnsafe(t, locksAt(t, nodes[2].Endpoint()))
}

// wantUnsafe asserts that Check does not call a cluster without a majority safe, and returns before
// its context ends.
func wantUnsafe(t testing.TB, c *dlock.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.UnderStress(120*time.Second, 20*time.Second))
	defer cancel()
	began := time.Now()
	findings, err := c.Check(ctx)
	if took := time.Since(began); took > testenv.UnderStress(60*time.Second, 10*time.Second) {
		t.Errorf("Check took %v", took)
	}
	if err != nil {
		wantError(t, err, dlock.ErrNotReady)
		return
	}
	if !slices.ContainsFunc(findings, func(f dlock.Finding) bool { return f.Level == dlock.LevelUnsafe }) {
		t.Errorf("no majority, and Check finds %+v", findings)
	}
}
