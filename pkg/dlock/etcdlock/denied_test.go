package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A limitedUser may use the keys with some prefixes only.
type limitedUser struct {
	admin  *clientv3.Client
	client *clientv3.Client
	txns   atomic.Int64 // that the client has sent
	mute   atomic.Bool  // the reply to the next transaction that stores something is lost
}

// tombstones is the prefix of keys that every user needs.
const tombstones = "%tombstone/"

// limitUser returns a user of a server.
func limitUser(t *testing.T, server *userServer, prefixes ...string) *limitedUser {
	t.Helper()
	return limitUserAt(t, server, server.Endpoint(), prefixes...)
}

// limitUserAt is limitUser for a client behind a proxy.
func limitUserAt(t *testing.T, server *userServer, endpoint string, prefixes ...string) *limitedUser {
	t.Helper()
	u := &limitedUser{admin: server.dial(t, server.Endpoint())}
	_, err := u.admin.RoleAdd(t.Context(), "locks")
	check(t, err)
	u.permit(t, prefixes...)
	_, err = u.admin.UserAdd(t.Context(), "u", "secret")
	check(t, err)
	_, err = u.admin.UserGrantRole(t.Context(), "u", "locks")
	check(t, err)
	count := func(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		txn, ok := req.(*etcdserverpb.TxnRequest)
		if ok {
			u.txns.Add(1)
		}
		err := call(ctx, path, req, reply, cc, opts...)
		if ok && len(txn.Success) > 0 && txn.Success[0].GetRequestPut() != nil && u.mute.CompareAndSwap(true, false) {
			return status.Error(codes.Unavailable, "the reply is lost")
		}
		return err
	}
	u.client, err = clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, Username: "u", Password: "secret", Logger: zap.NewNop(), DialTimeout: patience,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count)},
	})
	check(t, err)
	t.Cleanup(func() { _ = u.client.Close() })
	return u
}

func (u *limitedUser) permit(t *testing.T, prefixes ...string) {
	t.Helper()
	for _, p := range prefixes {
		u.grant(t, p, clientv3.PermReadWrite)
	}
}

func (u *limitedUser) grant(t *testing.T, prefix string, right authpb.Permission_Type) {
	t.Helper()
	_, err := u.admin.RoleGrantPermission(t.Context(), "locks", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(right))
	check(t, err)
}

func (u *limitedUser) deny(t *testing.T, prefixes ...string) {
	t.Helper()
	for _, p := range prefixes {
		_, err := u.admin.RoleRevokePermission(t.Context(), "locks", p, clientv3.GetPrefixRangeEnd(p))
		check(t, err)
	}
}

// heldClaims are those of a limited user.
type heldClaims struct {
	user *limitedUser
	d    driver.Driver
	refs []driver.Ref
}

func (u *limitedUser) hold(t *testing.T, d driver.Driver, keys ...string) *heldClaims {
	t.Helper()
	h := &heldClaims{user: u, d: d}
	for i, key := range keys {
		h.acquire(t, driver.Request{Ref: refOf(key, i+1000)})
	}
	return h
}

func (h *heldClaims) acquire(t *testing.T, r driver.Request) {
	t.Helper()
	var st driver.State
	answered(t, func() (err error) { st, err = h.d.Acquire(t.Context(), r); return err })
	if st.Phase != driver.Held {
		t.Fatalf("%s: %v", r.Key, st.Phase)
	}
	h.refs = append(h.refs, r.Ref)
}

// renew returns the answers, and the number of transactions.
func (h *heldClaims) renew(t *testing.T) (states []driver.State, txns int64, err error) {
	t.Helper()
	before := h.user.txns.Load()
	states, err = h.d.Renew(t.Context(), h.refs)
	return states, h.user.txns.Load() - before, err
}

