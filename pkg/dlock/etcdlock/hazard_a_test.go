package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// Answers to a successful acquire are lost, 1 to 5 times in a row: the call
// succeeds once, with one claim and one token.
func TestA1LostAcquireReplies(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	c := abClient(t, abVia(proxy), dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond})
	abWarm(t, c)
	for i := range testenv.UnderStress(30, 200) {
		key, lose := fmt.Sprintf("k%d", i), i%5+1
		was, before := abNote(proxy), abRevision(t, direct)
		proxy.DropGRPC(abTxn, lose)
		g := abAcquire(t, c, key)
		if was.broken() < lose || was.since(abTxn) <= lose {
			t.Fatalf("%d connections broke, %d calls were made: %d answers were to be lost", was.broken(), was.since(abTxn), lose)
		}
		if line := abLine(t, direct, key); len(line) != 1 || line[0].CreateRevision != g.Token() {
			t.Fatalf("the guard has token %d, and the server: %v", g.Token(), line)
		}
		if writes := abRevision(t, direct) - before; writes != 1 {
			t.Fatalf("%d writes for one lock: it was granted again", writes)
		}
		abUnlock(t, g)
	}
	if left := abLeft(t, direct); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// Nothing comes back any more: the outcome is unknown, not "busy", and the key is
// free soon after the network has healed, not when its lease of a minute ends.
func TestA1UnknownOutcomeIsCleanedUp(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	c := abClient(t, abVia(proxy), dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond, MaxRetries: 2})
	other := abClient(t, server.Endpoint(), dlock.Config{})
	abWarm(t, c)
	calls := []func(string) error{
		func(key string) error { return c.Lock(abCtx, key) },
		func(key string) error { _, err := c.TryLock(abCtx, key); return err },
		func(key string) error { _, err := c.Acquire(abCtx, key, dlock.WithoutRenewal()); return err },
		func(key string) error { _, err := c.TryAcquire(abCtx, key); return err },
	}
	for i := range testenv.UnderStress(8, 60) {
		key, attempts := fmt.Sprintf("k%d", i), 3-i%2*2 // one that waits is repeated
		was := abNote(proxy)
		proxy.DropGRPC(abTxn, attempts)
		proxy.HoldGRPC(abTxn, 1000) // clean-up does not get through either
		err := calls[i%len(calls)](key)
		abWant(t, err, dlock.ErrUnknownOutcome)
		if err == nil || errors.Is(err, dlock.ErrLockHeldByOther) {
			t.Fatalf("a lost answer was told as %v", err)
		}
		testenv.Eventually(t, patience, "clean-up is tried", func() bool { return was.since(abTxn) > attempts })
		if len(abLine(t, direct, key)) != 1 || was.broken() < attempts {
			t.Fatal("the fault did not happen: nothing was left behind")
		}
		if i%4 < 2 {
			proxy.Cut() // the clean-up that is on its way is lost
		}
		proxy.Heal()
		abFree(t, direct, key, "the key is free after the network has healed", testenv.UnderStress(beforeLease, time.Second))
		if ok, err := other.TryLock(abCtx, key); !ok || err != nil {
			t.Errorf("another cannot lock it: %v, %v", ok, err)
		}
	}
}

// The same when nobody listens for some seconds. gRPC waits longer and longer then
// before it connects again, which must not keep clean-up waiting.
func TestA1CleanUpAfterOutage(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	var proxies []*servers.Proxy
	var wg sync.WaitGroup
	for i := range testenv.UnderStress(5, 20) {
		proxy := testenv.Proxy(t, server.Addr())
		c := abClient(t, abVia(proxy), dlock.Config{DefaultTTL: time.Minute, MaxRetries: 1})
		abWarm(t, c)
		proxies = append(proxies, proxy)
		proxy.DropGRPC(abTxn, 1)
		proxy.Refuse(true)
		wg.Go(func() { abWant(t, c.Lock(abCtx, fmt.Sprintf("k%d", i)), dlock.ErrUnknownOutcome) })
	}
	wg.Wait()
	abElapse(4 * time.Second)
	if left := abLeft(t, direct); len(left) != len(proxies) {
		t.Fatalf("the fault did not happen: left are %q", left)
	}
	for _, proxy := range proxies {
		proxy.Heal()
	}
	healed := testenv.UnderStress(beforeLease, time.Second)
	testenv.Eventually(t, healed, "all keys are free after the network has healed", func() bool { return len(abLeft(t, direct)) == 0 })
}

