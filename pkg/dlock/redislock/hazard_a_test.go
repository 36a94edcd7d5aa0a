package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// Answers to a successful acquire are lost, 1 to 5 times in a row: the call
// succeeds once, with one claim and one token.
func TestA1LostAcquireReplies(t *testing.T) {
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), abDirect(t, server)
	c := abClient(t, proxy.Addr(), dlock.Config{DefaultTTL: 20 * time.Second, RetryInterval: 5 * time.Millisecond})
	abWarm(t, c)
	for i := range testenv.UnderStress(40, 200) {
		key, lose := fmt.Sprintf("k%d", i), i%5+1
		hit := abHitNext(proxy, lose, servers.DropReply, abAcquiring)
		g := abAcquire(t, c, key)
		if n := hit.hits.Load(); n != int64(lose) {
			t.Fatalf("%d replies were lost, want %d", n, lose)
		}
		if token := abToken(t, direct, key); token != g.Token() {
			t.Fatalf("the server has token %d, the guard %d", token, g.Token())
		}
		if fence := abGet(t, direct, abFence(key)); fence != fmt.Sprint(g.Token()) {
			t.Fatalf("the last token is %s, the guard has %d: it was granted twice", fence, g.Token())
		}
		abUnlock(t, g)
	}
	if left := abLeft(t, direct); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// Nothing comes back any more: the outcome is unknown, not "busy", and the key is
// free at most a second after the network has healed.
func TestA1UnknownOutcomeIsCleanedUp(t *testing.T) {
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), abDirect(t, server)
	c := abClient(t, proxy.Addr(), dlock.Config{DefaultTTL: 20 * time.Second, RetryInterval: 5 * time.Millisecond, MaxRetries: 2})
	abWarm(t, c)
	for i := range testenv.UnderStress(6, 60) {
		key := fmt.Sprintf("k%d", i)
		var lost atomic.Int64
		proxy.Intercept(func(cmd []string) servers.Action {
			switch abKindOf(cmd) {
			case abAcquiring:
				lost.Add(1)
				return servers.DropReply
			case abReleasing: // clean-up does not get through either
				if cmd[3] == key {
					proxy.BlackHoleUp(true)
				}
			default:
			}
			return servers.Forward
		})
		var err error
		switch i % 3 {
		case 0:
			_, err = c.TryLock(abCtx, key)
		case 1:
			err = c.Lock(abCtx, key)
		case 2:
			_, err = c.TryAcquire(abCtx, key)
		}
		abWant(t, err, dlock.ErrUnknownOutcome)
		if err == nil || errors.Is(err, dlock.ErrLockHeldByOther) {
			t.Fatalf("a lost answer was told as %v", err)
		}
		abElapse(200 * time.Millisecond)
		if lost.Load() == 0 || abGet(t, direct, key) == "" {
			t.Fatal("the fault did not happen: nothing was left behind")
		}
		proxy.Heal()
		testenv.Eventually(t, time.Second, "the key is free after the network has healed", func() bool { return abGet(t, direct, key) == "" })
	}
}

