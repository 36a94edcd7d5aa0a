package redislock_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// One script renews many locks, and the server refuses it as a whole if the user may not access one of them.
func TestForbiddenKeySparesTheOthers(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	d := openAsUser(t, server.Addr(), direct)
	var refs []driver.Ref
	for i := range 21 {
		key := fmt.Sprint("app:", i)
		if i == 13 {
			key = "other"
		}
		submitClaim(t, d, key, i, time.Hour, driver.Held)
		refs = append(refs, driver.Ref{Key: key, ID: claimID(i), TTL: time.Hour})
	}
	wantHeld := func(want func(key string) bool, refusals int, rules ...string) {
		t.Helper()
		setUser(t, direct, "u", rules)
		var states []driver.State
		var err error
		testenv.Eventually(t, time.Minute, "an answer in time", func() bool {
			check(t, direct.ConfigResetStat(t.Context()).Err())
			states, err = d.Renew(t.Context(), refs)
			return err == nil || errors.Is(err, driver.ErrDenied)
		})
		wantError(t, err, driver.ErrDenied)
		for i, st := range states {
			if held := st.Phase == driver.Held; held != want(refs[i].Key) {
				t.Errorf("with %q, %s is %v", rules, refs[i].Key, st.Phase)
			}
		}
		if n := countErrors(t, direct, "NOPERM"); n < 1 || n > refusals {
			t.Errorf("with %q, %d calls were refused, want up to %d", rules, n, refusals)
		}
	}
	wantHeld(func(key string) bool { return key != "other" }, 6, "reset", "on", ">p", "~app:*", "&*", "+@all")
	wantHeld(func(string) bool { return false }, 2*len(refs), "reset", "on", ">p", "~nothing", "&*", "+@all")
	wantHeld(func(string) bool { return false }, 1, "reset", "on", ">p", "~*", "&*", "+@all", "-evalsha")
}

// A waiter that was granted the lock, but has not heard of it, is renewed while the slot of the lock is moving.
func TestUnheardGrantInAMovingSlot(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, place, unheardGrantInAMovingSlot)
}

func unheardGrantInAMovingSlot(t testing.TB) {
	t.Helper()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	open := func() driver.Driver {
		d, err := redislock.New(clusterClient(t, cl)).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
		check(t, err)
		t.Cleanup(func() { _ = d.Close() })
		return d
	}
	for _, node := range cl.Nodes() {
		check(t, directTo(t, node).Do(t.Context(), "ACL", "SETUSER", "default", "-subscribe", "-ssubscribe").Err())
	}
	a, b := open(), open()
	submitClaim(t, a, "k", 1, time.Hour, driver.Held)
	submitClaim(t, b, "k", 2, time.Hour, driver.Queued)
	submitClaim(t, b, "k", 3, time.Hour, driver.Queued)
	releaseClaim(t, a, "k", 1, time.Hour)
	slot, err := cl.Slot(t.Context(), "k")
	check(t, err)
	from, err := cl.Owner(t.Context(), slot)
	check(t, err)
	direct := directTo(t, from)
	if !direct.PExpire(t.Context(), "k", time.Hour).Val() { // nobody renews it while the slot begins to move
		t.Fatal("the lock was not granted")
	}
	to := cl.Nodes()[slices.IndexFunc(cl.Nodes(), func(n *servers.Redis) bool { return n != from })]
	check(t, cl.BeginMigration(t.Context(), slot, from, to))
	var states []driver.State
	testenv.Eventually(t, time.Minute, "an answer in time", func() bool {
		states, err = b.Renew(t.Context(), []driver.Ref{{Key: "k", ID: claimID(2), TTL: 2 * time.Hour}, {Key: "k", ID: claimID(3), TTL: time.Hour}})
		return errors.Is(err, driver.ErrNotReady)
	})
	if states[0].Phase != driver.Held || states[1].Phase != driver.Unknown {
		t.Errorf("the claims are %v", states)
	}
	if left := direct.PTTL(t.Context(), "k").Val(); left < time.Hour {
		t.Errorf("the lock is not renewed: %v are left", left)
	}
}

// A cluster that is down may still run scripts, until they write.
func TestClusterThatIsDownIsNotReady(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	setOnNodes(t, cl, "cluster-node-timeout", "60000") // so that it is not down before
	c := locksOn(t, redislock.New(clusterClient(t, cl)), dlock.Config{})
	unlock(t, acquire(t, c, "k"))
	slot, err := cl.Slot(t.Context(), "k")
	check(t, err)
	for _, node := range cl.Nodes() {
		direct := directTo(t, node)
		check(t, direct.ConfigSet(t.Context(), "cluster-allow-reads-when-down", "yes").Err())
		check(t, direct.Do(t.Context(), "CLUSTER", "DELSLOTS", (slot+1)%16384).Err())
	}
	testenv.Eventually(t, time.Minute, "the cluster is down", func() bool {
		_, err := c.TryAcquire(t.Context(), "k")
		return errors.Is(err, dlock.ErrNotReady)
	})
}