// Clean-up overtakes the attempt, which arrives late and must find its ID barred:
// one on a free key, with and without waiting and with a lease of its own, and one
// that queues behind others.
func TestA2CleanUpOvertakesAcquire(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	c := abClient(t, abVia(proxy), dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond})
	abWarm(t, c)
	holder := abAcquire(t, abClient(t, server.Endpoint(), dlock.Config{DefaultTTL: time.Hour}), "busy")
	a2 := abA2{server, proxy, direct, c}
	for i := range testenv.UnderStress(24, 200) {
		key := fmt.Sprintf("k%d", i)
		switch i % 4 {
		case 0:
			a2.run(t, key, func(ctx context.Context) error { return c.Lock(ctx, key) })
		case 1:
			a2.run(t, key, func(ctx context.Context) error { _, err := c.TryAcquire(ctx, key); return err })
		case 2:
			a2.run(t, key, func(ctx context.Context) error { _, err := c.Acquire(ctx, key, dlock.WithoutRenewal()); return err })
		case 3:
			a2.wait(t, "busy") // so that the Client knows that one has to
			a2.run(t, "busy", func(ctx context.Context) error { return c.Lock(ctx, "busy") })
		}
	}
	abElapse(2 * time.Second)
	abUnlock(t, holder)
	testenv.Eventually(t, beforeLease, "no key is left", func() bool { return len(abLeft(t, direct)) == 0 })
}

// An abA2 is a Client whose calls are held up.
type abA2 struct {
	server *servers.Etcd
	proxy  *servers.Proxy
	direct *clientv3.Client
	c      *dlock.Client
}

// run makes a call that is given up, lets clean-up pass, and then lets it arrive.
func (a2 *abA2) run(t *testing.T, key string, call func(context.Context) error) {
	t.Helper()
	stored := len(abLine(t, a2.direct, key))
	was, handled := abNote(a2.proxy), abHandled(t, a2.server)
	land := a2.proxy.HoldGRPC(abTxn, 1)
	ctx, cancel := context.WithCancel(abCtx)
	failed := make(chan error, 1)
	go func() { failed <- call(ctx) }()
	testenv.Eventually(t, patience, "the attempt is on its way", func() bool { return was.since(abTxn) == 1 })
	cancel()
	abWant(t, <-failed, context.Canceled, dlock.ErrUnknownOutcome)
	testenv.Eventually(t, patience, "clean-up is carried out", func() bool { return abHandled(t, a2.server) > handled })
	if len(abLine(t, a2.direct, key)) != stored {
		t.Fatal("the attempt was not late: the fault did not happen")
	}
	handled = abHandled(t, a2.server)
	land()
	testenv.Eventually(t, patience, "the attempt arrives", func() bool { return abHandled(t, a2.server) > handled })
	if line := abLine(t, a2.direct, key); len(line) != stored {
		t.Errorf("an attempt that came after its clean-up is stored: %s", line[stored].Key)
	}
}

// wait waits for a key that is held, and gives up.
func (a2 *abA2) wait(t *testing.T, key string) {
	t.Helper()
	ctx, cancel := context.WithCancel(abCtx)
	failed := make(chan error, 1)
	go func() { failed <- a2.c.Lock(ctx, key) }()
	testenv.Eventually(t, patience, "somebody waits", func() bool { return len(abLine(t, a2.direct, key)) == 2 })
	cancel()
	abWant(t, <-failed, context.Canceled)
	testenv.Eventually(t, patience, "nobody waits", func() bool { return len(abLine(t, a2.direct, key)) == 1 })
}