// Clean-up on another connection overtakes the attempt, which arrives late and
// must find its ID barred.
func TestA2CleanUpOvertakesAcquire(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), abDirect(t, server)
	proxy.DeliverAfterClose(true)
	monitor := abWatch(t, server)
	const clients = 10
	var late atomic.Int64
	proxy.Intercept(func(cmd []string) servers.Action {
		if abKindOf(cmd) == abAcquiring && cmd[3] != "warm" {
			abElapse(300 * time.Millisecond)
			late.Add(1)
		}
		return servers.Forward
	})
	n := testenv.UnderStress(4, 20)
	var wg sync.WaitGroup
	for i := range clients {
		c := abClient(t, proxy.Addr(), dlock.Config{DefaultTTL: 20 * time.Second})
		wg.Go(func() {
			for j := range n {
				abWarm(t, c)
				short, cancel := context.WithTimeout(abCtx, 50*time.Millisecond)
				abWant(t, c.Lock(short, fmt.Sprintf("k%d-%d", i, j)), context.DeadlineExceeded, dlock.ErrUnknownOutcome)
				cancel()
			}
		})
	}
	wg.Wait()
	abElapse(2 * time.Second)
	if left := abLeft(t, direct); len(left) != 0 {
		t.Errorf("%d keys are left after 2 s, such as %q", len(left), left[0])
	}
	released, overtaken := map[string]bool{}, 0
	for _, s := range monitor.all(t, direct) {
		if s.lua || len(s.cmd) < 4 || s.cmd[3] == "warm" {
			continue
		}
		switch abKindOf(s.cmd) {
		case abReleasing:
			released[abIDs(s.cmd)[0]] = true
		case abAcquiring:
			if released[abIDs(s.cmd)[0]] {
				overtaken++
			}
		default:
		}
	}
	if overtaken < clients*n*9/10 || late.Load() < clients*int64(n) {
		t.Errorf("clean-up overtook %d attempts of %d: the fault did not happen", overtaken, clients*n)
	}
}

// The answer to an unlock is lost: the unlock is a success all the same, the next
// waiter has the key at once, and the repetition does not touch what the same
// Client has acquired meanwhile.
func TestA3LostUnlockReply(t *testing.T) {
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), abDirect(t, server)
	c := abClient(t, proxy.Addr(), dlock.Config{DefaultTTL: 20 * time.Second, RetryInterval: 50 * time.Millisecond})
	other := abClient(t, server.Addr(), dlock.Config{DefaultTTL: 20 * time.Second})
	abWarm(t, c)
	for i := range testenv.UnderStress(30, 200) {
		next := []*dlock.Client{c, other}[i%2]
		g := abAcquire(t, c, "k")
		type grant struct {
			g  *dlock.Guard
			at time.Time
		}
		granted := make(chan grant, 1)
		go func() {
			g, err := next.Acquire(abCtx, "k")
			if err != nil {
				t.Error(err)
			}
			granted <- grant{g, time.Now()}
		}()
		testenv.Eventually(t, 10*time.Second, "somebody waits", func() bool {
			return direct.ZCard(abCtx, "{k}\x01z").Val() == 1
		})
		hit := abHitNext(proxy, 1, servers.DropReply, abReleasing)
		if err := g.Unlock(abCtx); err != nil {
			t.Fatalf("unlock: %v", err)
		}
		if hit.hits.Load() != 1 || hit.seen.Load() < 2 {
			t.Fatalf("%d answers were lost, %d unlocks seen: the fault did not happen", hit.hits.Load(), hit.seen.Load())
		}
		got := <-granted
		if got.g == nil {
			t.FailNow()
		}
		if took := got.at.Sub(abEpoch.Add(time.Duration(hit.first.Load()))); took > testenv.UnderStress(5*time.Second, 100*time.Millisecond) {
			t.Errorf("the next waiter had the key %v after the unlock", took)
		}
		if token := abToken(t, direct, "k"); token != got.g.Token() {
			t.Fatalf("the repeated unlock removed another's lock: token %d, want %d", token, got.g.Token())
		}
		abAlive(t, got.g)
		abUnlock(t, got.g)
	}
}

