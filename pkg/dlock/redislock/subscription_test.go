package redislock

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A logBuffer is a log that may be read concurrently.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// open returns a separate driver on a client, and its log.
func open(t *testing.T, client redis.UniversalClient, opts ...Option) (*redisDriver, *logBuffer) {
	t.Helper()
	t.Cleanup(func() { _ = client.Close() })
	log := &logBuffer{}
	opened, err := New(client, opts...).Open(driver.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	d, _ := opened.(*redisDriver)
	return d, log
}

// submit submits a claim, again if a busy machine left it without an answer.
func submit(t *testing.T, d *redisDriver, r driver.Request) {
	t.Helper()
	for {
		began := time.Now()
		_, err := d.Acquire(t.Context(), r)
		if err == nil {
			return
		}
		if !Unanswered(err) || !testenv.Late(t, began, tripTimeout*2/3) {
			t.Fatal(err)
		}
	}
}

func do(t testing.TB, node *servers.Redis, args ...any) *redis.Cmd {
	t.Helper()
	c := node.Client()
	defer c.Close()
	cmd := c.Do(t.Context(), args...)
	if cmd.Err() != nil {
		t.Fatal(args, cmd.Err())
	}
	return cmd
}

// tolerateStalls makes the nodes of a cluster continue when one does not answer for a while.
func tolerateStalls(t testing.TB, cl *servers.Cluster) {
	t.Helper()
	for _, node := range cl.Nodes() {
		do(t, node, "CONFIG", "SET", "cluster-require-full-coverage", "no", "cluster-node-timeout", "60000")
	}
}

// numSub returns how many subscribers a server counts.
func numSub(t *testing.T, node *servers.Redis, command, channel string) int64 {
	t.Helper()
	c := node.Client()
	defer c.Close()
	var n int64
	switch counts := c.Do(t.Context(), "PUBSUB", command, channel).Val().(type) {
	case map[any]any:
		n, _ = counts[channel].(int64)
	case []any:
		if len(counts) == 2 {
			n, _ = counts[1].(int64)
		}
	}
	return n
}

// pairBehindOneAddress starts a master, its replica, and a proxy that leads to the master.
func pairBehindOneAddress(t *testing.T) (master, replica *servers.Redis, proxy *faultproxy.Proxy) {
	t.Helper()
	master, replica = testenv.Redis(t), testenv.Redis(t)
	host, port, _ := net.SplitHostPort(master.Addr())
	do(t, replica, "REPLICAOF", host, port)
	testenv.Eventually(t, 20*time.Second, "the replica is in sync", func() bool {
		return strings.Contains(do(t, master, "INFO", "replication").String(), "state=online")
	})
	return master, replica, testenv.Proxy(t, master.Addr())
}

// awaitConfirmed subscribes for a slot. A first subscription dials, and learns where the slot is, which may take a busy
// machine longer than a round trip.
func awaitConfirmed(t *testing.T, l *subscriptions, slot int) {
	t.Helper()
	l.await(t.Context(), slot)
	testenv.Eventually(t, 20*time.Second, "the subscription is confirmed", func() bool { return l.isConfirmed(slot) })
}

// failover makes the replica the master, and points the proxy at it. Open connections stay with the
// old master.
func failover(t *testing.T, master, replica *servers.Redis, proxy *faultproxy.Proxy) {
	t.Helper()
	host, port, _ := net.SplitHostPort(replica.Addr())
	do(t, master, "FAILOVER", "TO", host, port)
	testenv.Eventually(t, 20*time.Second, "the replica is promoted", func() bool {
		return strings.Contains(do(t, replica, "INFO", "replication").String(), "role:master") &&
			strings.Contains(do(t, master, "INFO", "replication").String(), "role:slave")
	})
	proxy.Retarget(replica.Addr())
}

// A subscription that stayed with a demoted master is replaced when the new one counts no
// subscriber, at most once a second, and waiting claims are rechecked.
func TestUnheardFollowsTheMaster(t *testing.T) {
	master, replica, proxy := pairBehindOneAddress(t)
	d, _ := open(t, redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true}))
	l, channel := &d.subscriptions, d.channelFor("")
	if l.isConfirmed(0) {
		t.Error("listening before it subscribes")
	}
	l.reportUnsubscribed(0) // is harmless
	awaitConfirmed(t, l, 0)
	if numSub(t, master, "NUMSUB", channel) != 1 {
		t.Fatal("not subscribed at the master")
	}
	d.mu.Lock()
	d.waiting["id"] = waiter{key: "k"}
	d.mu.Unlock()
	failover(t, master, replica, proxy)
	if numSub(t, replica, "NUMSUB", channel) != 0 || !l.isConfirmed(0) {
		t.Fatal("it follows by itself, and this shows nothing")
	}
	before, began := proxy.Connections(), time.Now()
	for range 5 {
		l.reportUnsubscribed(0)
	}
	testenv.Eventually(t, time.Minute, "a subscriber at the new master", func() bool {
		return numSub(t, replica, "NUMSUB", channel) == 1 && l.isConfirmed(0)
	})
	select {
	case ev := <-d.Events():
		if ev.ID != "id" || ev.State.Phase != driver.Unknown {
			t.Errorf("the recheck is %+v", ev)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("nothing asks for what waits")
	}
	testenv.Eventually(t, time.Minute, "the next second", func() bool { // the reports go on, as if replacing did not help
		l.reportUnsubscribed(0)
		return time.Since(began) > 3*minReplacePause/2
	})
	made, took := proxy.Connections()-before, time.Since(began)
	most := 1 + int(took/minReplacePause)
	if made > most && testenv.Stalled(t, began, 500*time.Millisecond) { // attempts to subscribe have ended without an answer
		most += int(took / tripTimeout)
	}
	if made < 1 || made > most {
		t.Errorf("%d connections were made in %v, want 1 to %d", made, took, most)
	}
}

