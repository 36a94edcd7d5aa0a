package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// pauseFor pauses a server for some time, during which it must not answer.
func pauseFor(t *testing.T, server *servers.Etcd, direct *clientv3.Client, d time.Duration) {
	t.Helper()
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if _, err := direct.Get(ctx, "k"); err == nil {
		t.Error("the server answers: the fault did not happen")
	}
	<-ctx.Done()
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
}

// A lock joins the lease of a lock that was released some time ago. That must not shorten its life.
func TestServerPauseAfterJoiningALeaseIsNoLoss(t *testing.T) {
	t.Parallel()
	hazardtest.UntilValid(t, pauseAfterJoining)
}

func pauseAfterJoining(t *testing.T) (valid bool) {
	t.Helper()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	const ttl = 20 * time.Second
	var holds []*hazardtest.Hold
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range 4 { // the lease is up to three tenths of its TTL old
		c := clientAt(t, server.Endpoint(), dlock.Config{DefaultTTL: ttl})
		warm(t, c)
		wg.Go(func() {
			elapse(ttl * time.Duration(i) / 10)
			g, err := c.Acquire(context.Background(), fmt.Sprintf("k%d", i))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			holds = append(holds, hazardtest.Keep(t, g, ttl/20)) // half of what the pause leaves
		})
	}
	wg.Wait()
	elapse(ttl/3 - 100*time.Millisecond) // the last one is about to be renewed
	pauseFor(t, server, direct, ttl/2)
	valid = true
	for _, h := range holds {
		if h.RenewedAgain(t) {
			unlock(t, h.Guard)
		} else {
			valid = false
		}
	}
	return valid
}

// A failingRenewals answers the renewals of one holder with errors.
type failingRenewals struct {
	name string
	err  error
	span time.Duration // 0: once for each kind of call

	g     *dlock.Guard
	mu    sync.Mutex
	armed bool
	first time.Time
	hits  map[string]int // by path
}

func (b *failingRenewals) fault(path string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.armed || (path != txnPath && path != keepAlivePath) {
		return nil
	}
	if b.first.IsZero() {
		b.first = time.Now()
	}
	if b.hits[path] > 0 && time.Since(b.first) >= b.span {
		return nil
	}
	b.hits[path]++
	return b.err
}

func (b *failingRenewals) arm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = true
}

// check checks the holder some time after the last error.
func (b *failingRenewals) check(t *testing.T, direct *clientv3.Client) {
	t.Helper()
	b.mu.Lock()
	txns, alives := b.hits[txnPath], b.hits[keepAlivePath]
	b.armed = false
	b.mu.Unlock()
	if txns == 0 || alives == 0 || b.span > 0 && txns+alives < 4 {
		t.Errorf("%s: %d and %d errors: the fault did not happen", b.name, txns, alives)
	}
	alive(t, b.g)
	if token := storedToken(t, direct, b.g.Key()); token != b.g.Token() {
		t.Errorf("%s: the server has token %d, the guard %d", b.name, token, b.g.Token())
	}
	began := time.Now()
	err := b.g.Unlock(context.Background())
	if err != nil && !hazardtest.GaveUp(t, err, began) {
		t.Errorf("%s: %v", b.name, err)
	}
}

// A renewal gets one transient error of each kind, and then transient errors for half a lease:
// there is no loss.
func TestTransientErrorIsNoLoss(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	try := 0
	hazardtest.UntilValid(t, func(t *testing.T) bool {
		try++
		return renewalsFail(t, server, direct, fmt.Sprint("k", try))
	})
}

