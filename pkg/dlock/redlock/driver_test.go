package redlock_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// These tests call the driver directly: the engine retries and cleans up again, which would hide
// what they test.

func (s *set) open(tb testing.TB, opts ...redlock.Option) driver.Driver {
	tb.Helper()
	d, err := redlock.New(s.clients, opts...).Open(driver.Options{Logger: quietLog})
	check(tb, err)
	tb.Cleanup(func() { _ = d.Close() })
	return d
}

// claim returns the n-th claim on the key k, with a lease that does not expire during the test, held or queued.
func claim(n int) driver.Ref {
	return driver.Ref{Key: "k", ID: fmt.Sprintf("%032x", n), TTL: time.Minute, QueueTTL: time.Minute}
}

func submit(tb testing.TB, d driver.Driver, r driver.Request, phase driver.Phase) {
	tb.Helper()
	st, err := d.Acquire(tb.Context(), r)
	if err != nil || st.Phase != phase {
		tb.Fatalf("submitting: %v, %v, want %v", st.Phase, err, phase)
	}
}

// phase renews a claim, and returns its phase.
func phase(tb testing.TB, d driver.Driver, r driver.Ref) driver.Phase {
	tb.Helper()
	states, err := d.Renew(tb.Context(), []driver.Ref{r})
	check(tb, err)
	return states[0].Phase
}

func release(tb testing.TB, d driver.Driver, r driver.Ref, found driver.Phase) {
	tb.Helper()
	st, err := d.Release(tb.Context(), r)
	if err != nil || st.Phase != found {
		tb.Fatalf("releasing: found %v, %v, want %v", st.Phase, err, found)
	}
}

// awaitPush waits until a driver is asked to renew a claim.
func awaitPush(tb testing.TB, d driver.Driver, r driver.Ref, what string) {
	tb.Helper()
	for end := time.After(beforeLease); ; {
		select {
		case ev := <-d.Events():
			if ev.ID == r.ID {
				return
			}
		case <-end:
			tb.Fatalf("never told: %s", what)
		}
	}
}

// The nodes notify a waiter of another process that the lock is free. It does not ask by itself
// here, so nothing else could notify it.
func TestWaiterIsNotified(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	holder, waiter := s.open(t, patient), s.open(t, patient)
	for i := range testenv.UnderStress(3, 100) {
		held, waits := claim(2*i), claim(2*i+1)
		submit(t, holder, driver.Request{Ref: held}, driver.Held)
		submit(t, waiter, driver.Request{Ref: waits, Wait: true}, driver.Queued)
		if i == 0 {
			awaitPush(t, waiter, waits, "that a majority is subscribed")
		}
		if p := phase(t, waiter, waits); p != driver.Queued {
			t.Fatalf("the waiter is %v", p)
		}
		release(t, holder, held, driver.Held)
		awaitPush(t, waiter, waits, "that the lock is free")
		testenv.Eventually(t, patience, "the waiter has it", func() bool { return phase(t, waiter, waits) == driver.Held })
		release(t, waiter, waits, driver.Held)
	}
}

// waitsAtAll returns a driver whose claim waits, and which hears all nodes and has nothing to say.
func (s *set) waitsAtAll(t *testing.T) (holder, waiter driver.Driver) {
	t.Helper()
	holder, waiter = s.open(t, patient), s.open(t, patient)
	submit(t, holder, driver.Request{Ref: claim(0)}, driver.Held)
	submit(t, waiter, driver.Request{Ref: claim(1), Wait: true}, driver.Queued)
	awaitPush(t, waiter, claim(1), "that a majority is subscribed")
	testenv.Eventually(t, patience, "all nodes are heard", func() bool { return redlock.Listens(waiter, claim(1).Key) == len(s.proxies) })
	select {
	case ev := <-waiter.Events():
		t.Fatalf("told without a reason: %+v", ev)
	default:
	}
	return holder, waiter
}

