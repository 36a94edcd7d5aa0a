package redlock_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// A nodesEnv is three nodes, each behind a proxy.
type nodesEnv struct {
	*set
	calls    hazardtest.Calls
	renewals hazardtest.ScriptTimes
	// confirming: the faults apply to the acquires of the second phase.
	confirming atomic.Bool
	// stalled: the connection that is opened once a claim waits gets no answer.
	stalled, waiting, swallowed atomic.Bool
	subscribed                  atomic.Bool // a client has, at some time
	held                        sync.Map    // the words of calls that were held

	monitors func() []*testenv.Monitor
}

const (
	envNodes    = 3
	envMajority = 2
)

func openEnv(tb testing.TB) hazardtest.Env {
	tb.Helper()
	e := &nodesEnv{set: start(tb, envNodes)}
	tb.Cleanup(e.calls.Heal)
	e.monitors = sync.OnceValue(func() (all []*testenv.Monitor) {
		for _, s := range e.servers {
			all = append(all, testenv.MonitorRedis(tb, s))
		}
		return all
	})
	for _, p := range e.proxies {
		p.DeliverAfterClose(true)
	}
	e.intercept(e.rule)
	return e
}

func (e *nodesEnv) rule(node int, cmd []string) faultproxy.Action {
	if cmd[0] == "HELLO" && e.waiting.Load() {
		e.swallowed.Store(true)
		return faultproxy.Swallow
	}
	if cmd[0] == "SUBSCRIBE" {
		e.subscribed.Store(true)
	}
	op, known := e.opOf(cmd)
	if !known {
		e.refuseProposal(node, cmd)
		return faultproxy.Forward
	}
	if op == hazardtest.Acquire && e.stalled.Load() {
		e.waiting.Store(true)
	}
	if op != hazardtest.Release {
		e.renewals.Record(cmd)
	}
	v := e.calls.Next(node, op)
	if v.Hold != nil {
		e.held.Store(words(cmd), true)
		<-v.Hold
	}
	if v.Lose {
		return faultproxy.DropReply
	}
	return faultproxy.Forward
}

// refuseProposal makes a node refuse the proposal of an acquire, so that there is a second phase: a greater token
// has won there.
func (e *nodesEnv) refuseProposal(node int, cmd []string) {
	if len(cmd) < 8 || cmd[1] != redlock.Scripts["acquire"] {
		return
	}
	if proposal, err := strconv.ParseInt(cmd[len(cmd)-4], 10, 64); err == nil && proposal > 0 {
		e.direct[node].Set(context.Background(), cmd[4], proposal, time.Minute)
	}
}

// opOf returns the operation that a command belongs to.
func (e *nodesEnv) opOf(cmd []string) (hazardtest.Op, bool) {
	if len(cmd) < 3 || !strings.EqualFold(cmd[0], "EVALSHA") {
		return 0, false
	}
	switch cmd[1] {
	case redlock.Scripts["acquire"]:
		return hazardtest.Acquire, !e.confirming.Load()
	case redlock.Scripts["confirm"]:
		return hazardtest.Acquire, e.confirming.Load()
	case redlock.Scripts["renew"], redlock.Scripts["wait"]:
		return hazardtest.Renew, true
	case redlock.Scripts["release"]:
		return hazardtest.Release, true
	}
	return 0, false
}

// words identifies a call, without the name of the command.
func words(cmd []string) string { return strings.Join(cmd[1:], " ") }

// isOfRound reports whether a command is a release that removes only what some rounds have stored: its third argument is not -1.
func isOfRound(cmd []string) bool {
	return cmd[1] == redlock.Scripts["release"] && len(cmd) > 11 && cmd[11] != "-1"
}

// shortLease is long enough that an unlock, which has a third of it, outlasts a stall.
var shortLease = testenv.UnderStress(6*time.Second, 3*time.Second)

