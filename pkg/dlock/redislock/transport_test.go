package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// clusterLocks returns a Client on a cluster, with its own redis client.
func clusterLocks(t *testing.T, o *redis.ClusterOptions, opts ...redislock.Option) *dlock.Client {
	t.Helper()
	// go-redis 9.23 measures a latency while it still sets up the node, which is a data race. So no
	// node is dialed before its setup is complete.
	complete := map[string]chan struct{}{}
	if o.RouteByLatency {
		for _, addr := range o.Addrs {
			complete[addr] = make(chan struct{})
		}
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			<-complete[addr]
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	}
	rdb := redis.NewClusterClient(o)
	if o.RouteByLatency {
		rdb.OnNewNode(func(node *redis.Client) { close(complete[node.Options().Addr]) })
	}
	t.Cleanup(func() { _ = rdb.Close() })
	return locksOn(t, redislock.New(rdb, opts...), dlock.Config{})
}

// keyOn returns a key that a node of a cluster has.
func keyOn(t testing.TB, cl *servers.Cluster, node *servers.Redis, hint string) string {
	t.Helper()
	for i := 0; ; i++ {
		key := hint + strconv.Itoa(i)
		n, err := cl.NodeFor(t.Context(), key)
		check(t, err)
		if n == node {
			return key
		}
	}
}

// tolerateStalls makes the nodes of a cluster continue when one does not answer for a while.
func tolerateStalls(t testing.TB, cl *servers.Cluster) {
	t.Helper()
	setOnNodes(t, cl, "cluster-node-timeout", "60000")
	setOnNodes(t, cl, "cluster-require-full-coverage", "no")
}

// failOverOnRequest makes replicas leave their masters in place until a test asks for a failover, even if a busy machine
// keeps a master from answering for a while. The timeout of the nodes stays short: a replica that was promoted before
// waits for a multiple of it.
func failOverOnRequest(t *testing.T, cl *servers.Cluster) {
	t.Helper()
	setOnNodes(t, cl, "cluster-replica-no-failover", "yes")
	setOnNodes(t, cl, "cluster-require-full-coverage", "no")
}

// setOnNodes changes a setting of all nodes of a cluster.
func setOnNodes(t testing.TB, cl *servers.Cluster, name, value string) {
	t.Helper()
	for _, node := range cl.Nodes() {
		check(t, dialRedis(t, node.Addr()).ConfigSet(t.Context(), name, value).Err())
	}
}

