package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// The reply to an acquire is lost, and the server refuses connections for some seconds. gRPC then
// waits longer and longer before it reconnects, which must not delay the cleanup.
func TestCleanupAfterAnOutage(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	direct := dial(t, server.Endpoint())
	var proxies []*faultproxy.Proxy
	var wg sync.WaitGroup
	for i := range testenv.UnderStress(5, 20) {
		proxy := testenv.Proxy(t, server.Addr())
		c := clientAt(t, urlOf(proxy), dlock.Config{DefaultTTL: time.Minute, MaxRetries: 1})
		warm(t, c)
		proxies = append(proxies, proxy)
		proxy.DropGRPC(txnPath, 1)
		proxy.Refuse(true)
		wg.Go(func() { expect(t, c.Lock(context.Background(), fmt.Sprintf("k%d", i)), dlock.ErrUnknownOutcome) })
	}
	wg.Wait()
	elapse(4 * time.Second)
	if left := leftovers(t, direct); len(left) != len(proxies) {
		t.Fatalf("the fault did not happen: left are %q", left)
	}
	for _, proxy := range proxies {
		proxy.Heal()
	}
	healed := testenv.UnderStress(beforeLease, time.Second)
	testenv.Eventually(t, healed, "all keys are free after the network has healed", func() bool { return len(leftovers(t, direct)) == 0 })
}

// Many unlocks are in flight when the answer to one is lost, and with it the connection that all of
// them use.
func TestLostReplyAmongManyUnlocks(t *testing.T) {
	t.Parallel()
	server := testenv.Etcd(t)
	proxy, direct := testenv.Proxy(t, server.Addr()), dial(t, server.Endpoint())
	c := clientAt(t, urlOf(proxy), dlock.Config{DefaultTTL: time.Minute, RetryInterval: 10 * time.Millisecond})
	alone, _ := releasePaths(t, c, proxy)
	for rounds := testenv.UnderStress(10, 100); rounds > 0; {
		guards := make([]*dlock.Guard, 40)
		for j := range guards {
			guards[j] = acquire(t, c, fmt.Sprintf("k%d", j))
		}
		was := countCalls(proxy)
		proxy.Delay(time.Millisecond, time.Millisecond)
		proxy.DropGRPC(alone, 3)
		var wg sync.WaitGroup
		var stall sharedStall
		var stalled atomic.Bool
		for _, g := range guards {
			wg.Go(func() {
				began := time.Now()
				switch err := g.Unlock(context.Background()); {
				case errors.Is(err, dlock.ErrUnknownOutcome) && stall.excuses(t, began, giveUpAfter):
					stalled.Store(true)
				case err != nil:
					t.Errorf("unlock: %v", err)
				}
			})
		}
		wg.Wait()
		proxy.Heal()
		if stalled.Load() {
			testenv.Eventually(t, beforeLease, "cleanup is carried out", func() bool { return len(leftovers(t, direct)) == 0 })
			continue
		}
		rounds--
		if was.broken() == 0 {
			t.Fatal("no connection broke: the fault did not happen")
		}
		if left := leftovers(t, direct); len(left) != 0 {
			t.Fatalf("left: %q", left)
		}
	}
}
