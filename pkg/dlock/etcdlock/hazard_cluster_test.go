package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
)

// Goroutines of one Client share a lease, but never hold a lock together.
func TestOneLeaseIsNotOneHolder(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), locksAt(t, server.Endpoint())
	first := acquire(t, c, "k")
	second := startWait(t, c, direct, "k")
	if claims := storedClaims(t, direct, "k"); len(claims) != 2 || claims[0].Lease != claims[1].Lease {
		t.Fatalf("the claims do not share a lease: %v", claims)
	}
	stillWaits(t, second)
	unlock(t, first)
	unlock(t, granted(t, second).guard)
	rounds := testenv.UnderStress(150, 1000)
	var section section
	var last atomic.Int64
	var wg sync.WaitGroup
	// A handoff that is found only by a renewal takes half a second on average.
	each := testenv.UnderStress(400*time.Millisecond, 100*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(2*rounds)*each)
	defer cancel()
	for range 2 {
		wg.Go(func() {
			for range rounds {
				g, err := c.Acquire(ctx, "k")
				if err != nil {
					t.Error(err)
					return
				}
				section.enter()
				if before := last.Swap(g.Token()); before >= g.Token() {
					t.Errorf("token %d after %d", g.Token(), before)
				}
				<-time.After(100 * time.Microsecond)
				section.leave()
				began := time.Now()
				err = g.Unlock(t.Context())
				if err != nil && !hazardtest.GaveUp(t, err, began) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	section.judge(t, 2*rounds)
}

// A claim was stored, and its caller gave up before it learned of that. The claim is gone when the
// network recovers, and not only when its lease of a minute ends.
func TestAbandonedClaimIsRemoved(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	direct := dial(t, server.Endpoint())
	c, other := locksOn(t, dial(t, urlOf(proxy)), dlock.Config{DefaultTTL: time.Minute}), locksAt(t, server.Endpoint())
	for i := range testenv.UnderStress(8, 200) {
		key := fmt.Sprint("k", i)
		unlock(t, acquire(t, c, "warm")) // it has a connection and a lease
		proxy.BlackHoleDown(true)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		errs := make(chan error, 1)
		go func() { _, err := c.Acquire(ctx, key); errs <- err }()
		testenv.Eventually(t, patience, "the claim is stored", func() bool { return len(storedClaims(t, direct, key)) == 1 })
		proxy.BlackHole(true) // cleanup does not come through either
		cancel()
		wantError(t, <-errs, context.Canceled, dlock.ErrUnknownOutcome)
		if len(storedClaims(t, direct, key)) != 1 {
			t.Fatal("there is no ghost: the fault did not happen")
		}
		if i%2 == 0 {
			proxy.Cut()
		}
		proxy.Heal()
		testenv.Eventually(t, time.Second+slack, "the ghost is gone", func() bool { return len(storedClaims(t, direct, key)) == 0 })
		unlock(t, tryAcquire(t, other, key))
	}
}

// A claim whose answers are lost is one claim, however often it is sent.
func TestRepeatedClaimIsOneClaim(t *testing.T) {
	t.Parallel()
	for range testenv.UnderStress(1, 40) {
		server := testenv.Etcd(t)
		proxy := testenv.Proxy(t, server.Addr())
		direct, c := dial(t, server.Endpoint()), locksAt(t, urlOf(proxy))
		for n := range testenv.UnderStress(3, 5) {
			unlock(t, acquire(t, c, "warm"))
			sent, written := proxy.GRPCCalls()[txnPath], revision(t, direct)
			proxy.DropGRPC(txnPath, n+1)
			g := acquire(t, c, "k")
			sent = proxy.GRPCCalls()[txnPath] - sent
			if sent < n+2 {
				t.Fatalf("%d calls, so not all of %d replies were lost", sent, n+1)
			}
			written = revision(t, direct) - written
			if written != 1 {
				t.Errorf("it was written %d times", written)
			}
			claims := storedClaims(t, direct, "k")
			if len(claims) != 1 || claims[0].CreateRevision != g.Token() {
				t.Fatalf("token %d, stored: %v", g.Token(), claims)
			}
			released(t, direct, g)
			if left := leftovers(t, direct); len(left) != 0 {
				t.Fatalf("left: %q", left)
			}
		}
	}
}

// A waiter whose lease ends in the queue is queued again with its next heartbeat, and does not get
// the lock meanwhile.
func TestLeaseEndsInTheQueue(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	holder, waiter := locksAt(t, server.Endpoint()), locksAt(t, server.Endpoint())
	for i := range testenv.UnderStress(2, 50) {
		key := fmt.Sprint("k", i)
		g := acquire(t, holder, key)
		ch := startWait(t, waiter, direct, key, dlock.WithTTL(testenv.UnderStress(6*time.Second, 1500*time.Millisecond)))
		was := storedClaims(t, direct, key)[1]
		_, err := direct.Revoke(t.Context(), clientv3.LeaseID(was.Lease))
		check(t, err)
		if len(storedClaims(t, direct, key)) != 1 {
			t.Fatal("the waiter did not lose its place")
		}
		testenv.Eventually(t, time.Second+slack, "it queues again", func() bool {
			stillWaits(t, ch)
			claims := storedClaims(t, direct, key)
			return len(claims) == 2 && claims[1].Lease != was.Lease
		})
		stillWaits(t, ch)
		alive(t, g)
		unlock(t, g)
		next := granted(t, ch).guard
		if claims := storedClaims(t, direct, key); len(claims) != 1 || claims[0].CreateRevision != next.Token() {
			t.Errorf("granted without a key: token %d, stored: %v", next.Token(), claims)
		}
		unlock(t, next)
	}
}

// A waiter that lost its key is reported gone when its turn comes, and not as the first, although
// nothing has renewed it.
func TestNeverFirstWithoutAKey(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	a, b := openDriver(t, direct), openDriver(t, dial(t, server.Endpoint()))
	n := testenv.UnderStress(10, 200)
	for i := range n {
		key := fmt.Sprint("k", i)
		if st := submit(t, a, refOf(key, i)); st.Phase != driver.Held {
			t.Fatal(st)
		}
		if st := submit(t, b, refOf(key, n+i)); st.Phase != driver.Queued {
			t.Fatal(st)
		}
	}
	// The watches of the waiters, and those of the holders for their own keys.
	testenv.Eventually(t, patience, "the watches are established", func() bool { return countWatchers(t, server.Endpoint()) == 2*n })
	_, err := direct.Revoke(t.Context(), clientv3.LeaseID(storedClaims(t, direct, "k0")[1].Lease)) // of all that wait
	check(t, err)
	if left := leftovers(t, direct); len(left) != n {
		t.Fatalf("%d keys are left, not %d", len(left), n)
	}
	for i := range n {
		ref := refOf(fmt.Sprint("k", i), i)
		if st, err := a.Release(t.Context(), ref); err != nil || st.Phase != driver.Held {
			t.Fatal(st, err)
		}
		if ev := nextEvent(t, b); ev.Key != ref.Key || ev.State.Phase != driver.Gone {
			t.Fatalf("told %v of a claim on %q without a key", ev.State.Phase, ev.Key)
		}
	}
}

// startBreaking keeps compacting the history to its head, and cuts connections from time to time,
// until stop is called. It counts both, and records its writes.
func startBreaking(t *testing.T, direct *clientv3.Client, proxy *faultproxy.Proxy, r *handOvers) (stop func()) {
	t.Helper()
	done, over := make(chan struct{}), make(chan struct{})
	compact := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		resp, err := direct.Put(ctx, "tick", "")
		if err == nil {
			_, err = direct.Compact(ctx, resp.Header.Revision)
		}
		return err
	}
	go func() {
		defer close(over)
		for n := 1; ; n++ {
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
			}
			err := r.stall.writes.Record(compact)
			if err == nil {
				r.compactions.Add(1)
			}
			if n%5 == 0 {
				proxy.Cut()
				r.cuts.Add(1)
			}
		}
	}()
	return func() {
		close(done)
		<-over
	}
}

// endContender counts the watches that end because their history was compacted, until ctx ends.
func endContender(ctx context.Context, client *clientv3.Client, n *atomic.Int64) {
	for ctx.Err() == nil {
		for resp := range client.Watch(ctx, "control") {
			if resp.CompactRevision != 0 {
				n.Add(1)
			}
		}
	}
}

// handOvers are clients that hold a lock in turn while connections break and watches end.
type handOvers struct {
	epoch   time.Time
	section section
	stall   sharedStall
	// losing makes the next release lose its reply and its connection: a cut by the clock meets few of them.
	losing                                        atomic.Bool
	worst, freed, compactions, cuts, ended, again atomic.Int64
}

// loseRelease is a rule for a proxy.
func (r *handOvers) loseRelease(path, _ string) (drop bool, until <-chan struct{}) {
	return path == deletePath && r.losing.CompareAndSwap(true, false), nil
}

// contend acquires and releases the lock until ctx ends; what it waits for then has until patient ends.
func (r *handOvers) contend(ctx, patient context.Context, t *testing.T, c *dlock.Client, first int) {
	t.Helper()
	for n := first; ctx.Err() == nil; n++ {
		g, err := c.Acquire(patient, "k")
		if err != nil {
			t.Error(err)
			return
		}
		if since := r.freed.Load(); since > 0 {
			r.worst.Store(max(r.worst.Load(), int64(time.Since(r.epoch))-since)) // the lock guards it
		}
		r.section.enter()
		if n%8 == 0 { // a watch for it is cut and compacted away
			<-time.After(700 * time.Millisecond)
		}
		r.section.leave()
		loses := n%8 == 4
		if loses {
			r.losing.Store(true)
		}
		began := time.Now()
		r.freed.Store(int64(began.Sub(r.epoch))) // not later: the next one may have the lock before Unlock returns
		err = g.Unlock(t.Context())
		switch {
		case err == nil && loses && !r.losing.Load():
			r.again.Add(1)
		case err != nil && (!isUnanswered(err) || !r.stall.excuses(t, began, giveUpAfter)):
			t.Errorf("unlock after %v: %v", time.Since(began), err)
		}
	}
}

// enough reports whether all faults took place, and locks were handed over all the same.
func (r *handOvers) enough(least int) bool {
	return r.compactions.Load() >= 5 && r.cuts.Load() >= 2 && r.ended.Load() > 0 && r.again.Load() >= 2 && r.section.count() >= least
}

func (r *handOvers) String() string {
	return fmt.Sprintf("%d hand-overs, %d compactions, %d cuts, %d watches ended, %d unlocks confirmed after a lost reply; worst %v",
		r.section.count(), r.compactions.Load(), r.cuts.Load(), r.ended.Load(), r.again.Load(), time.Duration(r.worst.Load()))
}

// While the history is compacted under the watches and connections break, every handoff takes
// place, every contender is served, and every unlock is confirmed.
func TestHandOversDuringCompactions(t *testing.T) {
	t.Parallel()
	const waiters = 8
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	direct := dial(t, server.Endpoint())
	span := testenv.UnderStress(3*time.Second, 300*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	patient, end := context.WithTimeout(t.Context(), span+2*patience)
	defer end()
	r := &handOvers{epoch: time.Now(), stall: sharedStall{writes: &etcdlock.Writes{}}}
	proxy.InterceptGRPC(r.loseRelease)
	var wg sync.WaitGroup
	observer := dial(t, urlOf(proxy))
	wg.Go(func() { endContender(ctx, observer, &r.ended) })
	stop := startBreaking(t, direct, proxy, r)
	for i := range waiters {
		c := locksOn(t, dial(t, urlOf(proxy)), dlock.Config{DefaultTTL: time.Minute})
		wg.Go(func() { r.contend(ctx, patient, t, c, i) })
	}
	for !t.Failed() && (time.Since(r.epoch) < span || !r.enough(2*waiters) && patient.Err() == nil) {
		<-time.After(10 * time.Millisecond)
	}
	cancel()
	wg.Wait()
	stop()
	_, err := direct.Delete(t.Context(), "tick")
	check(t, err)
	testenv.Eventually(t, time.Second+slack, "no contender is left", func() bool { return len(leftovers(t, direct)) == 0 })
	r.section.judge(t, 2*waiters)
	t.Log(r)
	if !t.Failed() && !r.enough(2*waiters) {
		t.Error("the test does not bite")
	}
	if w := time.Duration(r.worst.Load()); w > testenv.UnderStress(beforeLease, 2*time.Second) {
		t.Errorf("a free lock was taken after %v", w)
	}
}

// A watch that cannot continue, because the events it missed were compacted, is started again.
// Nothing renews the claims here, so only the watch can deliver the grant.
func TestCompactedWatchBeginsAnew(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	direct, shaky := dial(t, server.Endpoint()), dial(t, urlOf(proxy))
	a, b := openDriver(t, direct), openDriver(t, shaky)
	n := testenv.UnderStress(5, 100)
	for i := range n {
		key := fmt.Sprint("k", i)
		submit(t, a, refOf(key, i))
		if st := submit(t, b, refOf(key, n+i)); st.Phase != driver.Queued {
			t.Fatal(st)
		}
	}
	control := shaky.Watch(t.Context(), "control", clientv3.WithCreatedNotify())
	if resp := <-control; !resp.Created {
		t.Fatal("the control watch is not established")
	}
	// The watches of the waiters, those of the holders for their own keys, and the control.
	testenv.Eventually(t, patience, "the watches are established", func() bool { return countWatchers(t, server.Endpoint()) == 2*n+1 })
	proxy.BlackHole(true)
	proxy.Cut()
	testenv.Eventually(t, patience, "the watches are cut", func() bool { return countWatchers(t, server.Endpoint()) == n })
	for i := range n {
		_, err := a.Release(t.Context(), refOf(fmt.Sprint("k", i), i))
		check(t, err)
	}
	resp, err := direct.Put(t.Context(), "tick", "")
	check(t, err)
	_, err = direct.Compact(t.Context(), resp.Header.Revision)
	check(t, err)
	proxy.Heal()
	allGranted(t, b, n)
	if resp := <-control; resp.CompactRevision == 0 {
		t.Errorf("the control watch goes on, so nothing was compacted away: %v", resp.Err())
	}
}

// When a holder dies together with the leader, its lease starts again with the next leader; it ends
// after 2T and an election.
func TestLeaderAndHolderDie(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	for range testenv.UnderStress(1, 30) {
		cluster := testenv.EtcdCluster(t)
		direct := dial(t, cluster.Endpoints()...)
		holder := startClaimant(t, 1, ttl, cluster.Endpoints()...)
		ch := startWait(t, locksAt(t, cluster.Endpoints()...), direct, "k", dlock.WithTTL(ttl))
		if claims := storedClaims(t, direct, "k"); !strings.Contains(string(claims[0].Value), fmt.Sprintf(`"pid":%d,`, holder.Pid)) {
			t.Fatalf("the child does not hold: %v", claims)
		}
		leader, err := cluster.WaitLeader(t.Context())
		check(t, err)
		stillWaits(t, ch)
		check(t, leader.Kill())
		check(t, holder.Kill())
		began := time.Now()
		got := granted(t, ch)
		next, err := cluster.WaitLeader(t.Context())
		check(t, err)
		if next == leader {
			t.Fatal("the leader did not change")
		}
		took := got.at.Sub(began)
		t.Logf("after %v", took)
		if took > 2*ttl+testenv.UnderStress(beforeLease, 3*time.Second) {
			t.Errorf("the next waiter had to wait %v", took)
		}
		unlock(t, got.guard)
	}
}

// A leader that is paused, deposed and resumed revokes no live lease. In its first moments it does
// revoke a lease that has ended meanwhile by its own clock, so each round begins with a renewal.
func TestStaleLeaderRevokesNothing(t *testing.T) {
	t.Parallel()
	cluster := testenv.EtcdCluster(t)
	try := 0
	hazardtest.UntilValid(t, func(t *testing.T) bool {
		try++
		return leadersPause(t, cluster, fmt.Sprint("k", try))
	})
}

// leadersPause is a round of TestStaleLeaderRevokesNothing, with locks of its own. It is void if the machine stalled for so long
// that a leader was paused for most of a lease: then the leases end, and it revokes them rightly.
func leadersPause(t *testing.T, cluster *servers.EtcdCluster, tag string) (valid bool) {
	t.Helper()
	const ttl, pause, spare = 16 * time.Second, 9600 * time.Millisecond, 3 * time.Second // half of what the pause leaves
	metronome := testenv.StartMetronome(t)
	c := locksAt(t, cluster.Endpoints()...)
	leader, err := cluster.WaitLeader(t.Context())
	check(t, err)
	holds := []*hazardtest.Hold{hazardtest.Keep(t, acquire(t, c, tag+"a", dlock.WithTTL(ttl)), spare), hazardtest.Keep(t, acquire(t, c, tag+"b", dlock.WithTTL(ttl)), spare)}
	for range testenv.UnderStress(2, 100) {
		began := time.Now()
		check(t, leader.Pause())
		over := time.After(pause)
		next, err := cluster.WaitLeader(t.Context())
		check(t, err)
		if next == leader {
			t.Fatal("the leader was not deposed")
		}
		<-over
		check(t, leader.Resume())
		if time.Since(began) > pause+spare && metronome.Lost(began) > testenv.UnderStress(spare, time.Hour) {
			return false
		}
		_, err = dial(t, leader.Endpoint()).Get(t.Context(), "k") // it knows that it follows
		check(t, err)
		leader, err = cluster.WaitLeader(t.Context())
		check(t, err)
		if !eachRenewed(t, holds) {
			return false
		}
	}
	for _, h := range holds {
		unlock(t, h.Guard) // which says so if the server had dropped it
	}
	return true
}

// A keep-alive proves a lease and not a key. If another party deletes a key, the next renewal
// notices, while other claims on the lease stay alive.
func TestDeletedKeyIsALoss(t *testing.T) {
	t.Parallel()
	ttl := testenv.UnderStress(time.Minute, 3*time.Second) // and its end is no bound
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), locksAt(t, server.Endpoint())
	for i := range testenv.UnderStress(1, 50) {
		key := fmt.Sprint("k", i)
		g, other := acquire(t, c, key, dlock.WithTTL(ttl)), acquire(t, c, "other", dlock.WithTTL(ttl))
		own := storedClaims(t, direct, key)[0]
		began := time.Now()
		resp, err := direct.Delete(t.Context(), string(own.Key))
		if err != nil || resp.Deleted != 1 {
			t.Fatal(resp, err)
		}
		wantLost(t, g, began, ttl/3+slack)
		left, err := direct.TimeToLive(t.Context(), clientv3.LeaseID(own.Lease))
		if err != nil || left.TTL <= 0 {
			t.Fatalf("the lease is over as well: %v, %v", left, err)
		}
		alive(t, other)
		unlock(t, other)
		wantError(t, g.Unlock(t.Context()), dlock.ErrOwnershipLost)
	}
}

// All members are down for half a TTL, and nothing is lost.
func TestAllMembersDownIsNoLoss(t *testing.T) {
	t.Parallel()
	const ttl, clients = 36 * time.Second, 8 // leaves half of it to restart, and four seconds to connect again
	for range testenv.UnderStress(1, 20) {
		server := testenv.Etcd(t)
		proxy := testenv.Proxy(t, server.Addr())
		var guards []*dlock.Guard
		for i := range clients {
			guards = append(guards, acquire(t, locksAt(t, urlOf(proxy)), fmt.Sprint("k", i), dlock.WithTTL(ttl)))
		}
		up := time.After(ttl / 2)
		proxy.Refuse(true) // so that it is down for as long as we want
		check(t, server.Kill())
		check(t, server.Restart(t.Context(), true))
		proxy.Cut()
		for _, g := range guards {
			alive(t, g)
		}
		<-up
		proxy.Heal()
		awaitRenewal(t, guards...)
		for _, g := range guards {
			unlock(t, g)
		}
	}
}

// After an outage of more than a TTL, all held locks are lost, and locking works again within two
// seconds.
func TestLeaseIsReplacedAfterAnOutage(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	server := testenv.Etcd(t)
	hole, refusing := testenv.Proxy(t, server.Addr()), testenv.Proxy(t, server.Addr())
	direct := dial(t, server.Endpoint())
	proxies := []*faultproxy.Proxy{hole, refusing}
	clients := []*dlock.Client{locksAt(t, urlOf(hole)), locksAt(t, urlOf(refusing))}
	metronome := testenv.StartMetronome(t)
	for range testenv.UnderStress(1, 20) {
		var guards []*dlock.Guard
		for i, c := range clients {
			guards = append(guards, acquire(t, c, fmt.Sprint("k", i), dlock.WithTTL(ttl)))
		}
		began := time.Now()
		hole.BlackHole(true)
		refusing.Refuse(true)
		refusing.Cut()
		leases := []int64{storedClaims(t, direct, "k0")[0].Lease, storedClaims(t, direct, "k1")[0].Lease}
		for _, g := range guards {
			wantLostWithin(t, g, began, ttl, metronome)
		}
		for _, lease := range leases {
			testenv.Eventually(t, patience, "the server drops the lease", func() bool {
				left, err := direct.TimeToLive(t.Context(), clientv3.LeaseID(lease))
				return err == nil && left.TTL < 0
			})
		}
		for i, c := range clients {
			key := fmt.Sprint("k", i)
			proxies[i].Heal()
			healed := time.Now()
			next := acquire(t, c, key, dlock.WithTTL(ttl))
			if took := time.Since(healed); took > 2*time.Second+slack {
				t.Errorf("%s: locking works again after %v", key, took)
			}
			if now := storedClaims(t, direct, key)[0].Lease; now == leases[i] {
				t.Errorf("%s: the lease is the same", key)
			}
			unlock(t, next)
		}
	}
}

// A revoked lease takes only its own claims with it, and is replaced.
func TestRevokedLeaseSparesOthers(t *testing.T) {
	t.Parallel()
	const ttl = 12 * time.Second
	told := testenv.UnderStress(ttl*3/4, time.Second+slack) // and not by the end of the lease
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), locksAt(t, server.Endpoint())
	lost := []*dlock.Guard{acquire(t, c, "a", dlock.WithTTL(ttl)), acquire(t, c, "b", dlock.WithTTL(ttl))}
	kept := []*dlock.Guard{
		acquire(t, c, "longer", dlock.WithTTL(2*ttl)),
		acquire(t, c, "alone", dlock.WithTTL(4*ttl), dlock.WithoutRenewal()),
		acquire(t, locksAt(t, server.Endpoint()), "elsewhere", dlock.WithTTL(ttl)),
	}
	lease := storedClaims(t, direct, "a")[0].Lease
	began := time.Now()
	_, err := direct.Revoke(t.Context(), clientv3.LeaseID(lease))
	check(t, err)
	for _, g := range lost {
		wantLost(t, g, began, told)
		wantError(t, g.Unlock(t.Context()), dlock.ErrOwnershipLost)
	}
	again := tryAcquire(t, c, "a", dlock.WithTTL(ttl))
	if now := storedClaims(t, direct, "a")[0].Lease; now == lease {
		t.Error("the lease is the same")
	}
	awaitRenewal(t, again)
	unlock(t, again)
	for _, g := range kept {
		alive(t, g)
		unlock(t, g)
	}
}