// renewalsFail is a round of TestTransientErrorIsNoLoss, with locks of its own.
func renewalsFail(t *testing.T, server *servers.Etcd, direct *clientv3.Client, tag string) (valid bool) {
	t.Helper()
	const ttl = 30 * time.Second // renewed after a third, so that a sixth is left after the errors
	var failing []*failingRenewals
	var holds []*hazardtest.Hold
	for _, err := range []error{
		rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCLeaderChanged, rpctypes.ErrGRPCNotLeader, rpctypes.ErrGRPCStopped,
		rpctypes.ErrGRPCTimeout, rpctypes.ErrGRPCTimeoutDueToLeaderFail, rpctypes.ErrGRPCTimeoutDueToConnectionLost,
		rpctypes.ErrGRPCUnhealthy, rpctypes.ErrGRPCRequestTooManyRequests, rpctypes.ErrGRPCNoSpace,
		status.Error(codes.Unavailable, "transport is closing"), status.Error(codes.DeadlineExceeded, "too late"),
		status.Error(codes.Canceled, "stream terminated"), status.Error(codes.Internal, "broken frame"),
		status.Error(codes.Unknown, "a proxy says so"), io.ErrUnexpectedEOF,
	} {
		for _, span := range []time.Duration{0, ttl / 2} {
			b := &failingRenewals{name: fmt.Sprintf("%v, for %v", err, span), err: err, span: span, hits: map[string]int{}}
			spy := &callSpy{fault: b.fault}
			c := locksOn(t, spy.dial(t, server.Endpoint()), dlock.Config{DefaultTTL: ttl, RetryInterval: 50 * time.Millisecond})
			b.g = acquire(t, c, fmt.Sprintf("%s-%d", tag, len(holds)))
			b.arm()
			failing, holds = append(failing, b), append(holds, hazardtest.Keep(t, b.g, ttl/20))
		}
	}
	for range 2 { // a part of a renewal that failed may be taken for the first one
		if !eachRenewed(t, holds) {
			return false
		}
	}
	for _, h := range holds { // for a whole lease after the errors
		if !h.RenewedAgain(t) {
			return false
		}
	}
	for _, b := range failing {
		b.check(t, direct)
	}
	return true
}

// A link is a holder with its own network.
type link struct {
	spy   callSpy
	proxy *faultproxy.Proxy
	g     *dlock.Guard
	own   *mvccpb.KeyValue // its claim in etcd
	lost  loss
	sent  time.Time     // when the last call left that its lease counts from
	late  time.Duration // that answers come
}

func linkTo(t *testing.T, server *servers.Etcd, direct *clientv3.Client, key string, ttl time.Duration) *link {
	t.Helper()
	l := &link{proxy: testenv.Proxy(t, server.Addr())}
	c := locksOn(t, l.spy.dial(t, urlOf(l.proxy)), dlock.Config{DefaultTTL: ttl})
	l.g = acquire(t, c, key)
	l.own = storedClaims(t, direct, key)[0]
	l.lost = watchLoss(l.g)
	return l
}

// A renewal is stuck in transit, all of it or a part: the next one overtakes it.
func TestHungRenewalIsNoLoss(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	for round := range testenv.UnderStress(1, 10) {
		try := 0
		hazardtest.UntilValid(t, func(t *testing.T) bool {
			try++
			return renewalsHang(t, server, direct, fmt.Sprintf("k%d-%d", round, try))
		})
	}
}

// renewalsHang is a round of TestHungRenewalIsNoLoss, with locks of its own.
func renewalsHang(t *testing.T, server *servers.Etcd, direct *clientv3.Client, tag string) (valid bool) {
	t.Helper()
	const ttl = 6 * time.Second
	var links []*link
	var holds []*hazardtest.Hold
	var before []callCount
	hung := [][]string{{keepAlivePath}, {txnPath}, {keepAlivePath, txnPath}}
	for i, paths := range hung {
		l := linkTo(t, server, direct, fmt.Sprintf("%s-%d", tag, i), ttl)
		links, holds, before = append(links, l), append(holds, hazardtest.Keep(t, l.g, ttl/6)), append(before, countCalls(l.proxy))
		for _, path := range paths {
			l.proxy.HoldGRPC(path, 1)
		}
	}
	elapse(2 * ttl)
	valid = true
	for i, l := range links {
		if !holds[i].RenewedAgain(t) {
			valid = false
			continue
		}
		for _, path := range hung[i] {
			if n := before[i].since(path); n < 2 {
				t.Errorf("%d calls of %s: the fault did not happen", n, path)
			}
		}
		if token := storedToken(t, direct, l.g.Key()); token != l.g.Token() {
			t.Errorf("%q: the server has token %d, the guard %d", hung[i], token, l.g.Token())
		}
		l.proxy.Heal()
		unlock(t, l.g)
	}
	return valid
}

