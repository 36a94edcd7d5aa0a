package redislock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A redisEnv is one server behind a proxy.
type redisEnv struct {
	server   *servers.Redis
	proxy    *faultproxy.Proxy
	rdb      *redis.Client // past the proxy
	client   redis.Options // of clients, except the address
	calls    hazardtest.Calls
	renewals hazardtest.ScriptTimes
	// stalled: the first connection that is opened once a claim waits gets no answer, and no subscription
	// does. Other connections may be opened meanwhile, for calls that a busy machine has ended.
	stalled, waiting, swallowed atomic.Bool

	monitor func() *testenv.Monitor
}

// openEnv starts a server with clients as users create them.
func openEnv(tb testing.TB) hazardtest.Env {
	return openEnvWith(tb, redis.Options{ContextTimeoutEnabled: true})
}

// openHeedlessEnv starts a server whose clients do not honor contexts.
func openHeedlessEnv(tb testing.TB) hazardtest.Env {
	return openEnvWith(tb, redis.Options{ReadTimeout: time.Minute})
}

func openEnvWith(tb testing.TB, client redis.Options) hazardtest.Env {
	tb.Helper()
	e := &redisEnv{server: testenv.Redis(tb), client: client}
	e.proxy, e.rdb = testenv.Proxy(tb, e.server.Addr()), e.server.Client()
	e.monitor = sync.OnceValue(func() *testenv.Monitor { return testenv.MonitorRedis(tb, e.server) })
	tb.Cleanup(func() {
		_ = e.rdb.Close()
		e.calls.Heal() // else the proxy waits for what is held
	})
	e.proxy.DeliverAfterClose(true)
	e.proxy.Intercept(e.rule)
	return e
}

func (e *redisEnv) rule(cmd []string) faultproxy.Action {
	op, known := opOf(cmd)
	subscribes := cmd[0] == "SUBSCRIBE" || cmd[0] == "SSUBSCRIBE"
	if e.waiting.Load() && ((cmd[0] == "HELLO" && e.swallowed.CompareAndSwap(false, true)) || subscribes) {
		e.swallowed.Store(true)
		return faultproxy.Swallow
	}
	if !known {
		return faultproxy.Forward
	}
	if op == hazardtest.Acquire && e.stalled.Load() {
		e.waiting.Store(true)
	}
	if op != hazardtest.Release {
		e.renewals.Record(cmd)
	}
	v := e.calls.Next(0, op)
	if v.Hold != nil {
		<-v.Hold
	}
	if v.Lose {
		return faultproxy.DropReply
	}
	return faultproxy.Forward
}

// opOf returns the operation that a command belongs to.
func opOf(cmd []string) (hazardtest.Op, bool) {
	if len(cmd) < 3 || !strings.HasPrefix(strings.ToUpper(cmd[0]), "EVAL") {
		return 0, false
	}
	for op, name := range map[hazardtest.Op]string{hazardtest.Acquire: "acquire", hazardtest.Renew: "renew", hazardtest.Release: "release"} {
		for hash, source := range redislock.Scripts(name) {
			if cmd[1] == hash || cmd[1] == source {
				return op, true
			}
		}
	}
	return 0, false
}

func (e *redisEnv) Traits() hazardtest.Traits {
	dead := testenv.UnderStress(3*time.Second, 1500*time.Millisecond)
	return hazardtest.Traits{
		ShortTTL: time.Second,
		Servers:  1,

		WaiterTTL:   testenv.UnderStress(5*time.Second, 600*time.Millisecond),
		DeadTTL:     dead, // which is the heartbeat
		DeadWaiters: testenv.UnderStress(4*dead, dead+dead/3+200*time.Millisecond),
		Forgotten:   testenv.UnderStress(10*time.Second, 600*time.Millisecond),
		Unpushed:    time.Second + testenv.UnderStress(4*time.Second, 250*time.Millisecond),
		InOrder:     true,
		IdleCPU:     .05,
		Watches:     1,
		EarlyLoss:   testenv.UnderStress(1500*time.Millisecond, 50*time.Millisecond),

		Healed:   testenv.UnderStress(30*time.Second, time.Second), // the leases of these scenarios last a minute
		HandOver: testenv.UnderStress(5*time.Second, 100*time.Millisecond),
		Close:    testenv.UnderStress(15*time.Second, 3*time.Second),
	}
}

func (e *redisEnv) Endpoints() []string { return []string{e.server.Addr()} }

func (e *redisEnv) Proxied(tb testing.TB) driver.Opener { return e.dial(tb, e.proxy.Addr()) }

func (e *redisEnv) Direct(tb testing.TB) driver.Opener { return e.dial(tb, e.server.Addr()) }

func (e *redisEnv) dial(tb testing.TB, addr string) driver.Opener {
	tb.Helper()
	o := e.client
	o.Addr = addr
	rdb := redis.NewClient(&o)
	tb.Cleanup(func() { _ = rdb.Close() })
	return redislock.New(rdb)
}

func (e *redisEnv) Claims(tb testing.TB, key string) (claims []hazardtest.Claim) {
	tb.Helper()
	ctx := context.Background()
	value, err := e.rdb.Get(ctx, key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		tb.Fatal(err)
	}
	if err == nil {
		asked := time.Now()
		left, err := e.rdb.PTTL(ctx, key).Result()
		check(tb, err)
		words := strings.SplitN(value+"    ", " ", 5)
		id := strings.TrimRight(words[0], ".+") // without the mark
		c := hazardtest.Claim{ID: id, Text: value, Purpose: purposeOf(words[4]), Since: words[1], Sooner: asked.Add(left), Later: time.Now().Add(left + time.Millisecond)}
		c.Token, _ = strconv.ParseInt(words[1], 10, 64) // of a plain client there is none
		claims = append(claims, c)
	}
	ids, err := e.rdb.ZRange(ctx, queueOf(key), 0, -1).Result()
	check(tb, err)
	if len(ids) == 0 {
		return claims
	}
	waiters, err := e.rdb.HGetAll(ctx, waitersOf(key)).Result()
	check(tb, err)
	for _, id := range ids {
		text := waiters[id]
		words := strings.SplitN(text+"      ", " ", 6)
		claims = append(claims, hazardtest.Claim{ID: id, Text: text, Purpose: purposeOf(words[5]), Since: words[1]})
	}
	return claims
}

