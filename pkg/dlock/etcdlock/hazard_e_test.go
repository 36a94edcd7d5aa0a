package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// E1: ten dead waiters at the head of the queue cost one lease, and not one each.
func TestE1GhostHeads(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	for range testenv.UnderStress(1, 20) {
		server := testenv.Etcd(t)
		direct := dial(t, server.Endpoint())
		a, b := deNew(t, server.Endpoint()), deNew(t, server.Endpoint())
		g := deAcquire(t, a, "k")
		ghosts := deChild(t, 10, ttl, server.Endpoint())
		var living []<-chan deGot
		for range 10 {
			living = append(living, deAwait(t, b, direct, "k", dlock.WithTTL(ttl)))
		}
		if n := len(deLine(t, direct, "k")); n != 21 {
			t.Fatalf("%d claims", n)
		}
		deCheck(t, ghosts.Kill())
		began := time.Now()
		deUnlock(t, g)
		next := deGrant(t, living[0])
		took := next.at.Sub(began)
		t.Logf("after %v", took)
		if most := testenv.UnderStress(5*ttl, ttl+1500*time.Millisecond); took > most { // one each are ten
			t.Errorf("the first living waiter had to wait %v, more than %v", took, most)
		}
		deUnlock(t, next.guard)
		for _, ch := range living[1:] {
			deUnlock(t, deGrant(t, ch).guard)
		}
	}
}

// E1: a claim that its own process does not renew any more is removed, though the
// lease that it shares with others lives on.
func TestE1SilentClaims(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	d, other := deOpen(t, direct), deOpen(t, dial(t, server.Endpoint()))
	kept, silent, queued := deRef("kept", 1), deRef("silent", 2), deRef("busy", 3)
	const ttl = 5 * time.Second
	kept.TTL, silent.TTL, queued.TTL = ttl, ttl, ttl
	deFile(t, other, deRef("busy", 4))
	filing := time.Now()
	for _, ref := range []driver.Ref{kept, silent, queued} {
		deFile(t, d, ref)
	}
	lease := deLine(t, direct, "kept")[0].Lease
	if deLine(t, direct, "silent")[0].Lease != lease || deLine(t, direct, "busy")[1].Lease != lease {
		t.Fatal("the claims do not share a lease")
	}
	began := time.Now()
	testenv.Eventually(t, beforeLease, "the silent claims are gone", func() bool {
		if states, err := d.Renew(t.Context(), []driver.Ref{kept}); err != nil || states[0].Phase != driver.Held {
			t.Fatal(states, err)
		}
		return len(deLine(t, direct, "silent")) == 0 && len(deLine(t, direct, "busy")) == 1
	})
	if least, most := time.Since(began), time.Since(filing); most < ttl || least > ttl+ttl/3+2*deSlack {
		t.Errorf("removed after %v to %v", least, most)
	}
	if line := deLine(t, direct, "kept"); len(line) != 1 || line[0].Lease != lease {
		t.Errorf("the claim that was renewed: %v", line)
	}
}

// E2: nobody who waits for ten heartbeats is taken for dead, or loses its place.
func TestE2PatientWaiters(t *testing.T) {
	t.Parallel()
	ttl := testenv.UnderStress(3050*time.Millisecond, 1050*time.Millisecond) // on a lease of a second more
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	g := deAcquire(t, deNew(t, server.Endpoint()), "k")
	two := []*dlock.Client{deNew(t, server.Endpoint()), deNew(t, server.Endpoint())}
	var waiters []<-chan deGot
	for i := range 6 {
		waiters = append(waiters, deAwait(t, two[i%2], direct, "k", dlock.WithTTL(ttl)))
	}
	before := deLine(t, direct, "k")
	<-time.After(10500 * time.Millisecond)
	deAlive(t, g)
	after := deLine(t, direct, "k")
	if len(before) != 7 || len(after) != 7 {
		t.Fatalf("%d claims, then %d", len(before), len(after))
	}
	for i := range before {
		if before[i].CreateRevision != after[i].CreateRevision {
			t.Errorf("claim %d was filed again", i)
		}
	}
	deUnlock(t, g)
	for i, ch := range waiters { // each in its turn, since each unlocks only then
		next := deGrant(t, ch).guard
		if next.Token() != before[i+1].CreateRevision {
			t.Errorf("token %d, filed at %d", next.Token(), before[i+1].CreateRevision)
		}
		deUnlock(t, next)
	}
}