// Answers to keep-alives come late, and then not at all: the loss is reported before the server
// deletes the key.
func TestLossPrecedesExpiry(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	watcher, metronome := watchDeletions(t, direct), testenv.StartMetronome(t)
	const ttl = 8 * time.Second
	lates := []time.Duration{
		500 * time.Millisecond,  // in time: an attempt has a sixth of the lease
		2200 * time.Millisecond, // carried out, and not answered in time
	}
	for round := range testenv.UnderStress(1, 5) {
		var links [20]*link
		for i := range links {
			links[i] = linkTo(t, server, direct, fmt.Sprintf("k%d-%d", round, i), ttl)
			links[i].late = lates[i%2]
			links[i].proxy.Delay(0, links[i].late)
			elapse(ttl / 60)
		}
		elapse(ttl/3 + lates[1]) // each has been renewed since, on the server
		var wg sync.WaitGroup
		for _, l := range links {
			wg.Go(func() {
				quiet, started := l.late > ttl/6, time.Now()
				for ; !quiet; elapse(5 * time.Millisecond) {
					if l.g.Context().Err() != nil || time.Since(started) > patience {
						t.Errorf("%s was not quiet before it was lost: %v", l.g.Key(), context.Cause(l.g.Context()))
						break
					}
					l.sent, quiet = l.spy.last(ttl / 3)
					quiet = quiet && l.spy.longest() >= l.late
				}
				l.proxy.BlackHole(true)
			})
		}
		wg.Wait()
		unanswered := 0
		for _, l := range links {
			if l.lostBefore(t, watcher, metronome, ttl) {
				unanswered++
			}
			l.proxy.Heal()
			expect(t, l.g.Unlock(context.Background()), dlock.ErrOwnershipLost)
		}
		if unanswered == 0 {
			t.Error("no answer came too late: the fault did not happen")
		}
	}
}

// lostBefore checks that a loss was reported before the server deleted the key. It reports whether
// the claim was renewed without an answer in time.
func (l *link) lostBefore(t *testing.T, watcher *deletionWatcher, metronome *testenv.Metronome, ttl time.Duration) bool {
	t.Helper()
	lost, died := l.lost.when(t), watcher.when(t, l.own)
	if late := metronome.Lost(lost.Add(-ttl / 10)); !lost.Add(-late).Before(died) {
		t.Errorf("answers late by %v: the server deleted the claim %v before the loss was told", l.late, lost.Sub(died))
	}
	slowest := l.spy.longest()
	if l.late < ttl/6 {
		if slowest < l.late {
			t.Errorf("answers late by %v: the slowest took %v: the fault did not happen", l.late, slowest)
		}
		return false
	}
	if slowest >= l.late { // a machine that stalled has not noticed that it was too late
		return false
	}
	if since := died.Sub(lost); since < ttl/6 {
		t.Errorf("the server deleted the claim %v after the loss: it was not renewed without an answer", since)
	}
	return true
}

// Keep-alives do not arrive, and everything else does: no lock that joins the lease outlives it.
func TestLossPrecedesExpiryWithoutKeepAlives(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	watcher, metronome := watchDeletions(t, direct), testenv.StartMetronome(t)
	const ttl = 6 * time.Second
	c := clientAt(t, urlOf(proxy), dlock.Config{DefaultTTL: ttl, RetryInterval: 20 * time.Millisecond})
	warm(t, c)
	was := countCalls(proxy)
	proxy.HoldGRPC(keepAlivePath, 1_000_000)
	var owns []*mvccpb.KeyValue
	var losses []loss
	n, refused := testenv.UnderStress(15, 100), 0
	for i := range n {
		key := fmt.Sprintf("k%d", i)
		g, err := c.Acquire(context.Background(), key, dlock.WithWait(ttl/10))
		if err != nil { // the lease is too old and its keep-alive is not answered, or no new one is granted in time
			refused++
			if !errors.Is(err, dlock.ErrUnavailable) {
				expect(t, err, dlock.ErrUnknownOutcome)
			}
			continue
		}
		if claims := storedClaims(t, direct, key); len(claims) > 0 {
			owns, losses = append(owns, claims[0]), append(losses, watchLoss(g))
		} else if left := g.Remaining(); left > 0 {
			t.Errorf("%s is not stored, and believed in for %v", key, left)
		}
		elapse(ttl / 15)
	}
	for i, own := range owns {
		lost, died := losses[i].when(t), watcher.when(t, own)
		if late := metronome.Lost(lost.Add(-ttl / 10)); !lost.Add(-late).Before(died) {
			t.Errorf("the server deleted a claim %v before the loss was told", lost.Sub(died))
		}
	}
	if was.since(keepAlivePath) == 0 || refused == 0 || refused == n {
		t.Errorf("%d keep-alives, %d of %d locks refused: the fault did not happen", was.since(keepAlivePath), refused, n)
	}
}