// purposeOf reads it from a stored driver.Info.
func purposeOf(info string) string {
	var stored struct{ W string }
	_ = json.Unmarshal([]byte(strings.TrimSpace(info)), &stored) // a plain client has none
	return stored.W
}

func (e *redisEnv) Leftovers(tb testing.TB) []string {
	tb.Helper()
	return leftovers(tb, e.rdb)
}

// Grants watches the last token of the lock, which every grant increases.
func (e *redisEnv) Grants(tb testing.TB, key string) func(int64) error {
	tb.Helper()
	return func(token int64) error {
		last, err := e.rdb.Get(context.Background(), fenceOf(key)).Result()
		if err == nil && last != fmt.Sprint(token) {
			err = fmt.Errorf("the last token of %q is %s, the guard has %d: it was granted twice", key, last, token)
		}
		return err
	}
}

func (e *redisEnv) Carried(tb testing.TB, op hazardtest.Op) func() int {
	tb.Helper()
	m := e.monitor()
	from := len(m.Commands(tb))
	return func() (n int) {
		for _, c := range m.Commands(tb)[from:] {
			if is, known := opOf(c.Args); !c.Lua && known && is == op {
				n++
			}
		}
		return n
	}
}

func (e *redisEnv) Lose(op hazardtest.Op, n int) *hazardtest.Hits { return e.calls.Lose(op, n, 1) }

func (e *redisEnv) Hold(op hazardtest.Op, n int) (*hazardtest.Hits, func()) {
	return e.calls.Hold(op, n, 1)
}

func (e *redisEnv) DropPushes() { e.proxy.DropMessages(true) }

// PushesDropped checks it with its own subscription.
func (e *redisEnv) PushesDropped(tb testing.TB) {
	tb.Helper()
	ctx := context.Background()
	if e.Subscriptions(tb) == 0 {
		tb.Error("no client has subscribed")
	}
	sub := dialRedis(tb, e.proxy.Addr()).Subscribe(ctx, "probe")
	defer sub.Close()
	_, err := sub.Receive(ctx) // it is subscribed
	check(tb, err)
	if n := e.rdb.Publish(ctx, "probe", "x").Val(); n != 1 {
		tb.Errorf("%d subscribers of the probe", n)
	}
	msg, err := sub.ReceiveTimeout(ctx, 100*time.Millisecond)
	if err == nil {
		tb.Errorf("a message came through: %v", msg)
	}
}

// Renewed returns when a proxy read the last call; the proxy forwards it at once.
func (e *redisEnv) Renewed(_ testing.TB, key string) (time.Time, bool) {
	return e.renewals.Last(key), true
}

func (e *redisEnv) StallSubscriptions() func() bool {
	e.stalled.Store(true)
	return e.swallowed.Load
}

// Subscriptions returns the number of connections with subscriptions.
func (e *redisEnv) Subscriptions(tb testing.TB) int {
	tb.Helper()
	list, err := e.rdb.Do(context.Background(), "CLIENT", "LIST", "TYPE", "PUBSUB").Text()
	check(tb, err)
	return strings.Count(list, "id=")
}

// Requests counts what clients send; commands inside scripts are not round trips.
func (e *redisEnv) Requests(tb testing.TB) (n int) {
	tb.Helper()
	for _, name := range []string{"evalsha", "eval", "subscribe", "unsubscribe", "wait", "multi", "exec"} {
		n += countCalls(tb, e.rdb, name)
	}
	return n
}

func (e *redisEnv) Delay(up, down time.Duration) { e.proxy.Delay(up, down) }

func (e *redisEnv) Refuse(on bool) { e.proxy.Refuse(on) }
func (e *redisEnv) Cut()           { e.proxy.Cut() }

func (e *redisEnv) BlackHole(on bool) {
	e.proxy.BlackHole(on)
	e.renewals.Ignore(on) // not before: what still passes counts
}

func (e *redisEnv) Heal() {
	e.calls.Heal()
	e.proxy.Delay(0, 0)
	e.BlackHole(false)
	e.proxy.Refuse(false)
}

func (e *redisEnv) Pause(tb testing.TB, d time.Duration) {
	tb.Helper()
	check(tb, e.server.Pause())
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if e.rdb.Ping(ctx).Err() == nil {
		tb.Error("the server answers: the fault did not happen")
	}
	<-ctx.Done()
	check(tb, e.server.Resume())
}

func (e *redisEnv) Expire(tb testing.TB, key string) {
	tb.Helper()
	if !e.rdb.PExpire(context.Background(), key, time.Millisecond).Val() {
		tb.Fatal("nothing to expire: the fault did not happen")
	}
	testenv.Eventually(tb, time.Minute, "the lock expires", func() bool { return e.rdb.Exists(context.Background(), key).Val() == 0 })
}

func (e *redisEnv) Delete(tb testing.TB, key string) {
	tb.Helper()
	if e.rdb.Del(context.Background(), key).Val() != 1 {
		tb.Fatal("nothing to delete: the fault did not happen")
	}
}

// Owned returns nil: Redis has no ownership check for a user's own write.
func (e *redisEnv) Owned(testing.TB, string, int64) *hazardtest.OwnedValue { return nil }