// The same for a re-acquisition between the two attempts, when nobody waited.
func TestA3ReacquiredBetweenTwoUnlocks(t *testing.T) {
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), abDirect(t, server)
	c := abClient(t, proxy.Addr(), dlock.Config{DefaultTTL: 20 * time.Second, RetryInterval: 150 * time.Millisecond})
	abWarm(t, c)
	for range testenv.UnderStress(20, 200) {
		g := abAcquire(t, c, "k")
		hit := abHitNext(proxy, 1, servers.DropReply, abReleasing)
		unlocked := make(chan error, 1)
		go func() { unlocked <- g.Unlock(abCtx) }()
		testenv.Eventually(t, 10*time.Second, "the first unlock is carried out", func() bool { return abGet(t, direct, "k") == "" })
		again := abAcquire(t, c, "k")
		before := hit.seen.Load()
		if err := <-unlocked; err != nil {
			t.Fatalf("unlock: %v", err)
		}
		if hit.hits.Load() != 1 || hit.seen.Load() != 2 || before != 1 {
			t.Fatalf("%d answers were lost, %d unlocks seen, %d before the new hold: the fault did not happen", hit.hits.Load(), hit.seen.Load(), before)
		}
		if token := abToken(t, direct, "k"); token != again.Token() {
			t.Fatalf("the repeated unlock removed the new hold: token %d, want %d", token, again.Token())
		}
		abAlive(t, again)
		abUnlock(t, again)
	}
}

// Many unlocks at once share pipelines, of which one answer is lost.
func TestA3LostUnlockReplyInPipeline(t *testing.T) {
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), abDirect(t, server)
	c := abClient(t, proxy.Addr(), dlock.Config{DefaultTTL: 20 * time.Second, RetryInterval: 10 * time.Millisecond})
	abWarm(t, c)
	for i := range testenv.UnderStress(10, 100) {
		guards := make([]*dlock.Guard, 40)
		for j := range guards {
			guards[j] = abAcquire(t, c, fmt.Sprintf("k%d", j))
		}
		var hits, seen atomic.Int64
		proxy.Delay(time.Millisecond, time.Millisecond)
		proxy.Intercept(func(cmd []string) servers.Action {
			// Not of those that go alone, at first, but of one inside a pipeline.
			if abKindOf(cmd) == abReleasing && seen.Add(1) == int64(10+i%20) {
				hits.Add(1)
				return servers.DropReply
			}
			return servers.Forward
		})
		var wg sync.WaitGroup
		for _, g := range guards {
			wg.Go(func() {
				if err := g.Unlock(abCtx); err != nil {
					t.Errorf("unlock: %v", err)
				}
			})
		}
		wg.Wait()
		proxy.Heal()
		if hits.Load() != 1 || seen.Load() <= int64(len(guards)) {
			t.Fatalf("%d answers were lost, %d unlocks seen: the fault did not happen", hits.Load(), seen.Load())
		}
		if left := abLeft(t, direct); len(left) != 0 {
			t.Fatalf("left: %q", left)
		}
	}
}

// An unlock that comes after the lease leaves another's lock alone.
func TestA4UnlockAfterExpiry(t *testing.T) {
	for name, ttl := range map[string]time.Duration{
		"known":   300 * time.Millisecond, // the holder's own clock knows
		"unknown": time.Minute,            // only the server knows: its clock has jumped
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.Redis(t)
			proxy, direct := testenv.Proxy(t, server.Addr()), abDirect(t, server)
			a := abClient(t, proxy.Addr(), dlock.Config{})
			b := abClient(t, server.Addr(), dlock.Config{})
			abWarm(t, a)
			var released atomic.Int64
			proxy.Intercept(func(cmd []string) servers.Action {
				if abKindOf(cmd) == abReleasing {
					released.Add(1)
				}
				return servers.Forward
			})
			n := testenv.UnderStress(200, 1000)
			stale, fresh := make([]*dlock.Guard, n), make([]*dlock.Guard, n)
			type stored struct {
				value string
				end   time.Time
			}
			before := make([]stored, n)
			key := func(i int) string { return fmt.Sprintf("k%d", i) }
			for i := range n {
				stale[i] = abAcquire(t, a, key(i), dlock.WithTTL(ttl), dlock.WithoutRenewal())
				if name == "unknown" {
					direct.PExpire(abCtx, key(i), time.Millisecond)
				}
			}
			abElapse(500 * time.Millisecond)
			for i := range n {
				fresh[i] = abAcquire(t, b, key(i), dlock.WithTTL(time.Minute), dlock.WithoutRenewal(), dlock.WithWait(30*time.Second))
				before[i] = stored{abGet(t, direct, key(i)), time.Now().Add(abPTTL(t, direct, key(i)))}
			}
			for i := range n {
				abWant(t, stale[i].Unlock(abCtx), dlock.ErrOwnershipLost)
			}
			testenv.Eventually(t, 10*time.Second, "every unlock has reached the server", func() bool { return released.Load() >= int64(n) })
			if err := a.Close(); err != nil { // whatever it still wanted to do is done
				t.Error(err)
			}
			for i := range n {
				if v := abGet(t, direct, key(i)); v != before[i].value {
					t.Fatalf("the lock of another became %q, was %q", v, before[i].value)
				}
				if moved := time.Now().Add(abPTTL(t, direct, key(i))).Sub(before[i].end); moved.Abs() > testenv.UnderStress(10*time.Second, time.Second) {
					t.Fatalf("the lease of another moved by %v", moved)
				}
				abUnlock(t, fresh[i])
			}
		})
	}
}