func (e *nodesEnv) Traits() hazardtest.Traits {
	return hazardtest.Traits{
		ShortTTL: 2 * time.Second,
		Slow:     true,
		Servers:  envNodes,

		WaiterTTL: shortLease,
		DeadTTL:   shortLease,
		// The heartbeat, and a third.
		DeadWaiters: testenv.UnderStress(12*time.Second, 4200*time.Millisecond),
		Forgotten:   shortLease + testenv.UnderStress(beforeLease, 1500*time.Millisecond),
		Unpushed:    testenv.UnderStress(15*time.Second, 2*time.Second),
		IdleCPU:     testenv.UnderStress(.5, .05),
		Watches:     1,
		EarlyLoss:   testenv.UnderStress(1500*time.Millisecond, 320*time.Millisecond), // the drift, and a fifth of a second

		Healed:   testenv.UnderStress(beforeLease, 1500*time.Millisecond),
		HandOver: testenv.UnderStress(beforeLease, 1500*time.Millisecond),
		Close:    testenv.UnderStress(beforeLease, 3*time.Second),
	}
}

func (e *nodesEnv) Endpoints() (all []string) {
	for _, s := range e.servers {
		all = append(all, s.Addr())
	}
	return all
}

func (e *nodesEnv) Proxied(tb testing.TB) driver.Opener {
	tb.Helper()
	return redlock.New(e.dial(tb), patient)
}

