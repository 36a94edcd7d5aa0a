package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// twoMasters returns a driver on a cluster, with one claim at a master behind a proxy and one at
// another master.
func twoMasters(t *testing.T) (d *redisDriver, refs []driver.Ref, proxy *faultproxy.Proxy) {
	t.Helper()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	node := cl.Nodes()[0]
	proxy = testenv.Proxy(t, node.Addr())
	d, _ = open(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: cl.Addrs()[1:], ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == node.Addr() {
				addr = proxy.Addr()
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	}))
	for i := 0; len(refs) < 2; i++ {
		key := fmt.Sprint("k", i)
		has, err := cl.NodeFor(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if (has == node) != (len(refs) == 0) {
			continue
		}
		r := driver.Ref{Key: key, ID: strings.Repeat(fmt.Sprint(len(refs)), 32), TTL: time.Hour}
		submit(t, d, driver.Request{Ref: r})
		refs = append(refs, r)
	}
	return d, refs, proxy
}

// renew renews within a time, and returns the phases and how long it took. It checks that there is an error if a claim
// was not answered.
func renew(t *testing.T, d *redisDriver, refs []driver.Ref, within time.Duration) (through, direct driver.Phase, took time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	at := time.Now()
	states, err := d.Renew(ctx, refs)
	took = time.Since(at)
	if unknown := slices.Contains(states, driver.State{}); (err != nil) != unknown {
		t.Fatalf("%v: %v", states, err)
	}
	return states[0].Phase, states[1].Phase, took
}

// A renewal waits for a stalled master once, and then no longer until the master answers again,
// however far away it is.
func TestRenewDoesNotWaitForAStalledMaster(t *testing.T) {
	t.Parallel()
	d, refs, proxy := twoMasters(t)
	within := testenv.UnderStress(8*time.Second, 3*time.Second)
	bothHeld := func() {
		testenv.Eventually(t, time.Minute, "both masters answer", func() bool {
			a, b, _ := renew(t, d, refs, within)
			return a == driver.Held && b == driver.Held
		})
	}
	// renewals makes three after a first one. One that the machine has delayed is void, and the next one is a first one.
	renewals := func(what string, first func(), want driver.Phase, limit time.Duration) {
		first()
		for n := 0; n < 3; {
			began := time.Now()
			a, b, took := renew(t, d, refs, within)
			switch {
			case a == want && b == driver.Held && took <= limit:
			case testenv.Stalled(t, began, tripTimeout/2):
				first()
				continue
			default:
				t.Errorf("%s: %v and %v after %v", what, a, b, took)
			}
			n++
		}
	}
	bothHeld()
	proxy.BlackHole(true)
	renewals("stalled", func() { renew(t, d, refs, within) }, driver.Unknown, testenv.UnderStress(within/2, 3*tripTimeout/4))
	proxy.Heal()
	proxy.Delay(50*time.Millisecond, 50*time.Millisecond)
	renewals("back, and far away", bothHeld, driver.Held, within)
}

// A renewal that fails at two masters for different reasons does not give the reason of one to the claims of the other.
func TestRenewalsThatFailForTwoReasons(t *testing.T) {
	t.Parallel()
	d, refs, proxy := twoMasters(t)
	within := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), testenv.UnderStress(8*time.Second, 3*time.Second))
		t.Cleanup(cancel)
		return ctx
	}
	direct := d.prefix + refs[1].Key
	if err := errors.Join(d.client.Del(t.Context(), direct).Err(), d.client.LPush(t.Context(), direct, "other data").Err()); err != nil {
		t.Fatal(err)
	}
	renewed := func(refs []driver.Ref) (err error) {
		for range 4 { // again if a busy machine left it without an answer
			_, err = d.Renew(within(), refs)
			if err == nil || strings.Contains(err.Error(), "WRONGTYPE") {
				break
			}
		}
		return err
	}
	err := renewed(refs[1:])
	if !errors.Is(err, ErrNotALock) {
		t.Fatalf("alone: %v", err)
	}
	proxy.BlackHole(true)
	err = renewed(refs)
	if err == nil || errors.Is(err, ErrNotALock) || !strings.Contains(err.Error(), "WRONGTYPE") || driver.ClassOf(err) != driver.Ambiguous {
		t.Errorf("together: %v", err)
	}
}

// A lateContext has a deadline but never reports that it has passed, like a context whose timer is
// about to fire.
type lateContext struct {
	context.Context
	at time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.at, true }

// A renewal without any answer is an error, even at the moment at which its time is over and its
// context does not report it yet.
func TestRenewWithoutAnswerIsAnError(t *testing.T) {
	d, _ := open(t, testenv.Redis(t).Client())
	late := lateContext{context.Background(), time.Now()}
	states, err := d.Renew(late, []driver.Ref{{Key: "k", ID: strings.Repeat("a", 32), TTL: time.Second}})
	if err == nil {
		t.Errorf("%v and no error", states)
	}
}