// Calls whose context ends anywhere on the way leave nothing.
func TestA5CancelledContextLeavesNothing(t *testing.T) {
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), abDirect(t, server)
	proxy.DeliverAfterClose(true)
	const workers = 10
	var clients [workers]*dlock.Client
	for w := range clients {
		clients[w] = abClient(t, proxy.Addr(), dlock.Config{DefaultTTL: 20 * time.Second, RetryInterval: 5 * time.Millisecond})
		abWarm(t, clients[w])
	}
	var cancelled, acquired atomic.Int64
	var wg sync.WaitGroup
	for w, c := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(5, uint64(w)))
			for i := range testenv.UnderStress(30, 100) {
				if w == 0 {
					proxy.Delay(time.Duration(rng.IntN(25))*time.Millisecond, time.Duration(rng.IntN(25))*time.Millisecond)
				}
				key := fmt.Sprintf("k%d", w)
				if i%3 == 0 {
					key = "shared"
				}
				after := time.Duration(rng.IntN(60_000)) * time.Microsecond
				ctx, cancel := context.WithCancel(abCtx)
				stop := time.AfterFunc(after, cancel).Stop
				if i%2 == 0 { // with a deadline, too
					var end context.CancelFunc
					ctx, end = context.WithTimeout(ctx, after)
					stop = func() bool { end(); return true }
				}
				g, err := c.Acquire(ctx, key)
				switch {
				case err == nil:
					acquired.Add(1)
					<-ctx.Done()
					_ = g.Unlock(ctx) // with a context that is over
				case ctx.Err() != nil:
					cancelled.Add(1)
				default:
					t.Error(err)
				}
				stop()
				cancel()
			}
		})
	}
	wg.Wait()
	proxy.Delay(0, 0)
	testenv.Eventually(t, time.Second, "all keys are free", func() bool { return len(abLeft(t, direct)) == 0 })
	abElapse(300 * time.Millisecond)
	if left := abLeft(t, direct); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	if cancelled.Load() == 0 || acquired.Load() == 0 {
		t.Errorf("%d calls were cancelled, %d acquired: the fault did not happen", cancelled.Load(), acquired.Load())
	}
}

// No public method outlives its context on a link that is dead, however the
// context ends and whether or not the client of Redis heeds contexts itself.
func TestA6ContextOnDeadLink(t *testing.T) {
	t.Parallel()
	ends := map[string]func() (context.Context, context.CancelFunc){
		"deadline": func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(abCtx, 200*time.Millisecond)
		},
		"cancel": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(abCtx)
			time.AfterFunc(200*time.Millisecond, cancel)
			return ctx, cancel
		},
	}
	var wg sync.WaitGroup
	for _, heeds := range []bool{true, false} {
		for end, begin := range ends {
			e := newA6(t, fmt.Sprintf("heeds=%v, %s", heeds, end), heeds, begin)
			wg.Go(func() { e.run(t) })
		}
	}
	wg.Wait()
}

