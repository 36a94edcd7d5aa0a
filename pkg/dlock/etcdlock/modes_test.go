package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// A twin is a claim that two drivers have submitted, one on etcd and one in memory.
type twin struct {
	driver.Request
	at int // which of the drivers
}

// Random writers, readers and permits on one key are granted, refused and queued as they are in memory.
func TestModesAsInMemory(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	store := memlock.New()
	var stored, remembered [3]driver.Driver
	for i := range stored {
		stored[i] = openDriver(t, dial(t, server.Endpoint()))
		d, err := store.Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
		check(t, err)
		t.Cleanup(func() { _ = d.Close() })
		remembered[i] = d
	}
	for seed := range uint64(testenv.UnderStress(25, 1000)) {
		key := fmt.Sprint("k", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		var live []twin
		said := func(at int, format string, args ...any) {
			t.Helper()
			t.Fatalf("seed %d, step %d: %s", seed, at, fmt.Sprintf(format, args...))
		}
		for step := range 40 {
			if len(live) > 0 && r.IntN(5) < 2 {
				i := r.IntN(len(live))
				c := live[i]
				live = slices.Delete(live, i, i+1)
				a, err := stored[c.at].Release(t.Context(), c.Ref)
				check(t, err)
				b, err := remembered[c.at].Release(t.Context(), c.Ref)
				check(t, err)
				if a.Phase != b.Phase {
					said(step, "a %s was released from %v, want %v", c.Mode, a.Phase, b.Phase)
				}
			} else {
				c := twin{at: r.IntN(len(stored)), Request: driver.Request{
					Ref:  driver.Ref{Key: key, ID: fmt.Sprintf("%032x", seed<<32+uint64(step)+1), TTL: time.Hour, QueueTTL: time.Hour},
					Mode: driver.Mode(r.IntN(3)), Wait: r.IntN(3) > 0,
				}}
				if c.Mode == driver.Permit {
					c.Limit = 2 + r.IntN(2)
				}
				a, err := stored[c.at].Acquire(t.Context(), c.Request)
				check(t, err)
				b, err := remembered[c.at].Acquire(t.Context(), c.Request)
				check(t, err)
				if a.Phase != b.Phase {
					said(step, "a %s of %d is %v, want %v", c.Mode, c.Limit, a.Phase, b.Phase)
				}
				if a.Phase != driver.Gone {
					live = append(live, c)
				}
			}
			a, err := stored[0].(driver.Admin).Inspect(t.Context(), key)
			check(t, err)
			b, err := remembered[0].(driver.Admin).Inspect(t.Context(), key)
			check(t, err)
			if got, want := shown(a), shown(b); !slices.Equal(got, want) {
				said(step, "the claims are %q, want %q", got, want)
			}
			if len(live) > 0 {
				c := live[r.IntN(len(live))]
				a, b := renew(t, stored[c.at], c.Ref), renew(t, remembered[c.at], c.Ref)
				if a.Phase != b.Phase {
					said(step, "a %s of %d is renewed as %v, want %v", c.Mode, c.Limit, a.Phase, b.Phase)
				}
			}
		}
	}
}

func shown(claims []driver.Claim) (lines []string) {
	for _, c := range claims {
		lines = append(lines, fmt.Sprint(c.Phase, " ", c.Mode, " ", c.Limit, " ", c.ID[len(c.ID)-4:]))
	}
	return lines
}

// Writers, readers and permits of three processes exclude each other, and each is granted in the end.
func TestModesExclude(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	var clients []*dlock.Client
	for range 3 {
		clients = append(clients, locksOn(t, dial(t, server.Endpoint()), dlock.Config{DefaultTTL: time.Hour}))
	}
	var readers, writers, permits atomic.Int32
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			for range testenv.UnderStress(15, 200) {
				var opts []dlock.LockOption
				mine, limit := &writers, int32(1)
				switch r.IntN(3) {
				case 1:
					opts, mine, limit = []dlock.LockOption{dlock.WithShared()}, &readers, 1000
				case 2:
					opts, mine, limit = []dlock.LockOption{dlock.WithPermits(3)}, &permits, 3
				}
				g, err := clients[i%3].Acquire(context.Background(), "k", opts...)
				if err != nil {
					t.Error(err)
					return
				}
				n := mine.Add(1)
				if n > limit {
					t.Errorf("%d of %d hold the lock", n, limit)
				}
				for _, other := range []*atomic.Int32{&readers, &writers, &permits} {
					if other != mine && other.Load() > 0 {
						t.Error("claims that exclude each other hold the lock")
					}
				}
				mine.Add(-1)
				began := time.Now()
				if err := g.Unlock(context.Background()); err != nil && !hazardtest.GaveUp(t, err, began) {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * patience):
		t.Fatal("a claim was never granted")
	}
	direct := dial(t, server.Endpoint())
	testenv.Eventually(t, testenv.UnderStress(beforeLease, 0), "no claim is left", func() bool { return len(storedClaims(t, direct, "k")) == 0 })
}

// Many readers of two processes are granted when a writer leaves, and the server sends no more than
// two events for each.
func TestManyReadersAfterAWriter(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	readers := testenv.UnderStress(200, 1000)
	writer := acquire(t, locksOn(t, dial(t, server.Endpoint()), dlock.Config{DefaultTTL: time.Hour}), "k")
	clients := []*dlock.Client{
		locksOn(t, dial(t, server.Endpoint()), dlock.Config{DefaultTTL: time.Hour}), locksOn(t, dial(t, server.Endpoint()), dlock.Config{DefaultTTL: time.Hour}),
	}
	var all []<-chan outcome
	for i := range readers {
		ch := make(chan outcome, 1)
		go func() {
			g, err := clients[i%2].Acquire(context.Background(), "k", dlock.WithShared())
			ch <- outcome{g, err, time.Now()}
		}()
		all = append(all, ch)
	}
	testenv.Eventually(t, patience, "all wait", func() bool { return countClaims(t, direct, "k") == readers+1 })
	before := metric(t, server.Endpoint(), "etcd_debugging_mvcc_events_total")
	began := time.Now()
	unlock(t, writer)
	var inside []*dlock.Guard // all at a time: none leaves before the last has come
	for _, ch := range all {
		inside = append(inside, granted(t, ch).guard)
	}
	took := time.Since(began)
	events := metric(t, server.Endpoint(), "etcd_debugging_mvcc_events_total") - before
	t.Logf("%d readers were granted within %v, with %d events", readers, took, events)
	if events > 2*readers || took > testenv.UnderStress(patience, time.Second) {
		t.Errorf("%d readers were granted within %v, with %d events", readers, took, events)
	}
	for _, g := range inside {
		unlock(t, g)
	}
}

func countClaims(t testing.TB, direct *clientv3.Client, key string) int {
	t.Helper()
	resp, err := direct.Get(t.Context(), etcdlock.Name(key)+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	check(t, err)
	return int(resp.Count)
}

// A concurrency.Mutex excludes readers and permits, and waits for each of those before it.
func TestInteropMutexAmongReaders(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]dlock.LockOption{"readers": dlock.WithShared(), "permits": dlock.WithPermits(2)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.Etcd(t)
			direct := dial(t, server.Endpoint())
			c, other := locksAt(t, server.Endpoint()), locksAt(t, server.Endpoint())
			one, two := acquire(t, c, "k", opt), acquire(t, other, "k", opt)
			m := newMutex(t, server.Endpoint(), "k", 60)
			locked := m.await(t, direct, "k")
			late := startWait(t, c, direct, "k", opt)
			unlock(t, one)
			notEnded(t, locked)
			stillWaits(t, late)
			unlock(t, two)
			endsSoon(t, locked)
			stillWaits(t, late)
			if _, err := other.TryAcquire(t.Context(), "k", opt); err == nil {
				t.Error("a Mutex holds the lock, and so does another")
			}
			check(t, m.Unlock(context.Background()))
			unlock(t, granted(t, late).guard)
		})
	}
}