// Locks are renewed some times and unlocked: from then on nothing is sent for them, and nothing is
// stored again.
func TestRenewalEndsWithUnlock(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	const ttl, locks = 6 * time.Second, 10 // an unlock has a third of it
	c := clientAt(t, server.Endpoint(), dlock.Config{DefaultTTL: ttl})
	warm(t, c)
	var guards []*dlock.Guard
	before := receivedMessages(t, server, "LeaseKeepAlive")
	for i := range locks {
		guards = append(guards, acquire(t, c, fmt.Sprintf("k%d", i)))
	}
	testenv.Eventually(t, patience, "they are renewed", func() bool {
		return receivedMessages(t, server, "LeaseKeepAlive") > before+1
	})
	for _, g := range guards {
		released(t, direct, g)
	}
	if left := leftovers(t, direct); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	var quiet int
	testenv.Eventually(t, patience, "nothing is on its way", func() bool {
		was := quiet
		quiet = receivedMessages(t, server, "")
		elapse(ttl)
		return was == quiet
	})
	elapse(2 * ttl)
	if n := receivedMessages(t, server, "") - quiet; n > 0 {
		t.Errorf("%d messages after all is unlocked", n)
	}
	if left := leftovers(t, direct); len(left) != 0 {
		t.Errorf("came back: %q", left)
	}
}