// When a majority of the broken subscriptions is established again, the waiter is asked to renew:
// messages in between were missed.
func TestBrokenSubscriptionsWakeTheWaiter(t *testing.T) {
	s := start(t, 3)
	_, waiter := s.waitsAtAll(t)
	for _, p := range s.proxies {
		p.Cut()
	}
	awaitPush(t, waiter, claim(1), "that the nodes are subscribed again")
}

// The connections to all nodes are dead, and only one breaks. The others still count, but the waiter is asked to renew once
// that one is established again: the message that the lock is free was missed.
func TestOneBrokenSubscriptionWakesTheWaiter(t *testing.T) {
	s := start(t, 3)
	holder, waiter := s.waitsAtAll(t)
	for _, p := range s.proxies[1:] {
		p.DropMessages(true)
	}
	gate, comes := make(chan struct{}), make(chan struct{})
	open, came := sync.OnceFunc(func() { close(gate) }), sync.OnceFunc(func() { close(comes) })
	t.Cleanup(open)
	s.proxies[0].Intercept(func(cmd []string) faultproxy.Action {
		if cmd[0] == "SUBSCRIBE" {
			came()
			<-gate
		}
		return faultproxy.Forward
	})
	s.proxies[0].Cut()
	select {
	case <-comes:
	case <-time.After(patience):
		t.Fatal("the driver does not subscribe again")
	}
	release(t, holder, claim(0), driver.Held)
	soon(t, "all nodes have told that the lock is free", func() bool { return s.holders(t, claim(0).Key) == 0 })
	open()
	awaitPush(t, waiter, claim(1), "that the node is subscribed again")
}

// A node whose connections break again and again does not make the waiter ask all nodes each time, whether a majority is
// connected without it or not.
func TestFlappingSubscriptionSparesTheNodes(t *testing.T) {
	for name, down := range map[string]bool{"all others are connected": false, "another one is down": true} {
		t.Run(name, func(t *testing.T) {
			s := start(t, 3)
			_, waiter := s.waitsAtAll(t)
			heard := len(s.proxies)
			if down {
				heard--
				s.proxies[2].Refuse(true)
				s.proxies[2].Cut()
			}
			pushes := 0
			took := flap(t, s.proxies[0], func() bool {
				select {
				case <-waiter.Events():
					pushes++
				default:
				}
				return redlock.Listens(waiter, claim(1).Key) == heard
			})
			if most := 8 * (2 + int(took/time.Second)); pushes > most {
				t.Errorf("asked to renew %d times in %v", pushes, took)
			}
		})
	}
}

// flap breaks the connections to a node for two seconds, each time when the driver is subscribed. A connection that lasts for a second
// makes up to eight more possible in the next one.
func flap(t *testing.T, p *faultproxy.Proxy, subscribed func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for time.Since(began) < 2*time.Second {
		testenv.Eventually(t, patience, "the driver subscribes again", subscribed)
		p.Cut()
	}
	return time.Since(began)
}

// A gate keeps the first release of the lock k from a node, and counts all releases.
type gate struct {
	opened  chan struct{}
	arrived atomic.Int64
	once    sync.Once
}

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// shut makes the first release wait before a node until the gate opens, at the latest when the test
// ends. If all releases waited, the node would seem silent and not be filled.
func (s *set) shut(tb testing.TB, node int) *gate {
	g := &gate{opened: make(chan struct{})}
	tb.Cleanup(g.open)
	s.proxies[node].Intercept(func(cmd []string) faultproxy.Action {
		if calls(cmd, "release", "k") && g.arrived.Add(1) == 1 {
			<-g.opened
		}
		return faultproxy.Forward
	})
	return g
}