// Operators see readers and permits, and evict one of several, or a waiter.
func TestAdminModes(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	client, answers := countTxns(t, server.Endpoint())
	c := locksOn(t, client, dlock.Config{DefaultTTL: time.Minute})
	one, two := acquire(t, c, "data", dlock.WithShared()), acquire(t, c, "data", dlock.WithShared())
	writer := startWait(t, c, direct, "data")
	late := startWait(t, c, direct, "data", dlock.WithShared())
	permit := acquire(t, c, "gpu", dlock.WithPermits(1))
	before := answers.Load()
	queued := startWait(t, c, direct, "gpu", dlock.WithPermits(1))
	// Else it submits the same claim again, also after it is evicted.
	testenv.Eventually(t, patience, "the waiter knows that it is queued", func() bool { return answers.Load() > before })
	admin, err := c.Admin()
	check(t, err)
	claims, err := admin.Inspect(t.Context(), "data")
	check(t, err)
	var got []string
	for _, c := range claims {
		got = append(got, fmt.Sprint(c.Phase, " ", c.Mode))
	}
	if want := []string{"held shared", "held shared", "queued exclusive", "queued shared"}; !slices.Equal(got, want) {
		t.Errorf("the claims are %q, want %q", got, want)
	}
	began := time.Now()
	check(t, admin.Evict(t.Context(), "data", two.Token()))
	wantLost(t, two, began, patience)
	alive(t, one)
	unlock(t, one)
	unlock(t, granted(t, writer).guard)
	unlock(t, granted(t, late).guard)
	claims, err = admin.Inspect(t.Context(), "gpu")
	check(t, err)
	if len(claims) != 2 || claims[0].Limit != 1 || claims[0].Mode != dlock.ModePermit || claims[1].Phase != dlock.PhaseQueued {
		t.Errorf("the permits are %v", claims)
	}
	// A waiter that is evicted asks again at once, behind nobody.
	first, err := openDriver(t, dial(t, server.Endpoint())).(driver.Admin).Inspect(t.Context(), "gpu")
	check(t, err)
	st, err := openDriver(t, dial(t, server.Endpoint())).(driver.Admin).Evict(t.Context(), "gpu", first[1].ID, 0)
	if err != nil || st.Phase != driver.Queued {
		t.Errorf("a waiter is evicted: %v, %v", st.Phase, err)
	}
	testenv.Eventually(t, patience, "it waits again", func() bool {
		again := storedClaims(t, direct, "gpu")
		return len(again) == 2 && !strings.Contains(string(again[1].Value)+string(again[0].Value), first[1].ID)
	})
	unlock(t, permit)
	unlock(t, granted(t, queued).guard)
}

