package redislock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// cehChildAddr tells a child process where the server is.
const cehChildAddr = "REDISLOCK_CEH_ADDR"

// TestHelperProcessCEH is a process that waits ten times for a lock, says so,
// and is then killed. Without its environment it does nothing.
func TestHelperProcessCEH(t *testing.T) {
	addr := os.Getenv(cehChildAddr)
	if addr == "" {
		return
	}
	ttl, err := time.ParseDuration(os.Getenv(cehChildAddr + "_TTL"))
	cehCheck(t, err)
	c := cehNew(t, addr)
	for range 10 {
		cehAwait(t, c, "k", dlock.WithTTL(ttl))
	}
	fmt.Println("waiting")
	select {}
}

// cehGhosts starts a process with ten waiters for "k".
func cehGhosts(t *testing.T, addr string, ttl time.Duration) *os.Process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperProcessCEH$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), cehChildAddr+"="+addr, cehChildAddr+"_TTL="+ttl.String())
	out, err := cmd.StdoutPipe()
	cehCheck(t, err)
	cehCheck(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed: that is its error
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "waiting\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	return cmd.Process
}

// E1: ten dead waiters at the head of the queue cost one heartbeat, and not one
// each, whether their process is gone or only stopped, so that it still seems to
// listen.
func TestE1GhostHeads(t *testing.T) {
	t.Parallel()
	ttl := testenv.UnderStress(3*time.Second, 1500*time.Millisecond) // which is the heartbeat
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		for range testenv.UnderStress(1, 20) {
			server := testenv.Redis(t)
			a, b := cehNew(t, server.Addr()), cehNew(t, server.Addr())
			g := cehAcquire(t, a, "k", dlock.WithTTL(ttl))
			ghosts := cehGhosts(t, server.Addr(), ttl)
			var living []<-chan cehGot
			for range 10 {
				living = append(living, cehAwait(t, b, "k", dlock.WithTTL(ttl)))
			}
			if n := cehQueued(t, a, "k"); n != 20 {
				t.Fatalf("%d wait", n)
			}
			cehCheck(t, ghosts.Signal(sig))
			began := time.Now()
			cehUnlock(t, g)
			next := cehGrant(t, living[0], time.Minute)
			took := next.at.Sub(began)
			if most := testenv.UnderStress(4*ttl, ttl+ttl/3+200*time.Millisecond); took > most {
				t.Errorf("%v: the first living waiter had to wait %v, more than %v", sig, took, most)
			}
			t.Logf("%v: %v", sig, took)
			cehUnlock(t, next.guard)
			for _, ch := range living[1:] {
				cehUnlock(t, cehGrant(t, ch, 30*time.Second).guard)
			}
		}
	}
}

// E2: nobody who waits for many heartbeats is taken for dead, or loses its place.
func TestE2PatientWaiters(t *testing.T) {
	t.Parallel()
	ttl := testenv.UnderStress(3*time.Second, 600*time.Millisecond)
	server := testenv.Redis(t)
	holder := cehNew(t, server.Addr())
	g := cehAcquire(t, holder, "k", dlock.WithTTL(ttl))
	var waiters []<-chan cehGot
	for range 5 {
		waiters = append(waiters, cehAwait(t, cehNew(t, server.Addr()), "k", dlock.WithTTL(ttl)))
	}
	began := time.Now()
	<-time.After(testenv.UnderStress[time.Duration](4, 10) * ttl)
	cehAlive(t, g)
	waited := time.Since(began)
	claims := cehInspect(t, holder, "k")
	if len(claims) != 6 {
		t.Fatalf("claims %v", claims)
	}
	for _, cl := range claims {
		if cl.Age < waited {
			t.Errorf("filed again: %v, %v old", cl, cl.Age)
		}
	}
	last := g.Token()
	cehUnlock(t, g)
	for _, ch := range waiters { // each in its turn, since each unlocks only then
		next := cehGrant(t, ch, 30*time.Second).guard
		if next.Token() <= last {
			t.Errorf("token %d after %d", next.Token(), last)
		}
		last = next.Token()
		cehUnlock(t, next)
	}
}