// A waiting claim makes many rounds. If the cleanup of a lost round arrives late, it leaves what a
// later round has stored and counted.
func TestLateCleanUpSparesLaterRounds(t *testing.T) {
	s := start(t, 3)
	d := s.open(t, patient)
	submit(t, d, driver.Request{Ref: claim(0)}, driver.Held) // all nodes know the scripts
	release(t, d, claim(0), driver.Held)
	for i := 1; i <= testenv.UnderStress(3, 40); i++ {
		late := s.shut(t, 2)
		for _, c := range s.direct[:2] {
			check(t, c.Set(t.Context(), "k", "another's", time.Minute).Err())
		}
		submit(t, d, driver.Request{Ref: claim(i), Wait: true}, driver.Queued) // stored on node 2, and lost
		testenv.Eventually(t, patience, "cleanup is on its way", func() bool { return late.arrived.Load() > 0 })
		for _, c := range s.direct[:2] {
			check(t, c.Del(t.Context(), "k").Err())
		}
		testenv.Eventually(t, patience, "a later round wins", func() bool { return phase(t, d, claim(i)) == driver.Held })
		testenv.Eventually(t, patience, "all nodes have it", func() bool { // at a renewal, if the node seemed silent
			return phase(t, d, claim(i)) == driver.Held && s.isOnAll(t, "k")
		})
		was := s.scripts(t, 2)
		late.open()
		testenv.Eventually(t, patience, "cleanup arrives", func() bool { return s.scripts(t, 2) > was })
		if v := s.stored(t, 2, "k"); !strings.HasPrefix(v, claim(i).ID) {
			t.Errorf("cleanup of a lost round took the lock from a node, which has %q", v)
		}
		s.heal()
		release(t, d, claim(i), driver.Held)
		testenv.Eventually(t, patience, "nothing is left", func() bool { return len(s.left(t)) == 0 })
	}
}

// A node that received a call late may show an ended claim as waiting. A release of it must not
// report that there was something to release: Unlock would call that a success.
func TestReleaseIgnoresWhatIsOnlyShown(t *testing.T) {
	s := start(t, 3)
	d := s.open(t, patient)
	shown := func(r driver.Ref) {
		t.Helper()
		base, _ := redisnode.Siblings("k")
		for _, c := range s.direct {
			check(t, c.HSet(t.Context(), base+redisnode.Separator+"w", r.ID, "9999999999999999 1.1 1 - {}").Err())
		}
	}
	shown(claim(1))
	release(t, d, claim(1), driver.Gone)

	submit(t, d, driver.Request{Ref: claim(2)}, driver.Held)
	shown(claim(2))
	for _, c := range s.direct {
		check(t, c.Del(t.Context(), "k").Err())
	}
	release(t, d, claim(2), driver.Gone)
	testenv.Eventually(t, patience, "nothing is left", func() bool { return len(s.left(t)) == 0 })
}

// scripts returns how many scripts a node has run.
func (s *set) scripts(tb testing.TB, node int) int {
	tb.Helper()
	var n int
	raw, err := s.direct[node].Info(tb.Context(), "commandstats").Result()
	check(tb, err)
	_, after, _ := strings.Cut(raw, "cmdstat_evalsha:calls=")
	_, err = fmt.Sscanf(after, "%d", &n)
	check(tb, err)
	return n
}

// Cleanup does not give up: a node that is unreachable for a while has no leftovers a second after
// it is back.
func TestCleanupOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	d := s.open(t, redlock.WithNodeTimeout(3*time.Second)) // cleanup fails three times
	for i := range testenv.UnderStress(1, 20) {
		for _, c := range s.direct[:2] {
			check(t, c.Set(t.Context(), "k", "another's", time.Minute).Err())
		}
		var lost atomic.Int64
		s.proxies[2].Intercept(func(cmd []string) faultproxy.Action {
			if calls(cmd, "release", "k") {
				lost.Add(1)
				return faultproxy.Swallow
			}
			return faultproxy.Forward
		})
		submit(t, d, driver.Request{Ref: claim(i)}, driver.Gone)
		testenv.Eventually(t, patience, "cleanup has failed three times", func() bool { return lost.Load() >= 3 })
		if s.stored(t, 2, "k") == "" {
			t.Fatal("the fault did not happen: nothing was left behind")
		}
		s.heal()
		soon(t, "nothing is left", func() bool { return s.stored(t, 2, "k") == "" })
	}
}