// countTxns returns a client, and how many of its transactions were answered.
func countTxns(t *testing.T, endpoint string) (*clientv3.Client, *atomic.Int64) {
	t.Helper()
	answers := new(atomic.Int64)
	count := func(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := call(ctx, path, req, reply, cc, opts...)
		if err == nil && path == txnPath {
			answers.Add(1)
		}
		return err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count)},
	})
	check(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client, answers
}

// Other data below the name of a lock, which looks like a permit, is not counted.
func TestPermitsAmongStrangers(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	for _, name := range []string{"k/p1-config", "k/p1-", "k/p1-abc", "k/p01-abc-dlock0", "k/r-", "k/r-abc", "k/p-1-dlock0"} {
		_, err := direct.Put(t.Context(), name, "data of another program")
		check(t, err)
	}
	c, other := locksAt(t, server.Endpoint()), locksAt(t, server.Endpoint())
	for range 2 {
		g := tryAcquire(t, c, "k", dlock.WithPermits(1))
		_, err := other.TryAcquire(t.Context(), "k", dlock.WithPermits(1))
		wantError(t, err, dlock.ErrLockHeldByOther)
		waiter := startWait(t, other, direct, "k", dlock.WithPermits(1))
		unlock(t, g)
		unlock(t, granted(t, waiter).guard)
		unlock(t, tryAcquire(t, other, "k", dlock.WithShared()))
		unlock(t, tryAcquire(t, other, "k"))
	}
}

// Permits that do not wait are never refused while one is free, and never granted beyond the limit.
func TestTryPermits(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	const limit, callers = 3, 8
	var clients []*dlock.Client
	for range callers {
		clients = append(clients, locksOn(t, dial(t, server.Endpoint()), dlock.Config{DefaultTTL: time.Minute}))
	}
	for round, rounds := 0, testenv.UnderStress(10, 200); rounds > 0; round++ {
		key := fmt.Sprint("k", round)
		guards, failed := make(chan *dlock.Guard, callers), make(chan error, callers)
		began := time.Now()
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				g, err := c.TryAcquire(t.Context(), key, dlock.WithPermits(limit))
				if err == nil {
					guards <- g
				} else if !errors.Is(err, dlock.ErrLockHeldByOther) {
					failed <- err
				}
			})
		}
		wg.Wait()
		stalled := false
		for len(failed) > 0 {
			err := <-failed
			stalled = stalled || hazardtest.GaveUp(t, err, began) // one stall delays several of them
			if !stalled || !isUnanswered(err) {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		n := len(guards)
		if n > limit || n < limit && !stalled { // what gave up may have stored its permit
			t.Fatalf("round %d: %d of %d have one of %d permits", round, n, callers, limit)
		}
		if !stalled {
			rounds--
		}
		for range n {
			unlock(t, <-guards)
		}
	}
}

// IsOwner accepts every reader that holds the lock, and none that waits or has left.
func TestOwnerModes(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	c := locksAt(t, server.Endpoint())
	one, two := acquire(t, c, "k", dlock.WithShared()), acquire(t, c, "k", dlock.WithShared())
	writer := startWait(t, c, direct, "k")
	all := storedClaims(t, direct, "k")
	for _, g := range []*dlock.Guard{two, one} {
		still, err := etcdlock.IsOwner(t.Context(), direct, etcdlock.Name("k"), g.Token())
		check(t, err)
		write := func() bool {
			resp, err := direct.Txn(t.Context()).If(still).Then(clientv3.OpPut("stock", "41")).Commit()
			check(t, err)
			return resp.Succeeded
		}
		if !write() {
			t.Error("a reader that holds the lock may not write")
		}
		for _, kv := range all {
			if kv.CreateRevision != one.Token() && kv.CreateRevision != two.Token() {
				_, err := etcdlock.IsOwner(t.Context(), direct, etcdlock.Name("k"), kv.CreateRevision)
				wantError(t, err, etcdlock.ErrNotHeld)
			}
		}
		released(t, direct, g)
		if write() {
			t.Error("a reader that has left may write")
		}
	}
	unlock(t, granted(t, writer).guard)
}