// An abA6 is a Client on a link of its own.
type abA6 struct {
	name  string
	begin func() (context.Context, context.CancelFunc)
	proxy *servers.Proxy
	c     *dlock.Client
	calls []abCall
}

type abCall struct {
	name string
	call func(context.Context) error
}

func newA6(t *testing.T, name string, heeds bool, begin func() (context.Context, context.CancelFunc)) *abA6 {
	t.Helper()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	c := abClientOf(t, &redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: heeds, ReadTimeout: time.Minute}, dlock.Config{DefaultTTL: time.Minute})
	admin, err := c.Admin()
	if err != nil {
		t.Fatal(err)
	}
	abWarm(t, c)
	g, h := abAcquire(t, c, "held"), abAcquire(t, c, "extended")
	if err := c.Lock(abCtx, "keyed"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Inspect(abCtx, "held"); err != nil {
		t.Fatal(err)
	}
	return &abA6{name, begin, proxy, c, []abCall{
		{"Lock", func(ctx context.Context) error { return c.Lock(ctx, "k") }},
		{"Guard.Unlock", g.Unlock},
		{"Admin.Inspect", func(ctx context.Context) error { _, err := admin.Inspect(ctx, "held"); return err }},
		{"TryLock", func(ctx context.Context) error { _, err := c.TryLock(ctx, "k"); return err }},
		{"Acquire", func(ctx context.Context) error { _, err := c.Acquire(ctx, "k"); return err }},
		{"TryAcquire", func(ctx context.Context) error { _, err := c.TryAcquire(ctx, "k"); return err }},
		{"Do", func(ctx context.Context) error { return c.Do(ctx, "k", func(context.Context) error { return nil }) }},
		{"Extend", func(ctx context.Context) error { return h.Extend(ctx, time.Minute) }},
		{"Unlock", func(ctx context.Context) error { return c.Unlock(ctx, "keyed") }},
		{"Admin.List", func(ctx context.Context) error { _, _, err := admin.List(ctx, "", "", 10); return err }},
		{"Admin.Evict", func(ctx context.Context) error { return admin.Evict(ctx, "held", g.Token()) }},
		{"Check", func(ctx context.Context) error { _, err := c.Check(ctx); return err }},
	}}
}

func (e *abA6) run(t *testing.T) {
	e.proxy.BlackHole(true)
	for _, call := range e.calls {
		ctx, cancel := e.begin()
		started := time.Now()
		err := call.call(ctx)
		took := time.Since(started)
		if over := took - 200*time.Millisecond; over > testenv.UnderStress(10*time.Second, 100*time.Millisecond) {
			t.Errorf("%s: %s outlived its context by %v", e.name, call.name, over.Round(time.Millisecond))
		}
		if err == nil || took < 150*time.Millisecond {
			t.Errorf("%s: %s on a dead link: %v after %v", e.name, call.name, err, took)
		}
		cancel()
	}
	// Close has no context. It gives up after two seconds, and must be back in three.
	started := time.Now()
	abWant(t, e.c.Close(), dlock.ErrUnknownOutcome)
	if took := time.Since(started); took > testenv.UnderStress(15*time.Second, 3*time.Second) {
		t.Errorf("%s: Close took %v, more than 3 s", e.name, took.Round(time.Millisecond))
	}
}