// Waiting claims are rechecked when the subscription is established, and again each time it was
// broken: a grant may have been published meanwhile.
func TestBrokenSubscriptionAsksForWaiters(t *testing.T) {
	t.Parallel()
	proxy := testenv.Proxy(t, testenv.Redis(t).Addr())
	d, _ := open(t, redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true}))
	d.mu.Lock()
	d.waiting["id"] = waiter{key: "k"}
	d.waiting["elsewhere"] = waiter{key: "other", slot: 1} // not in a slot of this connection
	d.mu.Unlock()
	d.subscriptions.await(t.Context(), 0)
	for i := range 3 {
		select {
		case ev := <-d.Events():
			if ev.Key != "k" || ev.ID != "id" || ev.State.Phase != driver.Unknown {
				t.Errorf("the recheck is %+v", ev)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("broken %d times, and nothing asks for what waits", i)
		}
		proxy.Cut()
	}
}

// A connection that breaks each time when it was established does not make all waiters ask each time. One that lasts for a second, on a
// slow machine, makes up to eight more possible in the next second.
func TestFlappingSubscriptionSparesTheServer(t *testing.T) {
	t.Parallel()
	proxy := testenv.Proxy(t, testenv.Redis(t).Addr())
	d, _ := open(t, redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true}))
	d.mu.Lock()
	d.waiting["id"] = waiter{key: "k"}
	d.mu.Unlock()
	d.subscriptions.await(t.Context(), 0)
	began, asked := time.Now(), 0
	for time.Since(began) < 2*time.Second {
		select {
		case <-d.Events():
			asked++
		case <-time.After(20 * time.Second):
			t.Fatalf("after %d connections, nothing asks for what waits", asked)
		}
		proxy.Cut()
	}
	if took := time.Since(began); asked > 8*(2+int(took/time.Second)) {
		t.Errorf("asked %d times in %v", asked, took)
	}
}

// Calls that reach a demoted master move the subscription too.
func TestReadOnlyAnswerMovesTheSubscription(t *testing.T) {
	t.Parallel()
	master, replica, proxy := pairBehindOneAddress(t)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	d, _ := open(t, client)
	awaitConfirmed(t, &d.subscriptions, 0)
	r := driver.Request{Ref: driver.Ref{Key: "k", ID: strings.Repeat("a", 32), TTL: 10 * time.Second}}
	submit(t, d, r)
	fillPool(t, client, master)
	failover(t, master, replica, proxy)
	submit(t, d, r) // the connections lead to the old master
	testenv.Eventually(t, time.Minute, "a subscriber at the new master", func() bool {
		return numSub(t, replica, "NUMSUB", d.channelFor("")) == 1
	})
}

