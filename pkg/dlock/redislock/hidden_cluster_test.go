package redislock_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A client of a single server meets a cluster: a node itself, or a proxy that hides the cluster. The
// keys of a lock then share its slot, and so do the tokens of a client of the cluster.
func TestClientOfOneServerOnACluster(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	node := cl.Nodes()[0]
	key := keyOn(t, cl, node, "k")
	c := locksOn(t, redislock.New(dialRedis(t, node.Addr())), dlock.Config{DefaultTTL: time.Minute, RenewInterval: time.Second})
	other := locksOn(t, redislock.New(clusterClient(t, cl)), dlock.Config{DefaultTTL: time.Minute})
	last := int64(0)
	for i := range 10 {
		g := acquire(t, []*dlock.Client{c, other}[i%2], key)
		if g.Token() <= last {
			t.Errorf("token %d after %d", g.Token(), last)
		}
		last = g.Token()
		unlock(t, g)
	}
	g := acquire(t, c, key)
	operator := locksOn(t, redislock.New(dialRedis(t, node.Addr())), dlock.Config{}) // whose first call is a release
	admin, err := operator.Admin()
	check(t, err)
	evict(t, admin, key, g.Token())
	<-g.Context().Done()
}

// Once a client of a single server knows that there is a cluster, it renews the locks of a slot together, and no renewal
// is refused.
func TestRenewalOfOneServerOnACluster(t *testing.T) {
	t.Parallel()
	cl := testenv.Cluster(t)
	tolerateStalls(t, cl)
	node := cl.Nodes()[0]
	direct, d := dialRedis(t, node.Addr()), openDriver(t, node.Addr())
	refs := make([]driver.Ref, 2)
	for i := range refs {
		refs[i] = driver.Ref{Key: keyOn(t, cl, node, string(rune('a'+i))), ID: claimID(i), TTL: time.Minute}
		submitClaim(t, d, refs[i].Key, i, time.Minute, driver.Held)
	}
	before := countErrors(t, direct, "CROSSSLOT")
	if before == 0 {
		t.Fatal("the client has not met the cluster")
	}
	states, err := answered(t, func() ([]driver.State, error) { return d.Renew(t.Context(), refs) })
	check(t, err)
	for i, st := range states {
		if st.Phase != driver.Held {
			t.Errorf("claim %d is %v", i, st.Phase)
		}
	}
	if n := countErrors(t, direct, "CROSSSLOT") - before; n != 0 {
		t.Errorf("the renewal was refused %d times", n)
	}
}

// If the keys are refused in any case, the caller is told.
func TestKeysThatAreAlwaysRefused(t *testing.T) {
	t.Parallel()
	proxy := testenv.Proxy(t, testenv.Redis(t).Addr())
	c := locksAt(t, proxy.Addr())
	proxy.Intercept(faultproxy.Every(faultproxy.ReplyError("CROSSSLOT Keys in request don't hash to the same slot"), "evalsha", "eval"))
	_, err := answered(t, func() (*dlock.Guard, error) { return c.TryAcquire(t.Context(), "k") })
	wantError(t, err, dlock.ErrInvalidKey)
}