// The answer to an unlock is lost: the unlock is a success all the same, the next
// waiter has the key at once, whether it is of the same Client or of another, and
// the repetition does not touch it.
func TestA3LostUnlockReply(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	c := abClient(t, abVia(proxy), dlock.Config{DefaultTTL: time.Minute, RetryInterval: 10 * time.Millisecond})
	other := abClient(t, server.Endpoint(), dlock.Config{DefaultTTL: time.Minute})
	watcher, metronome := abWatch(t, direct), testenv.StartMetronome(t)
	alone, _ := abReleases(t, c, proxy)
	var hits [2]int
	n := testenv.UnderStress(30, 200)
	var longest time.Duration
	for i := range n {
		g := abAcquire(t, c, "k")
		own := abLine(t, direct, "k")[0]
		next, path := c, abTxn
		if i%2 == 1 {
			next, path = other, alone
		}
		waiter := abAwait(t, next, direct, "k")
		was := abNote(proxy)
		proxy.DropGRPC(path, 1)
		if path != alone { // a Client may not know yet that it waits for itself
			proxy.DropGRPC(alone, 1)
		}
		if err := g.Unlock(abCtx); err != nil {
			t.Fatalf("unlock: %v", err)
		}
		proxy.Heal()
		if was.broken() > 0 && was.since(abWrites...) > 1 {
			hits[i%2]++
		}
		got := <-waiter
		if got.g == nil {
			t.FailNow()
		}
		freed := watcher.when(t, own)
		took := got.at.Sub(freed)
		longest = max(longest, took)
		if took > testenv.UnderStress(beforeLease, 100*time.Millisecond)+metronome.Lost(freed) {
			t.Errorf("the next waiter had the key %v after the unlock", took)
		}
		if token := abToken(t, direct, "k"); token != got.g.Token() {
			t.Fatalf("the repeated unlock removed another's lock: token %d, want %d", token, got.g.Token())
		}
		abAlive(t, got.g)
		abUnlock(t, got.g)
	}
	if min(hits[0], hits[1]) < n/6 {
		t.Errorf("%d answers of %d were lost: the fault did not happen", hits, n)
	}
	t.Logf("%d answers were lost, the next waiter had the key after %v at most", hits, longest)
}

// The same for a re-acquisition between the two attempts, when nobody waited.
func TestA3ReacquiredBetweenTwoUnlocks(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	c := abClient(t, abVia(proxy), dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond})
	first, repeated := abReleases(t, c, proxy)
	for range testenv.UnderStress(30, 200) {
		g := abAcquire(t, c, "k")
		was := abNote(proxy)
		proxy.DropGRPC(first, 1)
		proxy.HoldGRPC(repeated, 1)
		unlocked := make(chan error, 1)
		go func() { unlocked <- g.Unlock(abCtx) }()
		testenv.Eventually(t, patience, "the unlock is repeated", func() bool { return was.since(abWrites...) >= 2 })
		if was.broken() == 0 || abToken(t, direct, "k") != 0 {
			t.Fatal("the fault did not happen")
		}
		again := abAcquire(t, c, "k")
		proxy.Heal()
		if err := <-unlocked; err != nil {
			t.Fatalf("unlock: %v", err)
		}
		if token := abToken(t, direct, "k"); token != again.Token() {
			t.Fatalf("the repeated unlock removed the new hold: token %d, want %d", token, again.Token())
		}
		abAlive(t, again)
		abUnlock(t, again)
	}
}

// An unlock is held up, something else ends the claim, and the same Client has
// acquired again when the unlock arrives.
func TestA3LateUnlock(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	c := abClient(t, abVia(proxy), dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond})
	admin, err := c.Admin()
	if err != nil {
		t.Fatal(err)
	}
	first, _ := abReleases(t, c, proxy)
	for i := range testenv.UnderStress(30, 200) {
		g := abAcquire(t, c, "k")
		was := abNote(proxy)
		proxy.HoldGRPC(first, 1)
		ctx, cancel := context.WithCancel(abCtx)
		unlocked := make(chan error, 1)
		go func() { unlocked <- g.Unlock(ctx) }()
		testenv.Eventually(t, patience, "the unlock is on its way", func() bool { return was.since(first) >= 1 })
		if abToken(t, direct, "k") != g.Token() {
			t.Fatal("the unlock was not held up: the fault did not happen")
		}
		if evict := i%2 == 1; evict {
			if err := admin.Evict(abCtx, "k", g.Token()); err != nil {
				t.Fatal(err)
			}
		} else { // clean-up takes over
			cancel()
			abWant(t, <-unlocked, context.Canceled, dlock.ErrUnknownOutcome)
		}
		abFree(t, direct, "k", "the claim has ended", beforeLease)
		again := abAcquire(t, c, "k")
		handled := abHandled(t, server)
		proxy.Heal()
		testenv.Eventually(t, patience, "the unlock arrives", func() bool { return abHandled(t, server) > handled })
		if token := abToken(t, direct, "k"); token != again.Token() {
			t.Fatalf("the late unlock removed the new hold: token %d, want %d", token, again.Token())
		}
		abAlive(t, again)
		abUnlock(t, again)
		cancel()
	}
}