// Many calls are cut off on a pool of one connection: no answer to another call
// is ever met, and no call succeeds that did not acquire.
func TestA7CancelledCallsOnOneConnection(t *testing.T) {
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), abDirect(t, server)
	log := &abLog{}
	c := abClientOf(t, &redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true, PoolSize: 1},
		dlock.Config{DefaultTTL: 20 * time.Second, RetryInterval: 2 * time.Millisecond})
	abWarm(t, c)
	rng := rand.New(rand.NewPCG(7, 7))
	cancelled, acquired := 0, 0
	for i := range testenv.UnderStress(300, 2000) {
		proxy.Delay(0, time.Duration(rng.IntN(4))*time.Millisecond)
		key := fmt.Sprintf("k%d", i)
		ctx, cancel := context.WithTimeout(abCtx, time.Duration(rng.IntN(8000))*time.Microsecond)
		g, err := c.Acquire(ctx, key)
		cancel()
		log.note(err)
		if err != nil {
			cancelled++
			continue
		}
		acquired++
		proxy.Delay(0, 0)
		if token := abToken(t, direct, key); token != g.Token() {
			t.Fatalf("a false acquire: the server has token %d, the guard %d", token, g.Token())
		}
		log.note(g.Unlock(abCtx))
	}
	log.check(t)
	if cancelled == 0 || acquired == 0 {
		t.Errorf("%d calls were cut off, %d acquired: the fault did not happen", cancelled, acquired)
	}
}

// abLog looks for answers that belong to other calls.
type abLog struct{ foreign []error }

func (l *abLog) note(err error) {
	if errors.Is(err, redislock.ErrReply) || err != nil && strings.Contains(err.Error(), redislock.ErrReply.Error()) {
		l.foreign = append(l.foreign, err)
	}
}

func (l *abLog) check(t *testing.T) {
	t.Helper()
	if len(l.foreign) > 0 {
		t.Errorf("%d foreign answers, such as %v", len(l.foreign), l.foreign[0])
	}
}

// The answer to an earlier acquire comes in place of ours: it is not taken for
// ours, whether it grants or renews.
func TestA7ForeignReplyIsRefused(t *testing.T) {
	server := testenv.Redis(t)
	direct := abDirect(t, server)
	var swap abSwapper
	c := abClientOf(t, &redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, PoolSize: 1, Dialer: swap.dial},
		dlock.Config{DefaultTTL: 20 * time.Second})
	abWarm(t, c)
	for i := range testenv.UnderStress(50, 500) {
		a, b := fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)
		swap.keep()
		g := abAcquire(t, c, a) // its answer is kept
		taken, err := direct.SetNX(abCtx, b, "of somebody else", time.Minute).Result()
		if err != nil || !taken {
			t.Fatal(taken, err)
		}
		swap.play()
		ok, err := c.TryLock(abCtx, b) // and comes again as the answer to this
		if ok || !errors.Is(err, redislock.ErrReply) {
			t.Fatalf("the answer about another claim was taken for ours: %v, %v", ok, err)
		}
		if swap.played.Load() != int64(i+1) {
			t.Fatal("the fault did not happen")
		}
		abUnlock(t, g)
	}
}

// An abSwapper makes connections that can give an old answer instead of a new
// one, as a client does whose answers are out of step.
type abSwapper struct {
	mu      sync.Mutex
	mode    string
	kept    []byte
	waiting bool // for the answer to an acquire
	played  atomic.Int64
}

func (s *abSwapper) keep() { s.set("keep") }
func (s *abSwapper) play() { s.set("play") }

func (s *abSwapper) set(mode string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
}

func (s *abSwapper) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &abSwapConn{conn, s}, nil
}

type abSwapConn struct {
	net.Conn
	s *abSwapper
}

func (c *abSwapConn) Write(p []byte) (int, error) {
	c.s.mu.Lock()
	c.s.waiting = strings.Contains(string(p), "\x01b") && strings.Contains(string(p), `{"`) // an acquire; see abKindOf
	c.s.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *abSwapConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if !c.s.waiting || n == 0 || p[0] != '$' {
		return n, err
	}
	switch c.s.mode {
	case "keep":
		c.s.kept = slices.Clone(p[:n])
	case "play":
		n = copy(p, c.s.kept)
		c.s.played.Add(1)
	}
	c.s.mode, c.s.waiting = "", false
	return n, err
}