// The subscription of a slot follows it to another master.
func TestSubscriptionFollowsASlot(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	d, _ := open(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: true}))
	l, slot := &d.subscriptions, slotOf("k")
	channel := slotChannel(slot, d.name)
	d.mu.Lock()
	d.waiting["id"] = waiter{key: "k", slot: slot}
	d.mu.Unlock()
	awaitConfirmed(t, l, slot)
	from, err := cl.NodeFor(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range cl.Nodes() {
		if to == from {
			continue
		}
		if err := cl.MigrateSlot(t.Context(), slot, from, to); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 20*time.Second, "a subscriber at the new master", func() bool {
			return numSub(t, to, "SHARDNUMSUB", channel) == 1 && l.isConfirmed(slot)
		})
		from = to
	}
}

// A cluster master that hands over to its replica keeps its subscribers and sends them nothing.
// They follow when no subscriber is counted, and also when they only check.
func TestSubscriptionFollowsAFailover(t *testing.T) {
	t.Parallel()
	cl := testenv.ClusterWithReplicas(t, 1)
	for _, node := range cl.Nodes() { // they fail over on request only, whatever stalls
		do(t, node, "CONFIG", "SET", "cluster-replica-no-failover", "yes", "cluster-require-full-coverage", "no")
	}
	d, _ := open(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: true}))
	l, slot := &d.subscriptions, slotOf("k")
	channel := slotChannel(slot, d.name)
	r := driver.Request{Ref: driver.Ref{Key: "k", ID: strings.Repeat("a", 32), TTL: time.Hour}}
	submit(t, d, r)
	d.mu.Lock()
	d.waiting["id"] = waiter{key: "k", slot: slot}
	d.mu.Unlock()
	l.await(t.Context(), slot)
	first, err := cl.NodeFor(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	second := cl.Nodes()[3+slices.Index(cl.Nodes(), first)]
	for _, step := range []struct {
		to   *servers.Redis
		look func()
	}{
		{second, func() { l.reportUnsubscribed(slot) }},
		{first, func() { _, _ = d.Renew(t.Context(), []driver.Ref{r.Ref}) }}, // go-redis learns where the slot is
	} {
		testenv.Eventually(t, 20*time.Second, "a replica that is in sync", func() bool {
			return strings.Contains(do(t, step.to, "INFO", "replication").String(), "master_link_status:up")
		})
		asked, replica := time.Time{}, step.to.Client()
		testenv.Eventually(t, time.Minute, "the replica is promoted", func() bool {
			if strings.Contains(do(t, step.to, "INFO", "replication").String(), "role:master") {
				return true
			}
			// A busy machine may miss the 5 s that a failover gets. After a stall, the replica refuses as long as it
			// considers its master failed.
			if time.Since(asked) > 7*time.Second && replica.Do(t.Context(), "CLUSTER", "FAILOVER").Err() == nil {
				asked = time.Now()
			}
			return false
		})
		_ = replica.Close()
		testenv.Eventually(t, 6*sweepPause, "a subscriber at the new master", func() bool {
			step.look()
			return numSub(t, step.to, "SHARDNUMSUB", channel) == 1 && l.isConfirmed(slot)
		})
	}
}

// A slot without a waiter is unsubscribed after a while, and a connection without slots is closed.
func TestUnusedSlotsAreUnsubscribed(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	d, _ := open(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: true}))
	l, kept := &d.subscriptions, slotOf("kept")
	d.mu.Lock()
	d.waiting["id"] = waiter{key: "kept", slot: kept}
	d.mu.Unlock()
	for i := range 30 {
		l.await(t.Context(), slotOf(fmt.Sprint("k", i)))
	}
	l.await(t.Context(), kept)
	testenv.Eventually(t, 6*sweepPause, "only the subscription with a waiter is left", func() bool {
		l.mu.Lock()
		slots, conns := len(l.slots), len(l.conns)
		l.mu.Unlock()
		return slots == 1 && conns == 1 && l.isConfirmed(kept) // which may have been subscribed later than the others ended
	})
	node, err := cl.NodeFor(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	if n := numSub(t, node, "SHARDNUMSUB", slotChannel(kept, d.name)); n != 1 {
		t.Errorf("%d subscribers, want 1", n)
	}
}