// Many unlocks are on their way when the answer to one is lost, and with it the
// connection that all of them use.
func TestA3LostUnlockReplies(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	c := abClient(t, abVia(proxy), dlock.Config{DefaultTTL: time.Minute, RetryInterval: 10 * time.Millisecond})
	metronome := testenv.StartMetronome(t)
	alone, _ := abReleases(t, c, proxy)
	for range testenv.UnderStress(10, 100) {
		guards := make([]*dlock.Guard, 40)
		for j := range guards {
			guards[j] = abAcquire(t, c, fmt.Sprintf("k%d", j))
		}
		was, started := abNote(proxy), time.Now()
		proxy.Delay(time.Millisecond, time.Millisecond)
		proxy.DropGRPC(alone, 3)
		var wg sync.WaitGroup
		var unconfirmed atomic.Int64
		for _, g := range guards {
			wg.Go(func() {
				switch err := g.Unlock(abCtx); {
				case errors.Is(err, dlock.ErrUnknownOutcome):
					unconfirmed.Add(1)
				case err != nil:
					t.Errorf("unlock: %v", err)
				}
			})
		}
		wg.Wait()
		proxy.Heal()
		if n := unconfirmed.Load(); n > 0 { // after two seconds, which a slow machine may need
			if lost := metronome.Lost(started); lost < testenv.UnderStress(0, abStarved) {
				t.Errorf("%d unlocks were not confirmed, though only %v of our time were lost", n, lost)
			}
			testenv.Eventually(t, beforeLease, "clean-up is carried out", func() bool { return len(abLeft(t, direct)) == 0 })
			continue
		}
		if was.broken() == 0 || was.since(abWrites...) <= len(guards) {
			t.Fatalf("%d connections broke, %d calls were made: the fault did not happen", was.broken(), was.since(abWrites...))
		}
		if left := abLeft(t, direct); len(left) != 0 {
			t.Fatalf("left: %q", left)
		}
	}
}

// An unlock that comes after the lock has ended leaves another's alone.
func TestA4UnlockAfterExpiry(t *testing.T) {
	t.Parallel()
	minute := dlock.WithTTL(time.Minute)
	for name, a4 := range map[string]abA4{
		"known": {[]dlock.LockOption{dlock.WithTTL(time.Second), dlock.WithoutRenewal()}, nil}, // the holder's own clock knows
		"deleted": {[]dlock.LockOption{minute}, func(direct *clientv3.Client, own string, _ clientv3.LeaseID) error {
			_, err := direct.Delete(abCtx, own)
			return err
		}},
		"revoked": {[]dlock.LockOption{minute, dlock.WithoutRenewal()}, func(direct *clientv3.Client, _ string, lease clientv3.LeaseID) error {
			_, err := direct.Revoke(abCtx, lease)
			return err
		}},
	} {
		t.Run(name, a4.run)
	}
}

// An abA4 is how a lock ends behind its holder's back.
type abA4 struct {
	opts []dlock.LockOption
	end  func(direct *clientv3.Client, own string, lease clientv3.LeaseID) error // nil: by itself
}

func (a4 abA4) run(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	a, b := abClient(t, abVia(proxy), dlock.Config{}), abClient(t, server.Endpoint(), dlock.Config{})
	proxy.HoldGRPC(deWatchPath, math.MaxInt) // else the holder knows of it before it unlocks
	abWarm(t, a)
	n := testenv.UnderStress(70, 1000)
	stale, fresh := make([]*dlock.Guard, n), make([]*dlock.Guard, n)
	key := func(i int) string { return fmt.Sprintf("k%d", i) }
	for i := range n {
		stale[i] = abAcquire(t, a, key(i), a4.opts...)
		if a4.end == nil {
			continue
		}
		claim := abLine(t, direct, key(i))[0]
		if err := a4.end(direct, string(claim.Key), clientv3.LeaseID(claim.Lease)); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, patience, "the locks end", func() bool { return len(abLeft(t, direct)) == 0 })
	was, before := abNote(proxy), make([]abClaim, n)
	for i := range n { // each with a lease of its own, which nothing of B moves
		fresh[i] = abAcquire(t, b, key(i), dlock.WithTTL(time.Minute), dlock.WithoutRenewal())
		before[i] = abStored(t, direct, key(i))
	}
	for i := range n {
		abWant(t, stale[i].Unlock(abCtx), dlock.ErrOwnershipLost)
	}
	testenv.Eventually(t, patience, "every unlock has reached the server", func() bool { return was.since(abWrites...) >= n })
	if err := a.Close(); err != nil { // whatever it still wanted to do is done
		t.Error(err)
	}
	for i := range n {
		now := abStored(t, direct, key(i))
		if moved := now.movedSince(before[i]); now.text != before[i].text || moved != 0 {
			t.Fatalf("the lock of another is %s, was %s, and its end moved by %v", now.text, before[i].text, moved)
		}
		abAlive(t, fresh[i])
		abUnlock(t, fresh[i])
	}
}