func deQuantile(took []time.Duration, q float64) time.Duration {
	slices.Sort(took)
	return took[int(q*float64(len(took)-1))]
}

// E3: watches are hints. Without any, a hand-over takes a heartbeat, of a second at most, and
// not a third of the TTL.
func TestE3WithoutWatches(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	proxy.HoldGRPC(deWatchPath, math.MaxInt)
	const ttl = time.Minute
	a, b := deOn(t, dial(t, deURL(proxy)), dlock.Config{DefaultTTL: ttl}), deOn(t, dial(t, deURL(proxy)), dlock.Config{DefaultTTL: ttl})
	ctx, cancel := context.WithTimeout(t.Context(), testenv.UnderStress(180*time.Second, 300*time.Second))
	defer cancel()
	lanes, each := 10, testenv.UnderStress(2, 100)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all []time.Duration
	for i := range lanes {
		rng := rand.New(rand.NewPCG(3, uint64(i)))
		wg.Go(func() {
			key := fmt.Sprint("k", i)
			g, err := a.Acquire(ctx, key)
			for n := 0; n < each && err == nil; n++ {
				ch, next := make(chan deGot, 1), []*dlock.Client{b, a}[n%2]
				go func() {
					g, err := next.Acquire(ctx, key)
					ch <- deGot{g, err, time.Now()}
				}()
				<-time.After(time.Duration(rng.IntN(300)) * time.Millisecond) // any moment of its heartbeat
				_ = g.Unlock(t.Context())
				freed := time.Now()
				got := <-ch
				g, err = got.guard, got.err
				mu.Lock()
				all = append(all, got.at.Sub(freed))
				mu.Unlock()
			}
			if err == nil {
				err = g.Unlock(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(all) != lanes*each || proxy.GRPCCalls()[deWatchPath] == 0 || deWatchers(t, server.Endpoint()) != 0 {
		t.Fatalf("%d of %d hand-overs, %d watches asked for, %d made", len(all), lanes*each, proxy.GRPCCalls()[deWatchPath], deWatchers(t, server.Endpoint()))
	}
	if worst := deQuantile(all, 1); worst > testenv.UnderStress(ttl/4, time.Second+deSlack) {
		t.Errorf("a hand-over took %v", worst)
	}
	t.Logf("%d hand-overs: median %v, worst %v", len(all), deQuantile(all, .5), deQuantile(all, 1))
}

// E3: who goes after we have queued and before our watch stands is not missed.
// Nobody renews here, so nothing else can bring the grant.
func TestE3WatchBeginsLate(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	a, b := deOpen(t, dial(t, server.Endpoint())), deOpen(t, dial(t, deURL(proxy)))
	n := testenv.UnderStress(5, 100)
	letIn := proxy.HoldGRPC(deWatchPath, 1) // all watches of a client are one call
	for i := range n {
		key := fmt.Sprint("k", i)
		deFile(t, a, deRef(key, i))
		if st := deFile(t, b, deRef(key, n+i)); st.Phase != driver.Queued {
			t.Fatal(st)
		}
	}
	testenv.Eventually(t, patience, "a watch is asked for", func() bool { return proxy.GRPCCalls()[deWatchPath] == 1 })
	testenv.Eventually(t, patience, "the holders watch their own keys", func() bool { return deWatchers(t, server.Endpoint()) == n })
	for i := range n {
		_, err := a.Release(t.Context(), deRef(fmt.Sprint("k", i), i))
		deCheck(t, err)
	}
	if w := deWatchers(t, server.Endpoint()); w > n {
		t.Fatalf("%d watches of waiters stand already", w-n)
	}
	letIn()
	granted := map[string]bool{}
	for range n {
		ev := deEvent(t, b)
		if ev.State.Phase != driver.Held {
			t.Fatalf("told %v", ev.State.Phase)
		}
		granted[ev.Key] = true
	}
	if len(granted) != n {
		t.Errorf("only %d of %d were granted", len(granted), n)
	}
}

// E3: with watches it takes no time. The machine may be busy with others: one
// round of five must meet the mark. By heartbeats half of the hand-overs take half a second.
func TestE3Watches(t *testing.T) {
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	two := []*dlock.Client{deNew(t, server.Endpoint()), deNew(t, server.Endpoint())}
	quantile, mark := testenv.UnderStress(.5, .99), testenv.UnderStress(250*time.Millisecond, 20*time.Millisecond)
	var got time.Duration
	for range 5 {
		var took []time.Duration
		g, hopeless := deAcquire(t, two[0], "k"), time.Now().Add(testenv.UnderStress(10*time.Second, 100*time.Second))
		for i := range testenv.UnderStress(100, 1000) {
			if time.Now().After(hopeless) {
				break
			}
			ch := deAwait(t, two[(i+1)%2], direct, "k")
			began := time.Now()
			deUnlock(t, g)
			next := deGrant(t, ch)
			took, g = append(took, next.at.Sub(began)), next.guard
		}
		deUnlock(t, g)
		got = deQuantile(took, quantile)
		t.Logf("p50 %v, p99 %v", deQuantile(took, .5), deQuantile(took, .99))
		if got <= mark {
			return
		}
	}
	t.Errorf("quantile %v is %v, more than %v", quantile, got, mark)
}

// deUsage is how much CPU this process has used.
func deUsage(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	deCheck(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// E4: a hand-over wakes one waiter, whatever the length of the queue, and the
// waiters of a process share a watch.
func TestE4Herd(t *testing.T) {
	const clients, each = 8, 25
	hands := int64(testenv.UnderStress(300, 500))
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	g := deAcquire(t, deNew(t, server.Endpoint()), "k")
	var wg sync.WaitGroup
	var count atomic.Int64
	for range clients {
		c := deNew(t, server.Endpoint())
		for range each {
			wg.Go(func() {
				for ctx.Err() == nil {
					g, err := c.Acquire(ctx, "k")
					if err != nil {
						if ctx.Err() == nil {
							t.Error(err)
						}
						return
					}
					if count.Add(1) >= hands {
						cancel()
					}
					if err := g.Unlock(context.WithoutCancel(ctx)); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	testenv.Eventually(t, patience, "all wait", func() bool { return len(deLine(t, direct, "k")) == clients*each+1 })
	const watches = clients + 1 // the holder watches its own key
	testenv.Eventually(t, patience, "each process watches one key", func() bool { return deWatchers(t, server.Endpoint()) == watches })
	idle, mark := 1.0, testenv.UnderStress(.5, .05) // of a CPU; who asks all the time takes one
	for range 3 {                                   // whatever else this process still does, it does not do forever
		busy, began := deUsage(t), time.Now()
		<-time.After(1200 * time.Millisecond)
		if idle = min(idle, float64(deUsage(t)-busy)/float64(time.Since(began))); idle <= mark {
			break
		}
	}
	if w := deWatchers(t, server.Endpoint()); w > watches {
		t.Errorf("%d processes have %d watches", watches, w)
	}
	received := func() int { return deMetric(t, server.Endpoint(), "grpc_server_msg_received_total") } // in streams, too
	before := received()
	deUnlock(t, g)
	<-ctx.Done()
	perHand := float64(received()-before) / float64(count.Load())
	wg.Wait()
	t.Logf("%.2f requests per hand-over, %.1f %% of a CPU while %d wait", perHand, 100*idle, clients*each)
	if perHand > 10 || count.Load() < hands {
		t.Errorf("%.1f requests per hand-over, of %d", perHand, count.Load())
	}
	if idle > mark {
		t.Errorf("%.1f %% of a CPU is used for waiting", 100*idle)
	}
}

// E4: who waits behind a claim of the same process that was never answered waits
// for it, and does not ask all the time.
func TestE4BehindUnanswered(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	direct := dial(t, server.Endpoint())
	c := deOn(t, dial(t, deURL(proxy)), dlock.Config{RetryInterval: 2 * time.Second})
	g := deAcquire(t, c, "k")
	first := deAwait(t, c, direct, "k")
	proxy.DropGRPC(deTxnPath, 1)
	unanswered := deAwait(t, c, direct, "k") // it asks again in two seconds
	behind := deAwait(t, c, direct, "k")
	deUnlock(t, g)
	g = deGrant(t, first).guard
	before, began := proxy.Requests(), time.Now()
	<-time.After(500 * time.Millisecond)
	asked, span := proxy.Requests()-before, time.Since(began)
	deIdle(t, unanswered)
	deIdle(t, behind)
	if most := int64(2 * 20 * span.Seconds()); asked > most {
		t.Errorf("two waiters asked %d times in %v, more than %d", asked, span, most)
	}
	for _, ch := range []<-chan deGot{unanswered, behind} {
		deUnlock(t, g)
		g = deGrant(t, ch).guard
	}
	deUnlock(t, g)
}

// E5: strictly in order of arrival: whoever the server shows first in the queue is
// the next to get the lock.
func TestE5Order(t *testing.T) {
	t.Parallel()
	const clients = 8
	total := int64(testenv.UnderStress(300, 10_000))
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var count, predicted, inversions atomic.Int64
	var expect int64 // guarded by the lock
	shares := make([]int64, clients)
	for i := range clients {
		c := deNew(t, server.Endpoint())
		wg.Go(func() {
			for count.Load() < total {
				g, err := c.Acquire(ctx, "k")
				if err != nil {
					t.Error(err)
					return
				}
				count.Add(1)
				shares[i]++
				if expect != 0 {
					predicted.Add(1)
					if expect != g.Token() {
						inversions.Add(1)
					}
				}
				expect = 0
				if line := deLine(t, direct, "k"); len(line) > 1 {
					expect = line[1].CreateRevision
				}
				if err := g.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if predicted.Load() < total*8/10 {
		t.Errorf("only %d of %d had a predecessor: the test does not bite", predicted.Load(), total)
	}
	if inversions.Load() != 0 {
		t.Errorf("%d inversions", inversions.Load())
	}
	if least := slices.Min(shares); least < total/clients/3 {
		t.Errorf("shares %v", shares)
	}
}

// E6: calls that are cancelled anywhere leave nothing in the queue and acquire
// nothing.
func TestE6CancelledWaiters(t *testing.T) {
	t.Parallel()
	const workers = 6
	total := int64(testenv.UnderStress(400, 5000))
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	var clients []*dlock.Client
	for range 3 { // a lease ends nothing here
		clients = append(clients, deOn(t, dial(t, server.Endpoint()), dlock.Config{DefaultTTL: time.Minute}))
	}
	var wg sync.WaitGroup
	var calls, cancelled, acquired atomic.Int64
	for i := range workers {
		rng, c := rand.New(rand.NewPCG(6, uint64(i))), clients[i%len(clients)]
		wg.Go(func() {
			for n := calls.Add(1); n <= total; n = calls.Add(1) {
				within := time.Duration(rng.IntN(80_000)) * time.Microsecond
				if n%20 == 0 {
					within = patience // some acquire, however slow the machine is
				}
				ctx, cancel := context.WithTimeout(t.Context(), within)
				g, err := c.Acquire(ctx, "k")
				switch {
				case err == nil:
					acquired.Add(1)
					<-time.After(time.Duration(rng.IntN(2000)) * time.Microsecond)
					if err := g.Unlock(ctx); err != nil && !errors.Is(err, dlock.ErrUnknownOutcome) {
						t.Error(err)
					}
				case errors.Is(err, context.DeadlineExceeded):
					cancelled.Add(1)
				default:
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	testenv.Eventually(t, testenv.UnderStress(beforeLease, time.Second+deSlack), "nothing is left", func() bool { return len(deLeft(t, direct)) == 0 })
	<-time.After(200 * time.Millisecond) // nor comes back
	if left := deLeft(t, direct); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	if cancelled.Load() < total/10 || acquired.Load() == 0 {
		t.Errorf("%d cancelled, %d acquired: the test does not bite", cancelled.Load(), acquired.Load())
	}
	t.Logf("%d cancelled, %d acquired", cancelled.Load(), acquired.Load())
}

// E8: closing at any moment: every call ends, with ErrClosed if it was too late,
// and nothing is left.
func TestE8Close(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	rng := rand.New(rand.NewPCG(8, 8))
	var refused, took atomic.Int64
	for round := range testenv.UnderStress(60, 1000) {
		c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(etcdlock.New(direct)))
		deCheck(t, err)
		var wg sync.WaitGroup
		before := took.Load()
		for i := range 6 {
			wg.Go(func() {
				for {
					_, err := c.Acquire(t.Context(), fmt.Sprintf("k%d", i%2)) // the first to hold it keeps it
					if err == nil {
						took.Add(1)
						continue
					}
					if !errors.Is(err, dlock.ErrClosed) {
						t.Error(err)
					}
					refused.Add(1)
					return
				}
			})
		}
		if round%4 == 0 { // however slow the machine is, some hold by then
			testenv.Eventually(t, patience, "a lock is held", func() bool { return took.Load() > before })
		}
		<-time.After(time.Duration(rng.IntN(15_000)) * time.Microsecond)
		deCheck(t, deClose(t, c))
		wg.Wait()
		deWant(t, c.Lock(t.Context(), "k0"), dlock.ErrClosed)
		if left := deLeft(t, direct); len(left) != 0 {
			t.Fatalf("left: %q", left)
		}
	}
	if took.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d acquired, %d refused: the test does not bite", took.Load(), refused.Load())
	}
}

// E8: closing when the server does not answer takes no longer than three seconds,
// and says what is left; even if a watch does not stand yet.
func TestE8CloseBlackHole(t *testing.T) {
	t.Parallel()
	for name, watched := range map[string]bool{"Watching": true, "Beginning": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.Etcd(t)
			proxy := testenv.Proxy(t, server.Addr())
			direct := dial(t, server.Endpoint())
			if !watched {
				proxy.HoldGRPC(deWatchPath, math.MaxInt)
			}
			c := deNew(t, deURL(proxy))
			g := deAcquire(t, c, "k")
			foreign := deAcquire(t, deNew(t, server.Endpoint()), "foreign") // which needs a watch
			own, other := deAwait(t, c, direct, "k"), deAwait(t, c, direct, "foreign")
			watches := 1 // that of the other holder for its own key
			if watched {
				watches = 3
			}
			testenv.Eventually(t, patience, "it watches", func() bool {
				return proxy.GRPCCalls()[deWatchPath] > 0 && deWatchers(t, server.Endpoint()) == watches
			})
			proxy.BlackHole(true)
			deWant(t, deClose(t, c), dlock.ErrUnknownOutcome)
			deWant(t, (<-own).err, dlock.ErrClosed)
			deWant(t, (<-other).err, dlock.ErrClosed)
			deWant(t, context.Cause(g.Context()), dlock.ErrClosed)
			if len(deLine(t, direct, "k")) != 2 || len(deLine(t, direct, "foreign")) != 2 {
				t.Error("the release came through: the fault did not happen")
			}
			deUnlock(t, foreign)
		})
	}
}