// wants renews. Only the keys with one of the prefixes may be denied. It returns the number of transactions.
func (h *heldClaims) wants(t *testing.T, denied ...string) int64 {
	t.Helper()
	for {
		began := time.Now()
		states, txns, err := h.renew(t)
		var wrong []string
		if errors.Is(err, dlock.ErrDenied) != (len(denied) > 0) {
			wrong = append(wrong, "the renewal")
		}
		silent := err != nil // the driver gives a server two seconds for a keep-alive
		for i, st := range states {
			want := driver.Held
			if slices.ContainsFunc(denied, func(p string) bool { return strings.HasPrefix(h.refs[i].Key, p) }) {
				want = driver.Unknown
			}
			if st.Phase != want {
				wrong = append(wrong, fmt.Sprintf("%s is %v, want %v", h.refs[i].Key, st.Phase, want))
				silent = silent && st.Phase == driver.Unknown
			}
		}
		if len(wrong) > 0 && silent && testenv.Stalled(t, began, time.Second) {
			t.Logf("the machine stalled, so the renewal is repeated: %v", err)
			continue
		}
		if len(wrong) > 0 {
			t.Errorf("%q, with the error %v", wrong, err)
		}
		return txns
	}
}

func numbered(prefix string, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint(prefix, i))
	}
	return keys
}

// A user loses the right to one key: the renewals, acquisitions and releases of other locks go on. A server also refuses
// to keep a lease alive that the key is on, and to store another claim on it.
func TestDeniedKeyLeavesTheOthers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"no right", "may read"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startWithUsers(t)
			u := limitUser(t, server, "app", "other", tombstones)
			d := openDriver(t, u.client)
			held := u.hold(t, d, append(numbered("app", 10), "other")...)
			apart := refOf("app-apart", 100)
			apart.TTL = 2 * time.Minute // a lease of its own, and the same stream
			held.acquire(t, driver.Request{Ref: apart})
			held.acquire(t, driver.Request{Ref: refOf("app-own", 101), OwnLease: true})
			held.wants(t)
			u.deny(t, "other")
			if name == "may read" {
				u.grant(t, "other", clientv3.PermRead)
			}
			held.acquire(t, driver.Request{Ref: refOf("app-late", 102)})
			for range 2 {
				held.wants(t, "other")
			}
			if name == "no right" {
				if txns := held.wants(t, "other"); txns != 2 {
					t.Errorf("%d transactions, want one for the denied claim and one for the others", txns)
				}
			}
			u.permit(t, "other")
			held.wants(t)
		})
	}
}

// A user loses all rights: renewals do not ask for every claim again and again. When some rights return, so do their locks.
func TestAllKeysDenied(t *testing.T) {
	t.Parallel()
	server := startWithUsers(t)
	u := limitUser(t, server, "app", "other", tombstones)
	held := u.hold(t, openDriver(t, u.client), append(numbered("app", 100), numbered("other", 100)...)...)
	u.deny(t, "app", "other")
	first := held.wants(t, "app", "other")
	second := held.wants(t, "app", "other")
	t.Logf("%d transactions, and then %d", first, second)
	if second > 40 {
		t.Errorf("%d transactions for %d claims that were denied before", second, len(held.refs))
	}
	u.permit(t, "app")
	t.Logf("%d transactions when half of the rights are back", held.wants(t, "other"))
	u.permit(t, "other")
	held.wants(t)
}

// AcquireAll with a key that is denied fails, and leaves nothing. Locks that were acquired together are released, except
// for the one that is denied.
func TestDeniedKeyAmongSeveral(t *testing.T) {
	t.Parallel()
	server := startWithUsers(t)
	u := limitUser(t, server, "app", "other", tombstones)
	c := locksOn(t, u.client, dlock.Config{})
	all, err := c.AcquireAll(t.Context(), []string{"app1", "app2", "other"})
	check(t, err)
	u.deny(t, "other")
	_, err = c.AcquireAll(t.Context(), []string{"app3", "other2"})
	wantError(t, err, dlock.ErrDenied)
	unlock(t, tryAcquire(t, c, "app3"))
	wantError(t, all.Unlock(t.Context()), dlock.ErrDenied)
	for _, key := range []string{"app1", "app2"} {
		unlock(t, tryAcquire(t, c, key))
	}
	if n := len(storedClaims(t, u.admin, "other")); n != 1 {
		t.Errorf("%d claims on the key that is denied", n)
	}
}