// cehHandOvers lets two clients hand a lock to and fro, and returns how long each
// time took from before Unlock.
func cehHandOvers(t *testing.T, a, b *dlock.Client, key string, n int) []time.Duration {
	t.Helper()
	var took []time.Duration
	g := cehAcquire(t, a, key)
	start := time.Now()
	for i := range n {
		if time.Since(start) > testenv.UnderStress(time.Minute, time.Duration(n)*50*time.Millisecond) {
			break // hopeless
		}
		next := []*dlock.Client{b, a}[i%2]
		ch := cehAwait(t, next, key)
		began := time.Now()
		cehUnlock(t, g)
		got := cehGrant(t, ch, time.Minute)
		took, g = append(took, got.at.Sub(began)), got.guard
	}
	cehUnlock(t, g)
	return took
}

func cehQuantile(took []time.Duration, q float64) time.Duration {
	slices.Sort(took)
	return took[int(q*float64(len(took)-1))]
}

// E3: pushes are hints. Without any, a hand-over takes a second at most.
func TestE3LostPushes(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	proxy.DropMessages(true)
	sub := cehDial(t, proxy.Addr()).Subscribe(t.Context(), "probe")
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil { // it stands
		t.Fatal(err)
	}
	if n := cehDial(t, server.Addr()).Publish(t.Context(), "probe", "x").Val(); n != 1 {
		t.Fatalf("%d heard the probe", n)
	}
	if msg, err := sub.ReceiveTimeout(t.Context(), 100*time.Millisecond); err == nil {
		t.Fatalf("a message came through: %v", msg)
	}
	a, b := cehNew(t, proxy.Addr()), cehNew(t, proxy.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(testenv.UnderStress(30, 240))*time.Second)
	defer cancel()
	lanes, each := 10, testenv.UnderStress(4, 100)
	results := make(chan []time.Duration, lanes)
	for i := range lanes {
		go func() {
			g, err := a.Acquire(ctx, fmt.Sprint("k", i))
			var took []time.Duration
			for n := 0; n < each && err == nil; n++ {
				var got cehGot
				ch := make(chan cehGot, 1)
				next := []*dlock.Client{b, a}[n%2]
				go func() {
					g, err := next.Acquire(ctx, fmt.Sprint("k", i))
					ch <- cehGot{g, err, time.Now()}
				}()
				<-time.After(time.Duration(rand.IntN(300)) * time.Millisecond) // any moment of its heartbeat
				began := time.Now()
				_ = g.Unlock(t.Context())
				got = <-ch
				g, err = got.guard, got.err
				took = append(took, got.at.Sub(began))
			}
			if err != nil {
				t.Error(err)
			} else {
				_ = g.Unlock(t.Context())
			}
			results <- took
		}()
	}
	var all []time.Duration
	for range lanes {
		all = append(all, <-results...)
	}
	if len(all) != lanes*each {
		t.Fatalf("%d of %d hand-overs", len(all), lanes*each)
	}
	if worst := cehQuantile(all, 1); worst > time.Second+cehSlack {
		t.Errorf("a hand-over took %v", worst)
	}
	t.Logf("%d hand-overs: median %v, worst %v", len(all), cehQuantile(all, .5), cehQuantile(all, 1))
}

// E3: with pushes it takes no time, and without any about a second. The machine may be busy
// with others: one round of three must meet the mark.
func TestE3Pushes(t *testing.T) {
	server := testenv.Redis(t)
	a, b := cehNew(t, server.Addr()), cehNew(t, server.Addr())
	var took time.Duration
	quantile := testenv.UnderStress(.5, .99)
	for range 3 {
		took = cehQuantile(cehHandOvers(t, a, b, "k", testenv.UnderStress(150, 1000)), quantile)
		t.Logf("%.0f of 100 take at most %v", 100*quantile, took)
		if took <= testenv.UnderStress(200*time.Millisecond, 20*time.Millisecond) {
			return
		}
	}
	t.Errorf("%.0f of 100 take up to %v", 100*quantile, took)
}