// A refused subscription is logged once, with the fix, and claims are still queued.
func TestRefusedSubscriptionIsLogged(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	do(t, server, "ACL", "SETUSER", "deaf", "on", ">x", "~*", "resetchannels", "+@all")
	d, log := open(t, redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "deaf", Password: "x", ContextTimeoutEnabled: true}))
	l := &d.subscriptions
	at := time.Now()
	l.await(t.Context(), 0)
	if !l.ready(0) || l.isConfirmed(0) {
		t.Errorf("ready %v, listening %v, after %v", l.ready(0), l.isConfirmed(0), time.Since(at))
	}
	testenv.Eventually(t, time.Minute, "several attempts", func() bool {
		_, rest, _ := strings.Cut(do(t, server, "INFO", "errorstats").String(), "errorstat_NOPERM:count=")
		refused := 0
		_, _ = fmt.Sscan(rest, &refused)
		return refused >= 4
	})
	if !strings.Contains(log.String(), "&dlock:*") {
		t.Errorf("the cure is not named:\n%s", log)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, log)
	}
	do(t, server, "ACL", "SETUSER", "deaf", "&dlock:*")
	testenv.Eventually(t, 60*time.Second, "a subscription once it is allowed", func() bool { return l.isConfirmed(0) })
}

// Subscribing at a stalled master delays neither claims at the others nor Close.
func TestSubscribingAtAStalledMaster(t *testing.T) {
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	d, _ := open(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: true}))
	l, nodes, metronome := &d.subscriptions, cl.Nodes(), testenv.StartMetronome(t)
	var bad, good []int
	for i := 0; len(bad) < 50 || len(good) < 50; i++ {
		key := fmt.Sprint("k", i)
		node, err := cl.NodeFor(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if node == nodes[0] {
			bad = append(bad, slotOf(key))
		} else {
			good = append(good, slotOf(key))
		}
	}
	if _, err := d.masterFor(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if err := nodes[0].Pause(); err != nil {
		t.Fatal(err)
	}
	for _, slot := range bad {
		l.ensure(slot)
	}
	at := time.Now()
	for _, slot := range good {
		awaitConfirmed(t, l, slot)
	}
	if took := time.Since(at) - metronome.Lost(at); took > time.Duration(len(good))*tripTimeout/4 {
		t.Errorf("%d slots of other masters took %v without stalls", len(good), took)
	}
	at = time.Now()
	_ = d.Close()
	if took := time.Since(at) - metronome.Lost(at); took > testenv.UnderStress[time.Duration](20, 4)*tripTimeout {
		t.Errorf("Close took %v without stalls", took)
	}
	if err := nodes[0].Resume(); err != nil {
		t.Fatal(err)
	}
}

// A slot that no master serves does not affect the subscriptions of the others.
func TestUnservedSlotKeepsTheOthers(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	nodes := cl.Nodes()
	hole := slotOf("hole")
	for _, node := range nodes {
		do(t, node, "CLUSTER", "DELSLOTS", hole).Err()
	}
	d, _ := open(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs(), ContextTimeoutEnabled: true}))
	l := &d.subscriptions
	var good []int
	for i := range 12 {
		good = append(good, slotOf(fmt.Sprint("k", i)))
	}
	d.mu.Lock()
	for i, slot := range append(good[:len(good):len(good)], hole) {
		d.waiting[fmt.Sprint(i)] = waiter{key: fmt.Sprint("k", i), slot: slot}
	}
	d.mu.Unlock()
	for _, slot := range good {
		awaitConfirmed(t, l, slot)
	}
	connections := func() (n int) {
		for _, node := range nodes {
			info := do(t, node, "INFO", "stats").String()
			_, rest, _ := strings.Cut(info, "total_connections_received:")
			var received int
			_, _ = fmt.Sscan(rest, &received)
			n += received
		}
		return n
	}
	metronome := testenv.StartMetronome(t)
	for void := 0; ; void++ {
		for _, slot := range good {
			awaitConfirmed(t, l, slot)
		}
		began := time.Now()
		l.await(t.Context(), hole)
		before, ended := connections(), -1
		for range 20 {
			i := slices.IndexFunc(good, func(slot int) bool { return !l.isConfirmed(slot) })
			if i >= 0 {
				ended = good[i]
			}
			if !d.sleep(100 * time.Millisecond) {
				t.Fatal("closed")
			}
		}
		made := connections() - before - len(nodes) // each look is a connection
		if made <= 3 && ended < 0 {
			return
		}
		if void == 5 || !metronome.MayMiss(began, 2*time.Second, tripTimeout/2) { // a call has ended without an answer
			t.Fatalf("%d new connections in two seconds; slot %d with a master was not subscribed any more (-1: none)", made, ended)
		}
	}
}

