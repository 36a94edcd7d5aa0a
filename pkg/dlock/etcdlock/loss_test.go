package etcdlock_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/stats"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A drop takes locks away from their holder.
type drop struct {
	name string
	do   func(t *testing.T, rig *lossRig, keys []string)
}

var drops = []drop{
	{"revoke", func(t *testing.T, rig *lossRig, keys []string) {
		leases := map[clientv3.LeaseID]bool{}
		for _, key := range keys {
			leases[clientv3.LeaseID(storedClaims(t, rig.direct, key)[0].Lease)] = true
		}
		for id := range leases {
			if _, err := rig.direct.Revoke(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"evict", func(t *testing.T, rig *lossRig, keys []string) {
		for _, key := range keys {
			if err := rig.admin.Evict(t.Context(), key, storedToken(t, rig.direct, key)); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"delete", func(t *testing.T, rig *lossRig, keys []string) {
		for _, key := range keys {
			if _, err := rig.direct.Delete(t.Context(), string(storedClaims(t, rig.direct, key)[0].Key)); err != nil {
				t.Fatal(err)
			}
		}
	}},
}

// A lossRig is a holder, and an operator who takes its locks away.
type lossRig struct {
	holder  *dlock.Client
	admin   *dlock.Admin
	direct  *clientv3.Client
	watcher *deletionWatcher // sees when the server has dropped a key
}

// round takes n locks, drops them, and returns how long after each drop its holder was notified.
func (rig *lossRig) round(t *testing.T, d drop, tag string, n int, opts ...dlock.LockOption) (took []time.Duration) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	keys, owns, told := make([]string, n), make([]*mvccpb.KeyValue, n), make([]time.Time, n)
	for i := range n {
		keys[i] = fmt.Sprintf("%s-%d", tag, i)
		g := acquire(t, rig.holder, keys[i], opts...)
		owns[i] = storedClaims(t, rig.direct, keys[i])[0]
		wg.Add(1)
		context.AfterFunc(g.Context(), func() {
			defer wg.Done()
			mu.Lock()
			defer mu.Unlock()
			told[i] = time.Now()
		})
	}
	d.do(t, rig, keys)
	all := make(chan struct{})
	go func() {
		wg.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-time.After(lossTTL / 4):
		t.Fatal("not every holder was told")
	}
	for i, own := range owns {
		took = append(took, max(told[i].Sub(rig.watcher.when(t, own)), 0))
	}
	return took
}

// lossTTL is long, so that neither a renewal nor the end of a lease reports a loss.
const lossTTL = 2 * time.Minute

// An operator revokes a lease, evicts a holder or deletes its key: each holder is notified at once,
// also of locks that are not renewed.
func TestLossIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	rounds, each := testenv.UnderStress(2, 50), testenv.UnderStress(40, 200)
	for _, d := range drops {
		for name, opts := range map[string][]dlock.LockOption{"renewed": nil, "not renewed": {dlock.WithoutRenewal()}} {
			t.Run(d.name+" "+name, func(t *testing.T) {
				admin, err := clientAt(t, server.Endpoint(), dlock.Config{}).Admin()
				if err != nil {
					t.Fatal(err)
				}
				rig := &lossRig{
					holder: clientAt(t, server.Endpoint(), dlock.Config{DefaultTTL: lossTTL}),
					admin:  admin, direct: direct, watcher: watchDeletions(t, direct),
				}
				var took []time.Duration
				for i := range rounds {
					took = append(took, rig.round(t, d, fmt.Sprintf("%s-%s-%d", d.name, name, i), each, opts...)...)
				}
				slices.Sort(took)
				t.Logf("%d of %d told, p50 %v, p99 %v, the last after %v", len(took), rounds*each,
					stats.Percentile(took, 50), stats.Percentile(took, 99), took[len(took)-1])
				if p99 := stats.Percentile(took, 99); testenv.UnderStress(0, 1) == 1 && p99 > 50*time.Millisecond {
					t.Errorf("p99 is %v", p99)
				}
			})
		}
	}
}

// The link of a holder is down when its lock is taken away: the holder is notified when the link is
// back, also for a lock that is not renewed and although the history was compacted.
func TestLossWhileNotWatching(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	c := clientAt(t, urlOf(proxy), dlock.Config{DefaultTTL: lossTTL})
	var guards []*dlock.Guard
	for i := range 6 {
		guards = append(guards, acquire(t, c, fmt.Sprintf("k%d", i), dlock.WithoutRenewal()))
	}
	watched := func() int { return countWatchers(t, server.Endpoint()) }
	testenv.Eventually(t, patience, "the keys are watched", func() bool { return watched() == len(guards) })
	for round := range 2 {
		proxy.Refuse(true)
		proxy.Cut()
		testenv.Eventually(t, patience, "the watches are cut", func() bool { return watched() == 0 })
		lost := guards[round]
		resp, err := direct.Delete(t.Context(), string(storedClaims(t, direct, lost.Key())[0].Key))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := direct.Compact(t.Context(), resp.Header.Revision); err != nil {
			t.Fatal(err)
		}
		loss := watchLoss(lost)
		proxy.Heal()
		loss.when(t)
		testenv.Eventually(t, patience, "the others are watched", func() bool { return watched() >= len(guards)-round-1 })
	}
	for _, g := range guards[2:] {
		alive(t, g)
		unlock(t, g)
	}
}

// A release by this driver is not a loss, and the watch of a key ends some time after its last
// holder. Keys that are held repeatedly do not get a new watch each time.
func TestWatchesOfOwnKeys(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	d := openDriver(t, dial(t, urlOf(proxy)))
	metronome, began := testenv.StartMetronome(t), time.Now()
	watched := func() int { return countWatchers(t, server.Endpoint()) }
	for i := range 5 {
		ref := refOf("k", i)
		if st := submit(t, d, ref); st.Phase != driver.Held {
			t.Fatal(st)
		}
		testenv.Eventually(t, patience, "the key is watched", func() bool { return watched() == 1 })
		if st, err := d.Release(t.Context(), ref); err != nil || st.Phase != driver.Held {
			t.Fatal(st, err)
		}
	}
	testenv.Eventually(t, patience, "nothing is watched", func() bool { return watched() == 0 })
	select {
	case ev := <-d.Events():
		t.Errorf("told %v of a claim that was released", ev.State)
	default:
	}
	// A stream that does not respond within two seconds is replaced, which a stall excuses once.
	calls := proxy.GRPCCalls()[watchPath]
	replaced := calls == 2 && metronome.Longest(began) > testenv.UnderStress(time.Second, time.Hour)
	if calls != 1 && !replaced {
		t.Errorf("%d streams for the watches", calls)
	}
}

// The member that serves the watches stops answering while its connections stay open: the watches
// move to another member, and a deletion meanwhile is reported before the lease ends.
func TestLossBehindSilentMember(t *testing.T) {
	t.Parallel()
	cluster := testenv.EtcdCluster(t)
	c := locksOn(t, dial(t, cluster.Endpoints()...), dlock.Config{DefaultTTL: lossTTL})
	g := acquire(t, c, "k", dlock.WithoutRenewal())
	var silent, other *servers.Etcd
	testenv.Eventually(t, patience, "the key is watched", func() bool {
		for i, node := range cluster.Nodes() {
			if countWatchers(t, node.Endpoint()) == 1 {
				silent, other = node, cluster.Nodes()[(i+1)%3]
			}
		}
		return silent != nil
	})
	direct := dial(t, other.Endpoint())
	own := string(storedClaims(t, direct, "k")[0].Key)
	loss := watchLoss(g)
	if err := silent.Pause(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Resume() }()
	testenv.Eventually(t, patience, "the others delete the key", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := direct.Delete(ctx, own)
		return err == nil
	})
	select {
	case <-loss.at:
	case <-time.After(lossTTL / 3):
		t.Fatal("the loss is not told")
	}
}

// A call finds that the lease of other locks is gone: they are lost at that moment, although
// nothing watches their keys.
func TestDeadLeaseIsReportedByAnyCall(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	proxy.HoldGRPC(watchPath, math.MaxInt)
	c := clientAt(t, urlOf(proxy), dlock.Config{DefaultTTL: lossTTL})
	var losses []loss
	for i := range 5 {
		losses = append(losses, watchLoss(acquire(t, c, fmt.Sprintf("k%d", i))))
	}
	if _, err := direct.Revoke(t.Context(), clientv3.LeaseID(storedClaims(t, direct, "k0")[0].Lease)); err != nil {
		t.Fatal(err)
	}
	next := acquire(t, c, "next")
	for _, loss := range losses {
		loss.when(t)
	}
	alive(t, next)
	unlock(t, next)
}