// The locks of a process outlive one to which its user loses the right.
func TestLocksOutliveADeniedOne(t *testing.T) {
	t.Parallel()
	hazardtest.UntilValid(t, locksOutlive)
}

func locksOutlive(t *testing.T) (valid bool) {
	t.Helper()
	const ttl = 5 * time.Second
	server := startWithUsers(t)
	u := limitUser(t, server, "app", "other", tombstones)
	c := locksOn(t, u.client, dlock.Config{DefaultTTL: ttl})
	var holds []*hazardtest.Hold
	for _, key := range numbered("app", 10) {
		holds = append(holds, hazardtest.Keep(t, acquire(t, c, key), ttl/4))
	}
	holds = append(holds, hazardtest.Keep(t, acquire(t, c, "app-own", dlock.WithOwnLease()), ttl/4))
	other := acquire(t, c, "other")
	u.deny(t, "other")
	select {
	case <-other.Done():
		wantError(t, context.Cause(other.Context()), dlock.ErrOwnershipLost)
	case <-time.After(patience):
		t.Fatal("the lock that is denied is not lost")
	}
	for _, h := range holds {
		if !h.RenewedAgain(t) {
			return false
		}
		unlock(t, h.Guard)
	}
	return true
}

// The user may not watch the key of one lock: the losses of others are still reported.
func TestDeniedKeyIsNotWatched(t *testing.T) {
	t.Parallel()
	server := startWithUsers(t)
	proxy := testenv.Proxy(t, server.Addr())
	u := limitUserAt(t, server, urlOf(proxy), "app", "other", tombstones)
	c := locksOn(t, u.client, dlock.Config{DefaultTTL: lossTTL})
	var guards []*dlock.Guard
	for _, key := range []string{"app0", "app1", "other0", "other1"} {
		guards = append(guards, acquire(t, c, key, dlock.WithoutRenewal()))
	}
	watched := func() int { return countWatchers(t, server.Endpoint()) }
	testenv.Eventually(t, patience, "the keys are watched", func() bool { return watched() == len(guards) })
	u.deny(t, "other")
	proxy.Refuse(true)
	proxy.Cut()
	testenv.Eventually(t, patience, "the watches are cut", func() bool { return watched() == 0 })
	remove := func(g *dlock.Guard) {
		_, err := u.admin.Delete(t.Context(), string(storedClaims(t, u.admin, g.Key())[0].Key))
		check(t, err)
	}
	remove(guards[0]) // a read finds out
	proxy.Heal()
	watchLoss(guards[0]).when(t)
	testenv.Eventually(t, patience, "the key is watched", func() bool { return watched() > 0 })
	loss := watchLoss(guards[1])
	remove(guards[1])
	loss.when(t)
	u.permit(t, "other")
	testenv.Eventually(t, patience, "the keys are watched again", func() bool { return watched() >= 2 })
	loss = watchLoss(guards[2])
	remove(guards[2])
	loss.when(t)
}

// A claim moves to another lease because of a denied one, and the reply is lost: it is renewed on the lease that it is on.
func TestMoveWithoutAReplyIsFound(t *testing.T) {
	t.Parallel()
	server := startWithUsers(t)
	u := limitUser(t, server, "app", "other", tombstones)
	held := u.hold(t, openDriver(t, u.client), "app", "other")
	held.wants(t)
	u.deny(t, "other")
	u.mute.Store(true)
	began := time.Now()
	_, _, err := held.renew(t)
	for u.mute.Load() && testenv.Stalled(t, began, time.Second) { // there was no lease to move to
		began = time.Now()
		_, _, err = held.renew(t)
	}
	if err == nil || u.mute.Load() {
		t.Fatalf("no reply was lost: %v", err)
	}
	held.wants(t, "other")
}