// An abClaim is what is stored of a holder, and between which times its lease ends: etcd
// tells it by the second, and we do not know when it looked.
type abClaim struct {
	text          string
	sooner, later time.Time
}

// movedSince is by how much the end of the lease has moved at least.
func (c abClaim) movedSince(before abClaim) time.Duration {
	switch {
	case c.sooner.After(before.later):
		return c.sooner.Sub(before.later)
	case c.later.Before(before.sooner):
		return c.later.Sub(before.sooner)
	}
	return 0
}

func abStored(t *testing.T, direct *clientv3.Client, key string) abClaim {
	t.Helper()
	line := abLine(t, direct, key)
	if len(line) != 1 {
		t.Fatalf("%d claims on %q", len(line), key)
	}
	asked := time.Now()
	left, err := direct.TimeToLive(abCtx, clientv3.LeaseID(line[0].Lease))
	if err != nil {
		t.Fatal(err)
	}
	ttl := time.Duration(left.TTL) * time.Second
	return abClaim{line[0].String(), asked.Add(ttl), time.Now().Add(ttl + time.Second)}
}

// Calls whose context ends anywhere on the way leave nothing.
func TestA5CancelledContextLeavesNothing(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	const workers = 10
	var a5 abA5
	var clients [workers]*dlock.Client
	for w := range clients {
		clients[w] = abClient(t, abVia(proxy), dlock.Config{DefaultTTL: time.Minute, RetryInterval: 5 * time.Millisecond})
		abWarm(t, clients[w])
	}
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
				if i%10 == 7 {
					after = patience // some acquire, however slow the machine is
				}
				a5.call(t, c, key, after, i)
			}
		})
	}
	wg.Wait()
	proxy.Delay(0, 0)
	testenv.Eventually(t, testenv.UnderStress(beforeLease, time.Second), "all keys are free", func() bool { return len(abLeft(t, direct)) == 0 })
	abElapse(300 * time.Millisecond)
	if left := abLeft(t, direct); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	if a5.cancelled.Load() == 0 || a5.acquired.Load() == 0 {
		t.Errorf("%d calls were cancelled, %d acquired: the fault did not happen", a5.cancelled.Load(), a5.acquired.Load())
	}
	t.Logf("%d calls were cancelled, %d acquired", a5.cancelled.Load(), a5.acquired.Load())
}

// An abA5 counts how calls that are cut off end.
type abA5 struct{ cancelled, acquired atomic.Int64 }

// call acquires and, with a context that is over, unlocks.
func (a5 *abA5) call(t *testing.T, c *dlock.Client, key string, after time.Duration, i int) {
	ctx, cancel := context.WithCancel(abCtx)
	defer cancel()
	if i%2 == 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, after)
		defer end()
	} else {
		defer time.AfterFunc(after, cancel).Stop()
	}
	var opts []dlock.LockOption
	if i%4 == 3 {
		opts = append(opts, dlock.WithoutRenewal())
	}
	g, err := c.Acquire(ctx, key, opts...)
	switch {
	case err == nil:
		a5.acquired.Add(1)
		if after == patience {
			cancel()
		}
		<-ctx.Done()
		_ = g.Unlock(ctx)
	case ctx.Err() != nil:
		a5.cancelled.Add(1)
	default:
		t.Error(err)
	}
}

// No public method outlives its context on a link that is dead, or without any.
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
	metronome := testenv.StartMetronome(t)
	var wg sync.WaitGroup
	for _, dead := range []bool{true, false} {
		for end, begin := range ends {
			e := newA6(t, fmt.Sprintf("dead=%v, %s", dead, end), dead, begin)
			wg.Go(func() { e.run(t, metronome) })
		}
	}
	wg.Wait()
}

// An abA6 is a Client on a link of its own.
type abA6 struct {
	name   string
	dead   bool // else it is cut, and nobody listens
	begin  func() (context.Context, context.CancelFunc)
	server *servers.Etcd
	proxy  *servers.Proxy
	c      *dlock.Client
	calls  []abCall
}