// awkwardNames returns names that an encoding could confuse: parts of each other, escapes of each
// other, and names that look like the keys of claims and tombstones.
func awkwardNames(n int) []string {
	id := strings.Repeat("0123456789abcdef", 2)
	names := []string{
		"%", "%%", "%2", "%2F", "%2f", "%25", "%252F", "%tombstone", "%tombstone/" + id, "/", "//", ".", "..", "../a", " ", "a ", "a", "A",
		"a-", "a-dlock0", "a.", "a0", "a\u0308", "é", "e\u0301", "日本", "\U0001f512", "*", "?", "{a}", "'", `"`, `\`, "$(a)", "ß",
	}
	parts := []string{"", "a", "b", "%2F", "%25", "beef", "694d8f3a", "694d8f3a-dlock0", id, "-"}
	for _, x := range parts {
		for _, y := range parts {
			names = append(names, "a/"+x+"/"+y, "a%2F"+x+"%2F"+y, "a/"+x+y)
		}
	}
	seen := map[string]bool{}
	var distinct []string
	for _, name := range names {
		if !seen[name] && len(distinct) < n {
			seen[name] = true
			distinct = append(distinct, name)
		}
	}
	return distinct
}

// All names are separate locks: for this library, for other programs' mutexes, and in lists.
func TestNamesDoNotCollide(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct, c := dial(t, server.Endpoint()), locksAt(t, server.Endpoint())
	session, err := concurrency.NewSession(dial(t, server.Endpoint()))
	check(t, err)
	names := awkwardNames(300)
	if len(names) < 250 {
		t.Fatalf("only %d names", len(names))
	}
	guards := map[string]*dlock.Guard{}
	for _, name := range names {
		guards[name] = tryAcquire(t, c, name)
		if claims := storedClaims(t, direct, name); len(claims) != 1 {
			t.Fatalf("%d keys below the name of %q", len(claims), name)
		}
	}
	admin, err := c.Admin()
	check(t, err)
	listed, cursor := map[string]bool{}, ""
	for more := true; more; more = cursor != "" {
		var page []string
		page, cursor, err = admin.ListPage(t.Context(), "", cursor, 40)
		check(t, err)
		for _, name := range page {
			listed[name] = true
		}
	}
	for _, name := range names { // all others are held
		if !listed[name] {
			t.Errorf("%q is not listed", name)
		}
		m := concurrency.NewMutex(session, etcdlock.Name(name))
		if err := m.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
			t.Errorf("%q is held, and a Mutex gets %v", name, err)
		}
		unlock(t, guards[name])
		if err := m.TryLock(t.Context()); err != nil {
			t.Errorf("%q is free, and a Mutex gets %v", name, err)
		}
		check(t, m.Unlock(t.Context()))
		guards[name] = tryAcquire(t, c, name)
	}
	if len(listed) != len(names) {
		t.Errorf("%d names are listed, not %d", len(listed), len(names))
	}
}

// A client that knows only a member that is cut off from the others gets an error that says so.
func TestIsolatedMemberIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	cluster := testenv.EtcdCluster(t)
	nodes := cluster.Nodes()
	c, metronome := locksAt(t, nodes[0].Endpoint()), testenv.StartMetronome(t)
	unlock(t, acquire(t, c, "warm", dlock.WithTTL(time.Hour))) // makes a lease that outlasts the fault
	for range testenv.UnderStress(1, 10) {
		g := acquire(t, c, "held", dlock.WithTTL(ttl))
		busy := acquire(t, c, "busy", dlock.WithTTL(ttl))
		waiter := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), ttl)
		began := time.Now()
		go func() { _, err := c.Acquire(ctx, "busy"); waiter <- err }()
		check(t, nodes[1].Pause())
		check(t, nodes[2].Pause())
		_, err := c.TryAcquire(t.Context(), "new", dlock.WithTTL(ttl))
		if took := time.Since(began); err == nil || took > testenv.UnderStress(ttl+slack, ttl) {
			t.Errorf("a member without a majority says %v after %v", err, took)
		}
		wantLostWithin(t, g, began, ttl, metronome)
		wantLostWithin(t, busy, began, ttl, metronome)
		wantError(t, <-waiter, context.DeadlineExceeded)
		cancel()
		if took := time.Since(began); took > ttl+slack {
			t.Errorf("a waiter returned after %v", took)
		}
		testenv.Eventually(t, patience, "the member knows it", func() bool {
			_, err := c.TryAcquire(t.Context(), "new", dlock.WithTTL(time.Hour))
			return errors.Is(err, dlock.ErrNotReady)
		})
		check(t, nodes[1].Resume())
		check(t, nodes[2].Resume())
		unlock(t, acquire(t, c, "new", dlock.WithTTL(ttl)))
	}
}

// Close takes no longer than three seconds when all members are paused.
func TestCloseWithoutMembers(t *testing.T) {
	t.Parallel()
	for range testenv.UnderStress(1, 20) {
		server := testenv.Etcd(t)
		direct := dial(t, server.Endpoint())
		c := locksAt(t, server.Endpoint())
		held := []*dlock.Guard{acquire(t, c, "k"), acquire(t, c, "fixed", dlock.WithoutRenewal())}
		unlock(t, acquire(t, c, "unused", dlock.WithTTL(time.Hour))) // a lease of its own, that can be revoked
		queued := startWait(t, c, direct, "k")
		check(t, server.Pause())
		submitting := make(chan error, 1)
		go func() { submitting <- c.Lock(context.Background(), "new") }()
		wantError(t, closeInTime(t, c), dlock.ErrUnknownOutcome)
		wantError(t, (<-queued).err, dlock.ErrClosed)
		wantError(t, <-submitting, dlock.ErrClosed)
		for _, g := range held {
			wantError(t, context.Cause(g.Context()), dlock.ErrClosed)
		}
		check(t, server.Resume())
	}
}

// Many locks share few leases, and none of them remains.
func TestLocksShareLeases(t *testing.T) {
	t.Parallel()
	hazardtest.UntilValid(t, locksShareLeases)
}

// locksShareLeases is a round of TestLocksShareLeases. It reports false if the Client may not know of all its leases, because a
// server has two seconds to grant one, or as closeLeaves does.
func locksShareLeases(t *testing.T) bool {
	t.Helper()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	foreign, err := direct.Grant(t.Context(), 3600) // of another program
	check(t, err)
	const workers = 8
	each := testenv.UnderStress(640, 20_000) / workers
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(workers*each)*testenv.UnderStress(150*time.Millisecond, 30*time.Millisecond))
	defer cancel()
	var wg sync.WaitGroup
	var stall sharedStall
	var stalled atomic.Bool
	c := locksAt(t, server.Endpoint())
	for i := range workers {
		wg.Go(func() {
			for n := range each {
				opts := []dlock.LockOption{dlock.WithTTL(time.Hour)}
				if n%20 == 0 {
					opts = append(opts, dlock.WithoutRenewal()) // has a lease of its own
				}
				began := time.Now()
				g, err := c.Acquire(ctx, fmt.Sprint("k", i%4), opts...)
				if stall.excuses(t, began, giveUpAfter) {
					stalled.Store(true)
				}
				began = time.Now()
				if err == nil {
					err = g.Unlock(t.Context())
				}
				if err != nil && !hazardtest.GaveUp(t, err, began) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if made := metric(t, server.Endpoint(), "etcd_debugging_lease_granted_total"); made < workers*each/20 {
		t.Errorf("only %d leases were made: the test does not bite", made)
	}
	if stalled.Load() {
		return false
	}
	testenv.Eventually(t, patience, "one lease is left to the Client, and the other program's", func() bool { return countLeases(t, direct) == 2 })
	return closeLeaves(t, c, direct, time.Now(), foreign.ID)
}

// Close also leaves no lease that is being revoked.
func TestCloseLeavesNoLease(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	direct, client := dial(t, server.Endpoint()), dial(t, urlOf(proxy))
	proxy.Delay(10*time.Millisecond, 0)
	for rounds, void := testenv.UnderStress(3, 100), 0; rounds > 0; {
		c, opened := locksOn(t, client, dlock.Config{DefaultTTL: time.Hour}), time.Now()
		unlock(t, acquire(t, c, "k"))
		unlock(t, acquire(t, c, "fixed", dlock.WithoutRenewal()))
		if closeLeaves(t, c, direct, opened) {
			rounds--
		} else if void++; void > 5 {
			t.Fatal("the machine or the server is too slow")
		}
	}
}

// closeLeaves closes a Client, which must leave only the leases of others. It reports false if it left more because the machine
// or the server was slow: Close has 300 ms to revoke leases, and does not know one of those that were asked for since then if its
// grant took two seconds. They are revoked then.
func closeLeaves(t *testing.T, c *dlock.Client, direct *clientv3.Client, asked time.Time, others ...clientv3.LeaseID) bool {
	t.Helper()
	const limit = 150 * time.Millisecond
	var left []clientv3.LeaseID
	closing := time.Now()
	slowest := etcdlock.SlowestWrite(t, direct, func() {
		check(t, c.Close())
		left = allLeases(t, direct)
	})
	if slices.Equal(left, others) {
		return true
	}
	isSlow := slowest > testenv.UnderStress(limit, time.Hour)
	if !isSlow && !testenv.Stalled(t, closing, limit) && !testenv.Stalled(t, asked, giveUpAfter) {
		t.Fatalf("the leases %v are left, want %v, and no write took longer than %v", left, others, slowest)
	}
	t.Logf("a write took %v, and left are %v", slowest, left)
	for _, id := range left {
		if !slices.Contains(others, id) {
			_, _ = direct.Revoke(t.Context(), id) // which Close may have done meanwhile
		}
	}
	return false
}

func allLeases(t *testing.T, direct *clientv3.Client) (all []clientv3.LeaseID) {
	t.Helper()
	resp, err := direct.Leases(t.Context())
	check(t, err)
	for _, lease := range resp.Leases {
		all = append(all, lease.ID)
	}
	return all
}