// Any TTL is refused, or granted, rounded up to whole seconds and to the server's minimum.
func TestTTLIsKeptOrRefused(t *testing.T) {
	t.Parallel()
	for least, args := range map[time.Duration][]string{
		time.Second:     nil,
		2 * time.Second: {"--heartbeat-interval", "100", "--election-timeout", "1000"},
	} {
		t.Run(least.String(), func(t *testing.T) {
			t.Parallel()
			server := testenv.Etcd(t, args...)
			b9 := &ttlAsker{least: least, direct: dial(t, server.Endpoint()), c: clientAt(t, server.Endpoint(), dlock.Config{})}
			judge := b9.runOut(t, watchDeletions(t, b9.direct))
			rng := rand.New(rand.NewPCG(9, 9))
			for i := range testenv.UnderStress(300, 50_000) {
				ttl := time.Duration(rng.Int64N(1 << (1 + rng.IntN(62))))
				switch {
				case i < len(awkwardTTLs):
					ttl = awkwardTTLs[i]
				case i%7 == 3:
					ttl = leastTTL + time.Duration(rng.Int64N(int64(2*time.Minute)))
				}
				b9.ask(t, ttl, i)
			}
			if b9.accepted == 0 || b9.refused == 0 {
				t.Errorf("%d accepted, %d refused", b9.accepted, b9.refused)
			}
			b9.extend(t)
			judge()
			if left := leftovers(t, b9.direct); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

const leastTTL, mostTTL = time.Second, 24 * time.Hour

var awkwardTTLs = []time.Duration{
	0, -1, 1, -5 * time.Second, 999 * time.Microsecond, 999 * time.Millisecond, leastTTL - 1, leastTTL, leastTTL + 1,
	1500 * time.Millisecond, 2*time.Second - 1, 2 * time.Second, 2*time.Second + 1, mostTTL - 1, mostTTL, mostTTL + 1,
	math.MaxInt64, math.MinInt64, math.MaxInt64 / 1000, math.MaxInt64 - time.Second + 2, 9_000_000_001,
}

// A ttlAsker requests leases from a server.
type ttlAsker struct {
	least             time.Duration // that the server grants
	direct            *clientv3.Client
	c                 *dlock.Client
	accepted, refused int
}

func (b *ttlAsker) valid(ttl time.Duration) bool { return ttl >= leastTTL && ttl <= mostTTL }

// ask acquires with a TTL, alternately on its own lease and on a shared one.
func (b *ttlAsker) ask(t *testing.T, ttl time.Duration, i int) {
	t.Helper()
	opts := []dlock.LockOption{dlock.WithTTL(ttl)}
	if i%2 == 0 {
		opts = append(opts, dlock.WithoutRenewal())
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	asked := time.Now()
	g, err := b.c.Acquire(ctx, "k", opts...) // which is free
	if !b.valid(ttl) {
		b.refused++
		expect(t, err, dlock.ErrInvalidTTL)
		return
	}
	if err != nil {
		t.Fatalf("TTL %v: %v", ttl, err)
	}
	b.accepted++
	b.check(t, g, ttl, asked)
	unlocking := time.Now()
	err = g.Unlock(context.Background())
	if err != nil && !mayHaveEnded(asked, ttl) && !hazardtest.GaveUp(t, err, unlocking) {
		t.Errorf("TTL %v: unlock: %v", ttl, err)
	}
	awaitFree(t, b.direct, "k", "the key is free", patience)
}

// mayHaveEnded reports whether a lock may be over that was asked for then. Its holder gives it up before its lease ends.
func mayHaveEnded(asked time.Time, ttl time.Duration) bool { return time.Since(asked) > ttl/2 }

// check compares the server's state with the request.
func (b *ttlAsker) check(t *testing.T, g *dlock.Guard, ttl time.Duration, asked time.Time) {
	t.Helper()
	remaining, claims := g.Remaining(), storedClaims(t, b.direct, "k")
	if len(claims) == 0 && mayHaveEnded(asked, ttl) {
		return
	}
	if len(claims) == 0 || claims[0].Lease == 0 {
		t.Fatalf("TTL %v: the claims are %v", ttl, claims)
	}
	lease, err := b.direct.TimeToLive(context.Background(), clientv3.LeaseID(claims[0].Lease))
	check(t, err)
	if lease.TTL < 0 && mayHaveEnded(asked, ttl) {
		return
	}
	granted := time.Duration(lease.GrantedTTL) * time.Second
	if granted < ttl || granted >= max(ttl+time.Second, b.least+1) {
		t.Fatalf("TTL %v: the server granted %v", ttl, granted)
	}
	if remaining > granted {
		t.Fatalf("TTL %v: the guard believes in %v, the server has granted %v", ttl, remaining, granted)
	}
}

// extend checks that extending obeys the same limits.
func (b *ttlAsker) extend(t *testing.T) {
	t.Helper()
	for _, opts := range [][]dlock.LockOption{nil, {dlock.WithoutRenewal()}} {
		opts = append(opts, dlock.WithTTL(time.Minute))
		g, last, asked := acquire(t, b.c, "k", opts...), time.Minute, time.Now()
		for _, ttl := range awkwardTTLs {
			began := time.Now()
			switch err := g.Extend(context.Background(), ttl); {
			case !b.valid(ttl):
				expect(t, err, dlock.ErrInvalidTTL)
			case errors.Is(err, dlock.ErrOwnershipLost) && mayHaveEnded(asked, min(ttl, last)):
				g, last, asked = acquire(t, b.c, "k", opts...), time.Minute, time.Now()
			case err != nil:
				t.Fatalf("extend by %v: %v", ttl, err)
			default:
				b.check(t, g, ttl, began)
				last, asked = ttl, began
			}
		}
		unlock(t, g)
	}
}

// runOut acquires locks that expire, and returns a function that checks later that they lasted as
// long as requested, and not much longer.
func (b *ttlAsker) runOut(t *testing.T, watcher *deletionWatcher) (judge func()) {
	t.Helper()
	type lease struct {
		ttl         time.Duration
		asked, done time.Time
		own         *mvccpb.KeyValue
	}
	var leases []lease
	for i, ttl := range []time.Duration{time.Second, time.Second + 1, 1500 * time.Millisecond, 2 * time.Second, 2500 * time.Millisecond} {
		l, key := lease{ttl: ttl, asked: time.Now()}, fmt.Sprintf("out%d", i)
		acquire(t, b.c, key, dlock.WithTTL(ttl), dlock.WithoutRenewal())
		l.done = time.Now()
		if claims := storedClaims(t, b.direct, key); len(claims) > 0 {
			l.own = claims[0]
			leases = append(leases, l)
		} else if took := time.Since(l.asked); took < ttl {
			t.Errorf("TTL %v: it has run out after %v", ttl, took)
		}
	}
	return func() {
		for _, l := range leases {
			at := watcher.when(t, l.own)
			if lasted := at.Sub(l.asked); lasted < l.ttl {
				t.Errorf("TTL %v: the server let it last %v", l.ttl, lasted)
			}
			if lasted := at.Sub(l.done); lasted > max(l.ttl+time.Second, b.least)+testenv.UnderStress(beforeLease, 1500*time.Millisecond) {
				t.Errorf("TTL %v: the server let it last %v", l.ttl, lasted)
			}
		}
	}
}