// pairs returns how many times per second some keys can be locked and unlocked, which must not fail. Each caller
// pauses, so that the machine is not the limit.
func pairs(ctx context.Context, t *testing.T, c *dlock.Client, keys []string, long time.Duration) float64 {
	t.Helper()
	var n atomic.Int64
	var wg sync.WaitGroup
	begun := time.Now()
	for _, k := range keys {
		wg.Go(func() {
			for time.Since(begun) < long {
				g, err := c.Acquire(ctx, k, dlock.WithTTL(10*time.Second))
				if err != nil {
					t.Errorf("acquire %s: %v", k, err)
					return
				}
				asked := time.Now()
				err = g.Unlock(ctx)
				switch {
				case err == nil:
					n.Add(1)
				case !hazardtest.GaveUp(t, err, asked):
					t.Errorf("unlock %s: %v after %v", k, err, time.Since(asked))
					return
				}
				elapse(2 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(begun).Seconds()
}

// A stalled master does not affect the locks of the others, whether or not the client honors
// deadlines, and Close does not wait long for it. What is held there is renewed.
func TestStalledMasterCostsOthersNothing(t *testing.T) {
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	for _, honors := range []bool{true, false} {
		t.Run(fmt.Sprintf("honors=%v", honors), func(t *testing.T) {
			o := &redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: honors}
			c, control := clusterLocks(t, o), clusterLocks(t, o)
			nodes := cl.Nodes()
			var bad, good, same []string
			for i := range 8 {
				bad = append(bad, keyOn(t, cl, nodes[0], fmt.Sprintf("bad-%v%d-", honors, i)))
				good = append(good, keyOn(t, cl, nodes[1+i%2], fmt.Sprintf("good-%v%d-", honors, i)))
				same = append(same, keyOn(t, cl, nodes[1+i%2], fmt.Sprintf("same-%v%d-", honors, i)))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pairs(ctx, t, c, slices.Concat(good, bad), 200*time.Millisecond)
			pairs(ctx, t, control, same, 200*time.Millisecond)
			before := pairs(ctx, t, c, good, time.Second)
			ends := map[*dlock.Guard]time.Time{}
			for _, k := range good {
				g := acquire(t, c, "{"+k+"} held", dlock.WithTTL(15*time.Second)) // it is renewed after five
				ends[g] = time.Now().Add(g.Remaining())
			}
			check(t, nodes[0].Pause())
			defer func() { check(t, nodes[0].Resume()) }() // also for the next subtest, if this one fails
			var stuck, measured sync.WaitGroup
			for _, k := range bad {
				for range 8 {
					stuck.Go(func() { _, _ = c.Acquire(ctx, k) })
				}
			}
			elapse(100 * time.Millisecond)
			var during, usual float64 // at the same time, since others use the machine as well
			measured.Go(func() { during = pairs(ctx, t, c, good, 3*time.Second) })
			measured.Go(func() { usual = pairs(ctx, t, control, same, 3*time.Second) })
			measured.Wait()
			least := 0.5
			if os.Getenv("DLOCK_STRESS") == "1" {
				least = 0.9
			}
			t.Logf("%.0f pairs/s before; then %.0f next to callers that are stuck, %.0f of a Client without", before, during, usual)
			if during < least*usual {
				t.Errorf("%.2f of the pairs next to a stalled master, want %.2f", during/usual, least)
			}
			for g, end := range ends {
				testenv.Eventually(t, time.Minute, "a lock at another master is renewed", func() bool {
					return time.Now().Add(g.Remaining()).After(end.Add(time.Second))
				})
				unlock(t, g)
			}
			cancel()
			stuck.Wait()
			at := time.Now()
			_ = c.Close()
			took := time.Since(at)
			t.Logf("Close took %v", took)
			if took > 8*time.Second && !testenv.Stalled(t, at, 8*time.Second) {
				t.Error("Close waits for the master that is stalled")
			}
		})
	}
}

// farMaster returns a cluster of which one master is far away.
func farMaster(t *testing.T) (c *dlock.Client, cl *servers.Cluster, far *faultproxy.Proxy) {
	t.Helper()
	cl = testenv.Cluster(t)
	tolerateStalls(t, cl)
	node := cl.Nodes()[0]
	far = testenv.Proxy(t, node.Addr())
	c = clusterLocks(t, &redis.ClusterOptions{
		Addrs: cl.Addrs(), ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == node.Addr() {
				addr = far.Addr()
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	})
	return c, cl, far
}

// Calls to a far master are not abandoned early because the others are near.
func TestFarMasterAmongNearOnes(t *testing.T) {
	t.Parallel()
	c, cl, proxy := farMaster(t)
	nodes := cl.Nodes()
	far := keyOn(t, cl, nodes[0], "far")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	unlock(t, acquire(t, c, far))
	proxy.Delay(40*time.Millisecond, 40*time.Millisecond)
	near, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i := range 3 {
		k := keyOn(t, cl, nodes[1+i%2], fmt.Sprintf("near%d-", i))
		wg.Go(func() {
			for near.Err() == nil {
				if g, err := c.Acquire(near, k); err == nil {
					_ = g.Unlock(ctx)
				}
				elapse(2 * time.Millisecond) // the machine is not the limit
			}
		})
	}
	const n = 10
	var calls atomic.Int64
	var mu sync.Mutex
	sent := map[string]time.Time{}
	proxy.Intercept(func(cmd []string) faultproxy.Action {
		kind := kindOf(cmd)
		if (kind != acquiring && kind != releasing) || cmd[3] != far {
			return faultproxy.Forward
		}
		mu.Lock()
		defer mu.Unlock()
		call := fmt.Sprint(kind, claimIDs(cmd))
		if first, again := sent[call]; !again || time.Since(first) < 500*time.Millisecond { // not one that a busy machine left without an answer
			calls.Add(1)
		}
		sent[call] = time.Now()
		return faultproxy.Forward
	})
	for range 3 {
		unlock(t, acquire(t, c, far)) // the scripts are known, and connections made
	}
	made := 0
	for range n {
		calls.Store(0)
		began, conns := time.Now(), proxy.Connections()
		g, err := c.Acquire(ctx, far)
		check(t, err)
		elapse(5 * time.Millisecond)
		unlock(t, g)
		got, dialed := calls.Load(), proxy.Connections()-conns
		if (got != 2 || dialed > 0) && testenv.Stalled(t, began, 500*time.Millisecond) {
			continue // the proxy stalled as well, and then met a call and its repetition at once
		}
		made += dialed
		if got != 2 {
			t.Errorf("%d calls for a pair, want 2", got)
		}
	}
	stop()
	wg.Wait()
	if made > 2 {
		t.Errorf("%d new connections for %d pairs", made, n)
	}
}

// A process has one subscription connection to each master, however many slots have waiters.
func TestOneSubscriptionPerMaster(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	o := func() *redis.ClusterOptions {
		return &redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: true}
	}
	a, b := clusterLocks(t, o()), clusterLocks(t, o())
	const n = 200
	var guards []*dlock.Guard
	for i := range n {
		guards = append(guards, acquire(t, a, fmt.Sprint("k", i)))
	}
	granted := make(chan error, n)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	metronome, began := testenv.StartMetronome(t), time.Now()
	for i := range n {
		go func() {
			g, err := b.Acquire(ctx, fmt.Sprint("k", i))
			if err == nil {
				err = tryUnlock(t, g)
			}
			granted <- err
		}()
	}
	testenv.Eventually(t, 30*time.Second, "all wait", func() bool {
		for i := range n {
			if countQueued(t, a, fmt.Sprint("k", i)) != 1 {
				return false
			}
		}
		return true
	})
	for _, node := range cl.Nodes() {
		var since time.Time // when more than one was seen
		testenv.Eventually(t, time.Minute, "one subscribed connection to "+node.Addr(), func() bool {
			n := subscribers(t, node)
			if n <= 1 {
				since = time.Time{}
			} else if since.IsZero() {
				since = time.Now()
			}
			// A connection that has failed is replaced, and the server may see the next one before the end of the last.
			isReplaced := n <= 1 || time.Since(since) < time.Second || metronome.Longest(began) > testenv.UnderStress(oneAttempt, time.Hour)
			if !isReplaced {
				t.Fatalf("%d subscribed connections to %s, want one", n, node.Addr())
			}
			return n == 1
		})
	}
	for _, g := range guards {
		unlock(t, g)
	}
	for range n {
		check(t, <-granted)
	}
}

// subscribers returns how many connections of a server have subscriptions.
func subscribers(t *testing.T, node *servers.Redis) int {
	t.Helper()
	c := node.Client()
	defer c.Close()
	list, err := c.Do(t.Context(), "CLIENT", "LIST").Text()
	check(t, err)
	n := 0
	for line := range strings.Lines(list) {
		if !strings.Contains(line, " sub=0 ") || (strings.Contains(line, " ssub=") && !strings.Contains(line, " ssub=0 ")) || strings.Contains(line, "cmd=ssubscribe") {
			n++
		}
	}
	return n
}

// A cluster client that reads from replicas still subscribes at masters.
func TestReadOnlyClientSubscribesAtTheMaster(t *testing.T) {
	t.Parallel()
	cl := testenv.ClusterWithReplicas(t, 1)
	tolerateStalls(t, cl)
	for name, o := range map[string]*redis.ClusterOptions{
		"ReadOnly":       {ReadOnly: true},
		"RouteByLatency": {RouteByLatency: true},
		"RouteRandomly":  {RouteRandomly: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.Addrs, o.ContextTimeoutEnabled = cl.Addrs(), true
			c := clusterLocks(t, o)
			for i := range 4 {
				key := fmt.Sprint(name, i)
				g := acquire(t, c, key)
				w := startWait(t, c, key)
				for _, node := range cl.Nodes()[3:] {
					if n := subscribers(t, node); n != 0 {
						t.Errorf("%d are subscribed at the replica %s", n, node.Addr())
					}
				}
				unlock(t, g)
				unlock(t, granted(t, w, time.Minute).guard)
			}
		})
	}
}

// Renewals with replicas follow a slot to its new master.
func TestMinReplicasFollowsASlot(t *testing.T) {
	t.Parallel()
	cl := testenv.ClusterWithReplicas(t, 1)
	tolerateStalls(t, cl)
	replicas := redislock.WithMinReplicas(1, 500*time.Millisecond)
	c := locksOn(t, redislock.New(clusterClient(t, cl), replicas), dlock.Config{DefaultTTL: 30 * time.Second, RenewInterval: time.Second})
	const key = "k"
	g := acquire(t, c, key)
	from, err := cl.NodeFor(t.Context(), key)
	check(t, err)
	to := cl.Nodes()[0]
	if to == from {
		to = cl.Nodes()[1]
	}
	slot, err := cl.Slot(t.Context(), key)
	check(t, err)
	check(t, cl.BeginMigration(t.Context(), slot, from, to))
	check(t, cl.MoveSlotKeys(t.Context(), slot, from, to))
	awaitConfirmed(t, 3, g) // while the slot moves
	check(t, cl.FinishMigration(t.Context(), slot, from, to))
	awaitConfirmed(t, 3, g)
	unlock(t, g)
	unlock(t, acquire(t, c, key))
}

// A server without replicas reports too few, even if the wait for them is much longer than the
// client's read timeout. The test calls the driver directly, because an attempt of a Client ends
// earlier.
func TestMinReplicasOutlastsTimeouts(t *testing.T) {
	const reads, waits = 3 * time.Second, 4 * time.Second
	server, cl := testenv.Redis(t), testenv.Cluster(t)
	tolerateStalls(t, cl)
	for _, honors := range []bool{true, false} {
		for name, rdb := range map[string]redis.UniversalClient{
			"server":  redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: honors, ReadTimeout: reads}),
			"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: honors, ReadTimeout: reads}),
		} {
			t.Run(fmt.Sprintf("%s honors=%v", name, honors), func(t *testing.T) {
				t.Parallel()
				t.Cleanup(func() { _ = rdb.Close() })
				d, err := redislock.New(rdb, redislock.WithMinReplicas(1, waits)).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
				check(t, err)
				defer func() { _ = d.Close() }()
				missesReplicas(t, func(i int) error {
					ref := driver.Ref{Key: fmt.Sprint(t.Name(), i), ID: claimID(i), TTL: time.Minute}
					_, err := d.Acquire(t.Context(), driver.Request{Ref: ref})
					return err
				})
			})
		}
	}
}

// missesReplicas expects an acquire to fail because of missing replicas. A trial is void if this
// machine may have made it miss the driver's timeout.
func missesReplicas(t *testing.T, acquire func(trial int) error) {
	t.Helper()
	metronome := testenv.StartMetronome(t)
	const trials = 10
	for i := range trials {
		began := time.Now()
		err := acquire(i)
		if errors.Is(err, redislock.ErrTooFewReplicas) {
			return
		}
		lost := metronome.Lost(began)
		if lost < 200*time.Millisecond { // of the 750 that it adds
			t.Fatalf("%v, want %v", err, redislock.ErrTooFewReplicas)
		}
		t.Logf("%v, as are %v of our time", err, lost)
	}
	t.Fatalf("the machine stalled in each of %d trials: nothing was shown", trials)
}