type abCall struct {
	name string
	call func(context.Context) error
}

func newA6(t *testing.T, name string, dead bool, begin func() (context.Context, context.CancelFunc)) *abA6 {
	t.Helper()
	server := testenv.Etcd(t)
	proxy := testenv.Proxy(t, server.Addr())
	c := abClient(t, abVia(proxy), dlock.Config{DefaultTTL: time.Minute})
	admin, err := c.Admin()
	if err != nil {
		t.Fatal(err)
	}
	g, h := abAcquire(t, c, "held"), abAcquire(t, c, "extended")
	if err := c.Lock(abCtx, "keyed"); err != nil {
		t.Fatal(err)
	}
	return &abA6{name, dead, begin, server, proxy, c, []abCall{
		{"Lock", func(ctx context.Context) error { return c.Lock(ctx, "k") }},
		{"Guard.Unlock", g.Unlock},
		{"Admin.Inspect", func(ctx context.Context) error { _, err := admin.Inspect(ctx, "held"); return err }},
		{"TryLock", func(ctx context.Context) error { _, err := c.TryLock(ctx, "k"); return err }},
		{"Acquire", func(ctx context.Context) error { _, err := c.Acquire(ctx, "k"); return err }},
		{"Acquire without a lease", func(ctx context.Context) error { _, err := c.Acquire(ctx, "k", dlock.WithTTL(time.Hour)); return err }},
		{"TryAcquire", func(ctx context.Context) error { _, err := c.TryAcquire(ctx, "k"); return err }},
		{"Do", func(ctx context.Context) error { return c.Do(ctx, "k", func(context.Context) error { return nil }) }},
		{"Extend", func(ctx context.Context) error { return h.Extend(ctx, 2*time.Minute) }},
		{"Unlock", func(ctx context.Context) error { return c.Unlock(ctx, "keyed") }},
		{"Admin.List", func(ctx context.Context) error { _, _, err := admin.List(ctx, "", "", 10); return err }},
		{"Admin.Evict", func(ctx context.Context) error { return admin.Evict(ctx, "held", g.Token()) }},
		{"Check", func(ctx context.Context) error { _, err := c.Check(ctx); return err }},
	}}
}

func (e *abA6) run(t *testing.T, metronome *testenv.Metronome) {
	if e.dead {
		e.proxy.BlackHole(true)
	} else {
		e.proxy.Refuse(true)
		e.proxy.Cut()
	}
	// Bytes of the client's own may still be under way. What counts is what the server gets:
	// everything was answered before the fault.
	handled, conns := abHandled(t, e.server), e.proxy.Connections()
	for _, call := range e.calls {
		ctx, cancel := e.begin()
		started, failed := time.Now(), make(chan error, 1)
		go func() { failed <- call.call(ctx) }()
		var err error
		select {
		case err = <-failed:
		case <-time.After(patience):
			t.Errorf("%s: %s does not return", e.name, call.name)
			return
		}
		over := time.Since(started) - 200*time.Millisecond - metronome.Lost(started)
		if over > 100*time.Millisecond {
			t.Logf("%s: %s outlived its context by %v; the mark is 100 ms", e.name, call.name, over.Round(time.Millisecond))
		}
		if over > testenv.UnderStress(10*time.Second, 100*time.Millisecond) {
			t.Errorf("%s: %s outlived its context by %v", e.name, call.name, over.Round(time.Millisecond))
		}
		// Whatever the machine: it was this context, and no bound of an attempt.
		if err == nil || e.dead && !errors.Is(err, ctx.Err()) {
			t.Errorf("%s: %s on a dead link: %v, not the end of its context", e.name, call.name, err)
		}
		cancel()
	}
	if abHandled(t, e.server) != handled || !e.dead && e.proxy.Connections() != conns {
		t.Errorf("%s: the link was not dead", e.name)
	}
	// Close has no context. It gives up after two seconds, and must be back in three; without
	// such a bound it would wait forever.
	started := time.Now()
	abWant(t, e.c.Close(), dlock.ErrUnknownOutcome)
	if took := time.Since(started); took > testenv.UnderStress(beforeLease, 3*time.Second+metronome.Lost(started)) {
		t.Errorf("%s: Close took %v, more than 3 s", e.name, took.Round(time.Millisecond))
	}
}