// E4: a hand-over wakes one waiter, whatever the length of the queue.
func TestE4Herd(t *testing.T) {
	const clients, each = 8, 25
	hands := int64(testenv.UnderStress(500, 5000))
	server := testenv.Redis(t)
	direct := cehDial(t, server.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	gate := cehNew(t, server.Addr())
	g := cehAcquire(t, gate, "k")
	var wg sync.WaitGroup
	var count atomic.Int64
	for range clients {
		c := cehNew(t, server.Addr())
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
	testenv.Eventually(t, 20*time.Second, "all wait", func() bool { return cehQueued(t, gate, "k") == clients*each })
	sent := func() int { // what clients send; commands inside scripts are no round trips
		n := 0
		for _, name := range []string{"evalsha", "eval", "subscribe", "unsubscribe", "wait", "multi", "exec"} {
			n += cehCalls(t, direct, name)
		}
		return n
	}
	usage := func() time.Duration {
		var u syscall.Rusage
		cehCheck(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	busy, began := usage(), time.Now()
	<-time.After(1500 * time.Millisecond)
	idle := float64(usage()-busy) / float64(time.Since(began))
	before := sent()
	cehUnlock(t, g)
	<-ctx.Done()
	perHand := float64(sent()-before) / float64(count.Load())
	wg.Wait()
	t.Logf("%.2f commands per hand-over, %.1f %% of a CPU while %d wait", perHand, 100*idle, clients*each)
	if perHand > 10 {
		t.Errorf("%.1f commands per hand-over", perHand)
	}
	if idle > .05 {
		t.Errorf("%.1f %% of a CPU is used for waiting", 100*idle)
	}
}

// E5: strictly in order of arrival: whoever the server shows first in the queue
// is the next to get the lock.
func TestE5Order(t *testing.T) {
	const clients = 8
	total := int64(testenv.UnderStress(1000, 10_000))
	server := testenv.Redis(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var count, predicted, inversions atomic.Int64
	var expect string // guarded by the lock
	shares := make([]int64, clients)
	for i := range clients {
		c := cehNew(t, server.Addr())
		wg.Go(func() {
			for n := 0; count.Load() < total; n++ {
				me := fmt.Sprintf("%d.%d", i, n)
				g, err := c.Acquire(ctx, "k", dlock.WithInfo(dlock.Info{Purpose: me}))
				if err != nil {
					t.Error(err)
					return
				}
				count.Add(1)
				shares[i]++
				if expect != "" {
					predicted.Add(1)
					if expect != me {
						inversions.Add(1)
					}
				}
				expect = ""
				if claims := cehInspect(t, c, "k"); len(claims) > 1 && claims[1].Phase == driver.Queued {
					expect = claims[1].Info.Purpose
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
	const workers = 25
	total := int64(testenv.UnderStress(1000, 5000))
	server := testenv.Redis(t)
	direct := cehDial(t, server.Addr())
	clients := []*dlock.Client{cehNew(t, server.Addr()), cehNew(t, server.Addr()), cehNew(t, server.Addr())}
	var wg sync.WaitGroup
	var calls, cancelled, acquired atomic.Int64
	for i := range workers {
		rng, c := rand.New(rand.NewPCG(6, uint64(i))), clients[i%len(clients)]
		wg.Go(func() {
			for calls.Add(1) <= total {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(40_000))*time.Microsecond)
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
	testenv.Eventually(t, time.Second, "nothing is left", func() bool { return len(cehLeft(t, direct)) == 0 })
	<-time.After(100 * time.Millisecond) // nor comes back
	if left := cehLeft(t, direct); len(left) != 0 {
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
	server := testenv.Redis(t)
	direct := cehDial(t, server.Addr())
	rng := rand.New(rand.NewPCG(8, 8))
	var refused, took atomic.Int64
	for range testenv.UnderStress(100, 1000) {
		c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(direct)))
		cehCheck(t, err)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				for {
					_, err := c.Acquire(t.Context(), fmt.Sprintf("k%d", i%2)) // the first to hold it keeps it
					if err == nil {
						took.Add(1)
						continue
					}
					cehExpect(t, err, dlock.ErrClosed)
					refused.Add(1)
					return
				}
			})
		}
		<-time.After(time.Duration(rng.IntN(6000)) * time.Microsecond)
		began := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > testenv.UnderStress(15*time.Second, 3*time.Second) {
			t.Errorf("Close took %v", d)
		}
		wg.Wait()
		cehWant(t, c.Lock(t.Context(), "k0"), dlock.ErrClosed)
		if left := cehLeft(t, direct); len(left) != 0 {
			t.Fatalf("left: %q", left)
		}
	}
	if took.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d acquired, %d refused: the test does not bite", took.Load(), refused.Load())
	}
}

// cehExpect is cehWant for goroutines of a test.
func cehExpect(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}

// E8: closing when the server does not answer takes no longer than three
// seconds, and says what is left; even if the subscription does not stand yet.
func TestE8CloseBlackHole(t *testing.T) {
	t.Parallel()
	for name, subscribed := range map[string]bool{"Subscribed": true, "Subscribing": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.Redis(t)
			proxy := testenv.Proxy(t, server.Addr())
			direct := cehDial(t, server.Addr())
			c, other := cehNew(t, proxy.Addr()), cehNew(t, server.Addr())
			g := cehAcquire(t, c, "k")
			var filed, swallowed atomic.Int64
			if !subscribed { // the connection that is opened once a claim waits is greeted by nobody
				acquire := redislock.Scripts("acquire")
				proxy.Intercept(func(cmd []string) servers.Action {
					switch {
					case cmd[0] == "EVALSHA" && acquire[cmd[1]] != "":
						filed.Add(1)
					case cmd[0] == "HELLO" && filed.Load() > 0:
						swallowed.Add(1)
						return servers.Swallow
					}
					return servers.Forward
				})
			}
			waiter := make(chan error, 1)
			go func() { _, err := c.Acquire(t.Context(), "k"); waiter <- err }()
			testenv.Eventually(t, time.Minute, "one waits", func() bool { return cehQueued(t, other, "k") == 1 })
			testenv.Eventually(t, time.Minute, "it subscribes", func() bool {
				return swallowed.Load() > 0 || len(direct.PubSubChannels(t.Context(), "dlock:*").Val()) > 0
			})
			proxy.BlackHole(true)
			began := time.Now()
			cehWant(t, c.Close(), dlock.ErrUnknownOutcome)
			if d := time.Since(began); d > testenv.UnderStress(15*time.Second, 3*time.Second) {
				t.Errorf("Close took %v", d)
			}
			cehWant(t, <-waiter, dlock.ErrClosed)
			cehWant(t, context.Cause(g.Context()), dlock.ErrClosed)
			if direct.Exists(t.Context(), "k").Val() != 1 {
				t.Error("the release came through: the fault did not happen")
			}
		})
	}
}

// A cehCounter counts the lock commands that a client tries to send.
type cehCounter struct{ commands atomic.Int64 }

func (*cehCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *cehCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			h.commands.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (h *cehCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.commands.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// E9: with the server down, or refusing, nobody spins.
func TestE9ServerDown(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]bool{"Down": false, "Refusing": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const waiters, span = 5, 2 * time.Second
			server := testenv.Redis(t)
			client, hook := cehDial(t, server.Addr()), new(cehCounter)
			client.AddHook(hook)
			c := cehLocks(t, redislock.New(client), dlock.Config{})
			holder := cehAcquire(t, cehNew(t, server.Addr()), "k", dlock.WithTTL(time.Minute))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			errs := make(chan error, 2*waiters)
			wait := func(key string) { go func() { errs <- c.Lock(ctx, key) }() }
			wait("k")
			for range waiters - 1 { // goroutines of one client
				go func() { _, err := c.Acquire(ctx, "k"); errs <- err }()
			}
			testenv.Eventually(t, 5*time.Second, "they wait", func() bool { return cehQueued(t, c, "k") == waiters })
			if refuse {
				admin := cehDial(t, server.Addr())
				cehCheck(t, admin.ConfigSet(ctx, "min-replicas-to-write", "1").Err())
			} else {
				cehCheck(t, server.Kill())
			}
			for i := range waiters { // these have not even been filed
				wait(fmt.Sprint("new", i))
			}
			before := hook.commands.Load()
			<-time.After(span)
			rate := float64(hook.commands.Load()-before) / span.Seconds() / (2 * waiters)
			t.Logf("%.1f attempts per second and waiter", rate)
			if rate > 20 || rate == 0 {
				t.Errorf("%.1f attempts per second and waiter", rate)
			}
			cancel()
			for range 2 * waiters {
				if err := <-errs; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
			if refuse { // so that closing need not wait
				cehCheck(t, cehDial(t, server.Addr()).ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
				cehUnlock(t, holder)
				return
			}
			cehCheck(t, server.Restart(t.Context(), false))
		})
	}
}
