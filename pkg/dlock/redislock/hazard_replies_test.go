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

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// Many concurrent unlocks share pipelines, and one answer is lost.
func TestLostReplyInAPipelineOfUnlocks(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), directTo(t, server)
	c := clientAt(t, proxy.Addr(), dlock.Config{DefaultTTL: 20 * time.Second, RetryInterval: 10 * time.Millisecond})
	warm(t, c)
	for i := range testenv.UnderStress(10, 100) {
		guards := make([]*dlock.Guard, 40)
		for j := range guards {
			guards[j] = acquire(t, c, fmt.Sprintf("k%d", j))
		}
		var hits, seen, unknown atomic.Int64
		proxy.Delay(time.Millisecond, time.Millisecond)
		proxy.Intercept(func(cmd []string) faultproxy.Action {
			// The answer of an unlock inside a pipeline, not of one of the first, which are sent
			// alone.
			if kindOf(cmd) == releasing && seen.Add(1) == int64(10+i%20) {
				hits.Add(1)
				return faultproxy.DropReply
			}
			return faultproxy.Forward
		})
		var wg sync.WaitGroup
		began := time.Now()
		for _, g := range guards {
			wg.Go(func() {
				err := g.Unlock(context.Background())
				switch {
				case errors.Is(err, dlock.ErrUnknownOutcome):
					unknown.Add(1)
				case err != nil:
					t.Errorf("unlock: %v", err)
				}
			})
		}
		wg.Wait()
		if n := unknown.Load(); n > 0 && !hazardtest.GaveUp(t, dlock.ErrUnknownOutcome, began) { // one stall delays all of them
			t.Errorf("the outcome of %d unlocks is unknown", n)
		}
		proxy.Heal()
		if hits.Load() != 1 || seen.Load() <= int64(len(guards)) {
			t.Fatalf("%d answers were lost, %d unlocks seen: the fault did not happen", hits.Load(), seen.Load())
		}
		if unknown.Load() > 0 { // which go on in the background
			testenv.Eventually(t, time.Minute, "all are released", func() bool { return len(leftovers(t, direct)) == 0 })
		}
		if left := leftovers(t, direct); len(left) != 0 {
			t.Fatalf("left: %q", left)
		}
	}
}

// Many calls are cut off on a pool of one connection: no call gets the answer of another call, and
// no call succeeds without acquiring.
func TestCancelledCallsOnOneConnection(t *testing.T) {
	server := testenv.Redis(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), directTo(t, server)
	log := &foreignReplies{}
	c := clientWith(t, &redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true, PoolSize: 1},
		dlock.Config{DefaultTTL: 20 * time.Second, RetryInterval: 2 * time.Millisecond})
	warm(t, c)
	rng := rand.New(rand.NewPCG(7, 7))
	cancelled, acquired := 0, 0
	for i := range testenv.UnderStress(300, 2000) {
		proxy.Delay(0, time.Duration(rng.IntN(4))*time.Millisecond)
		key := fmt.Sprintf("k%d", i)
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(8000))*time.Microsecond)
		g, err := c.Acquire(ctx, key)
		cancel()
		log.record(err)
		if err != nil {
			cancelled++
			continue
		}
		acquired++
		proxy.Delay(0, 0)
		if token := storedToken(t, direct, key); token != g.Token() {
			t.Fatalf("a false acquire: the server has token %d, the guard %d", token, g.Token())
		}
		log.record(g.Unlock(context.Background()))
	}
	log.check(t)
	if cancelled == 0 || acquired == 0 {
		t.Errorf("%d calls were cut off, %d acquired: the fault did not happen", cancelled, acquired)
	}
}

// foreignReplies looks for answers that belong to other calls.
type foreignReplies struct{ foreign []error }

func (l *foreignReplies) record(err error) {
	if errors.Is(err, redislock.ErrUnexpectedReply) || err != nil && strings.Contains(err.Error(), redislock.ErrUnexpectedReply.Error()) {
		l.foreign = append(l.foreign, err)
	}
}

func (l *foreignReplies) check(t *testing.T) {
	t.Helper()
	if len(l.foreign) > 0 {
		t.Errorf("%d foreign answers, such as %v", len(l.foreign), l.foreign[0])
	}
}

// The answer to an earlier acquire arrives in place of the right one: the driver does not accept
// it, whether it grants or renews.
func TestForeignReplyIsRefused(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	var swap replySwapper
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, PoolSize: 1, Dialer: swap.dial})
	t.Cleanup(func() { _ = rdb.Close() })
	for i := range testenv.UnderStress(50, 500) {
		c := locksOn(t, redislock.New(rdb), dlock.Config{DefaultTTL: 20 * time.Second})
		a, b := fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)
		swap.keep()
		g := acquire(t, c, a) // its answer is kept
		taken, err := direct.SetNX(context.Background(), b, "of another client", time.Minute).Result()
		if err != nil || !taken {
			t.Fatal(taken, err)
		}
		swap.play()
		ok, err := c.TryLock(context.Background(), b) // and comes again as the answer to this
		if ok || !errors.Is(err, redislock.ErrUnexpectedReply) {
			t.Fatalf("the answer about another claim was taken for ours: %v, %v", ok, err)
		}
		if swap.played.Load() != int64(i+1) {
			t.Fatal("the fault did not happen")
		}
		unlock(t, g)
		closeLocks(t, c) // so that no cleanup shares a trip with the next calls
	}
}

// A replySwapper makes connections that can return an old answer instead of a new one, like a
// client whose answers are out of step.
type replySwapper struct {
	mu      sync.Mutex
	mode    string
	kept    []byte
	waiting bool // for the answer to an acquire
	played  atomic.Int64
}

func (s *replySwapper) keep() { s.set("keep") }
func (s *replySwapper) play() { s.set("play") }

func (s *replySwapper) set(mode string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
}

func (s *replySwapper) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &swapConn{conn, s}, nil
}

type swapConn struct {
	net.Conn
	s *replySwapper
}

func (c *swapConn) Write(p []byte) (int, error) {
	c.s.mu.Lock()
	c.s.waiting = strings.Contains(string(p), "\x01b") && strings.Contains(string(p), `{"`) // an acquire; see kindOf
	c.s.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *swapConn) Read(p []byte) (int, error) {
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