func (e *nodesEnv) Direct(tb testing.TB) driver.Opener {
	tb.Helper()
	var clients []redis.UniversalClient
	for _, addr := range e.Endpoints() {
		c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		tb.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	return redlock.New(clients, patient)
}

// Claims returns the claims on any node. It waits some time for calls in flight to the last nodes, and longer if the machine stalls.
func (e *nodesEnv) Claims(tb testing.TB, key string) []hazardtest.Claim {
	tb.Helper()
	metronome, began := testenv.StartMetronome(tb), time.Now()
	for !e.agree(tb, key) && time.Since(began) < time.Second+metronome.Lost(began) {
		elapse(5 * time.Millisecond)
	}
	holders, waiters := map[string]*hazardtest.Claim{}, map[string]*hazardtest.Claim{}
	for i := range e.servers {
		e.addHolder(tb, holders, i, key)
		e.addWaiters(tb, waiters, i, key)
	}
	var claims []hazardtest.Claim
	for _, some := range []map[string]*hazardtest.Claim{holders, waiters} {
		from := len(claims)
		for id, c := range some {
			if from == 0 || holders[id] == nil {
				claims = append(claims, *c)
			}
		}
		slices.SortFunc(claims[from:], func(a, b hazardtest.Claim) int { return cmp.Compare(a.Text, b.Text) })
	}
	return claims
}

// agree reports whether all nodes have the same claim with the same token, or none.
func (e *nodesEnv) agree(tb testing.TB, key string) bool {
	tb.Helper()
	var all []string
	for i := range e.servers {
		id, rest, _ := strings.Cut(e.stored(tb, i, key), " ")
		token, _, _ := strings.Cut(rest, " ")
		all = append(all, id+" "+token)
	}
	return len(slices.Compact(all)) == 1
}

func (e *nodesEnv) addHolder(tb testing.TB, into map[string]*hazardtest.Claim, node int, key string) {
	tb.Helper()
	value := e.stored(tb, node, key)
	if value == "" {
		return
	}
	asked := time.Now()
	left, err := e.direct[node].PTTL(context.Background(), key).Result()
	check(tb, err)
	words := strings.SplitN(value+"    ", " ", 5)
	token, _ := strconv.ParseInt(words[1], 10, 64) // of a plain client there is none
	sooner, later := asked.Add(left), time.Now().Add(left+time.Millisecond)
	c := into[words[0]]
	if c == nil {
		c = &hazardtest.Claim{ID: words[0], Sooner: sooner, Later: later}
		into[c.ID] = c
	}
	c.Token = max(c.Token, token)
	c.Text += fmt.Sprintf("node %d: %s\n", node, value)
	if sooner.Before(c.Sooner) {
		c.Sooner = sooner
	}
	if later.After(c.Later) {
		c.Later = later
	}
}

// addWaiters starts the text of a waiter with its age, by which it is sorted.
func (e *nodesEnv) addWaiters(tb testing.TB, into map[string]*hazardtest.Claim, node int, key string) {
	tb.Helper()
	waiters, err := e.direct[node].HGetAll(context.Background(), waitersOf(key)).Result()
	check(tb, err)
	for id, record := range waiters {
		words := strings.SplitN(record+"     ", " ", 5)
		deadline, _ := strconv.ParseInt(words[0], 10, 64)
		if into[id] != nil || time.UnixMicro(deadline).Before(time.Now()) {
			continue
		}
		var info struct{ W string } // the purpose
		_ = json.Unmarshal([]byte(strings.TrimSpace(words[4])), &info)
		into[id] = &hazardtest.Claim{ID: id, Text: words[1] + " " + record, Purpose: info.W, Since: words[1]}
	}
}

func (e *nodesEnv) Leftovers(tb testing.TB) []string {
	tb.Helper()
	return e.left(tb)
}

// Grants watches the last tokens, which every grant increases on a majority.
func (e *nodesEnv) Grants(tb testing.TB, key string) func(int64) error {
	tb.Helper()
	return func(token int64) error {
		n := 0
		for i := range e.servers {
			last, _ := strconv.ParseInt(e.stored(tb, i, fenceOf(key)), 10, 64)
			if last > token {
				return fmt.Errorf("node %d has granted %q with token %d, the guard has %d: it was granted twice", i, key, last, token)
			}
			if last == token {
				n++
			}
		}
		if n < envMajority {
			return fmt.Errorf("only %d nodes know the token %d of %q", n, token, key)
		}
		return nil
	}
}

// Carried does not count the releases of lost rounds unless they were held: they are sent in addition to those of the claim, and
// leave no tombstone.
func (e *nodesEnv) Carried(tb testing.TB, op hazardtest.Op) func() int {
	tb.Helper()
	var from []int
	for _, m := range e.monitors() {
		from = append(from, len(m.Commands(tb)))
	}
	return func() int {
		var counts []int
		for i, m := range e.monitors() {
			n := 0
			for _, c := range m.Commands(tb)[from[i]:] {
				is, known := e.opOf(c.Args)
				if c.Lua || !known || is != op {
					continue
				}
				if _, held := e.held.Load(words(c.Args)); held || !isOfRound(c.Args) {
					n++
				}
			}
			counts = append(counts, n)
		}
		return slices.Min(counts)
	}
}

// Lose affects a majority of the nodes, and acquires in either phase alternately.
func (e *nodesEnv) Lose(op hazardtest.Op, n int) *hazardtest.Hits {
	if op == hazardtest.Acquire {
		e.confirming.Store(!e.confirming.Load())
	}
	return e.calls.Lose(op, n, envMajority)
}

// Hold affects all nodes.
func (e *nodesEnv) Hold(op hazardtest.Op, n int) (*hazardtest.Hits, func()) {
	if op == hazardtest.Acquire {
		e.confirming.Store(false)
	}
	return e.calls.Hold(op, n, envNodes)
}

func (e *nodesEnv) each(change func(*faultproxy.Proxy)) {
	for _, p := range e.proxies {
		change(p)
	}
}

func (e *nodesEnv) DropPushes() { e.each(func(p *faultproxy.Proxy) { p.DropMessages(true) }) }

// PushesDropped checks it with its own subscription on each node.
func (e *nodesEnv) PushesDropped(tb testing.TB) {
	tb.Helper()
	ctx := context.Background()
	if !e.subscribed.Load() {
		tb.Error("no client has subscribed")
	}
	for i, c := range e.dial(tb) {
		sub := c.Subscribe(ctx, "probe")
		_, err := sub.Receive(ctx) // it is subscribed
		check(tb, err)
		if n := e.direct[i].Publish(ctx, "probe", "x").Val(); n != 1 {
			tb.Errorf("node %d: %d subscribers of the probe", i, n)
		}
		// The reply to a ping comes after the messages that were published before it.
		check(tb, sub.Ping(ctx))
		switch msg, err := sub.Receive(ctx); msg.(type) {
		case *redis.Pong:
		default:
			tb.Errorf("node %d: received %v, %v: the fault did not happen", i, msg, err)
		}
		check(tb, sub.Close())
	}
}

// Renewed returns when a proxy read the last call; the proxy forwards it at once.
func (e *nodesEnv) Renewed(_ testing.TB, key string) (time.Time, bool) {
	return e.renewals.Last(key), true
}

func (e *nodesEnv) StallSubscriptions() func() bool {
	e.stalled.Store(true)
	return e.swallowed.Load
}

// Subscriptions returns the number of connections with subscriptions, on the node with most.
func (e *nodesEnv) Subscriptions(tb testing.TB) (n int) {
	tb.Helper()
	for _, c := range e.direct {
		list, err := c.Do(context.Background(), "CLIENT", "LIST", "TYPE", "PUBSUB").Text()
		check(tb, err)
		n = max(n, strings.Count(list, "id="))
	}
	return n
}

// Requests returns how many scripts clients call on all nodes.
func (e *nodesEnv) Requests(tb testing.TB) (sum int) {
	tb.Helper()
	for _, c := range e.direct {
		text, err := c.Info(context.Background(), "commandstats").Result()
		check(tb, err)
		_, rest, _ := strings.Cut(text, "cmdstat_evalsha:calls=")
		count, _, _ := strings.Cut(rest, ",")
		n, err := strconv.Atoi(count)
		check(tb, err)
		sum += n
	}
	return sum
}

func (e *nodesEnv) Delay(up, down time.Duration) {
	e.each(func(p *faultproxy.Proxy) { p.Delay(up, down) })
}

func (e *nodesEnv) BlackHole(on bool) {
	e.each(func(p *faultproxy.Proxy) { p.BlackHole(on) })
	e.renewals.Ignore(on) // not before: what still passes counts
}

func (e *nodesEnv) Refuse(on bool) { e.each(func(p *faultproxy.Proxy) { p.Refuse(on) }) }
func (e *nodesEnv) Cut()           { e.each((*faultproxy.Proxy).Cut) }

func (e *nodesEnv) Heal() {
	e.calls.Heal()
	e.Delay(0, 0)
	e.BlackHole(false)
	e.Refuse(false)
}

// Pause stops a majority.
func (e *nodesEnv) Pause(tb testing.TB, d time.Duration) {
	tb.Helper()
	for _, s := range e.servers[:envMajority] {
		check(tb, s.Pause())
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if e.direct[0].Ping(ctx).Err() == nil {
		tb.Error("a node answers: the fault did not happen")
	}
	<-ctx.Done()
	for _, s := range e.servers[:envMajority] {
		check(tb, s.Resume())
	}
}

func (e *nodesEnv) Expire(tb testing.TB, key string) {
	tb.Helper()
	e.awaitAll(tb, key)
	for _, c := range e.direct {
		if !c.PExpire(context.Background(), key, time.Millisecond).Val() {
			tb.Fatal("nothing to expire: the fault did not happen")
		}
	}
	testenv.Eventually(tb, patience, "the lock expires", func() bool { return e.holders(tb, key) == 0 })
}

// awaitAll waits until no call for the lock is in flight.
func (e *nodesEnv) awaitAll(tb testing.TB, key string) {
	tb.Helper()
	testenv.Eventually(tb, patience, "all nodes have the lock", func() bool {
		return e.holders(tb, key) == envNodes && e.agree(tb, key)
	})
}

func (e *nodesEnv) Delete(tb testing.TB, key string) {
	tb.Helper()
	e.awaitAll(tb, key)
	for _, c := range e.direct {
		if c.Del(context.Background(), key).Val() != 1 {
			tb.Fatal("nothing to delete: the fault did not happen")
		}
	}
}

// fenceOf returns where a node stores the last token of a lock, and waitersOf where it stores the
// waiters.
func fenceOf(key string) string   { return "{" + key + "}\x01f" }
func waitersOf(key string) string { return "{" + key + "}\x01w" }

// Owned returns nil: Redis has no ownership check for a user's own write.
func (e *nodesEnv) Owned(testing.TB, string, int64) *hazardtest.OwnedValue { return nil }