// A connection whose replacement does not help is replaced less and less often.
func TestUnheardBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &subscription{}
		if !c.replaceable() || c.replaceable() {
			t.Error("at once, and then not within a second")
		}
		for _, want := range []time.Duration{2, 4, 8, 16, 30, 30} {
			pause := c.keepFor
			time.Sleep(pause - time.Nanosecond)
			if c.replaceable() {
				t.Errorf("it is replaced before %v have passed", pause)
			}
			time.Sleep(time.Nanosecond)
			if !c.replaceable() || c.keepFor != want*time.Second {
				t.Errorf("it stays for %v, want %ds", c.keepFor, want)
			}
		}
		time.Sleep(time.Hour)
		if !c.replaceable() || c.keepFor != minReplacePause {
			t.Errorf("after an hour it stays for %v", c.keepFor)
		}
	})
}

// A replacement that has helped does not delay the next one.
func TestUnheardForgetsItsPause(t *testing.T) {
	c := &subscription{keepFor: 8 * time.Second, replaced: time.Now()}
	l := &subscriptions{slots: map[int]*slotSubscription{0: {conn: c}}}
	l.reportSubscribed(0)
	if !c.replaceable() || c.keepFor != minReplacePause {
		t.Errorf("it stays for %v", c.keepFor)
	}
	l.reportSubscribed(1) // is harmless
}

// fillPool gives a client idle connections to a server.
func fillPool(t *testing.T, client *redis.Client, server *servers.Redis) {
	t.Helper()
	var wg sync.WaitGroup
	for range 8 { // all at once, so each has a connection
		wg.Go(func() { _ = client.BLPop(t.Context(), time.Minute, "something").Err() })
	}
	testenv.Eventually(t, time.Minute, "all block", func() bool {
		return strings.Contains(do(t, server, "INFO", "clients").String(), "blocked_clients:8")
	})
	do(t, server, "RPUSH", "something", 1, 2, 3, 4, 5, 6, 7, 8)
	wg.Wait()
	if n := client.PoolStats().IdleConns; n < 6 {
		t.Fatalf("%d idle connections: the test shows nothing", n)
	}
}

// After a failover behind one address a call succeeds, however many connections of the pool still
// lead to the demoted master.
func TestCallAfterAFailoverWithAFullPool(t *testing.T) {
	t.Parallel()
	master, replica, proxy := pairBehindOneAddress(t)
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true})
	d, _ := open(t, client)
	r := driver.Request{Ref: driver.Ref{Key: "k", ID: strings.Repeat("a", 32), TTL: 30 * time.Second}}
	submit(t, d, r)
	fillPool(t, client, master)
	failover(t, master, replica, proxy)
	began := time.Now()
	st, err := d.Release(t.Context(), r.Ref)
	stalled := Unanswered(err) && testenv.Stalled(t, began, tripTimeout/2)
	if stalled { // one attempt more, after which there are still enough stale connections
		st, err = d.Release(t.Context(), r.Ref)
	}
	if err != nil || st.Phase != driver.Held && (!stalled || st.Phase != driver.Gone) { // carried out by the first
		t.Errorf("%v, %v", st.Phase, err)
	}
}
