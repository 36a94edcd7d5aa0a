package etcdlock

import (
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

var (
	shared1 = kind{mode: driver.Shared}
	permits = func(limit int) kind { return kind{driver.Permit, limit} }
)

// The kind of a claim is read from its key. What only looks like a kind is part of a writer's key, or of other data.
func TestKindOfAKey(t *testing.T) {
	for _, c := range []struct {
		text string
		kind kind
		rest string
	}{
		{"12ab-dlock0", kind{}, "12ab-dlock0"},
		{"r-12ab-dlock0", shared1, "12ab-dlock0"},
		{"p1-12ab-dlock0", permits(1), "12ab-dlock0"},
		{"p20-12ab-dlock0", permits(20), "12ab-dlock0"},
		{"p0-12ab", kind{}, "p0-12ab"},
		{"p-1-12ab", kind{}, "p-1-12ab"},
		{"p01-12ab", kind{}, "p01-12ab"},
		{"p+1-12ab", kind{}, "p+1-12ab"},
		{"px-12ab", kind{}, "px-12ab"},
		{"p2", kind{}, "p2"},
		{"20-12ab", kind{}, "20-12ab"},
		{"", kind{}, ""},
	} {
		if k, rest := cutKind(c.text); k != c.kind || rest != c.rest {
			t.Errorf("%q: %+v and %q, want %+v and %q", c.text, k, rest, c.kind, c.rest)
		}
	}
}

// A claim cannot hold a lock together with the keys of these ranges. The ranges of a permit leave out only permits of its
// own limit.
func TestRangesOfOtherKinds(t *testing.T) {
	for _, c := range []struct {
		kind   kind
		ranges [][2]string
	}{
		{kind{}, [][2]string{{"k/", "k0"}}},
		{shared1, [][2]string{{"k/", "k/r-"}}},
		{permits(2), [][2]string{{"k/", "k/p2-"}, {"k/p2.", "k/r."}}},
	} {
		if got := c.kind.others("k/"); !slices.Equal(got, c.ranges) {
			t.Errorf("%+v: %q, want %q", c.kind, got, c.ranges)
		}
	}
}

func TestWhoHoldsALock(t *testing.T) {
	writer, one, two := kind{}, permits(1), permits(2)
	for _, c := range []struct {
		kinds []kind
		held  int
	}{
		{nil, 0},
		{[]kind{writer}, 1},
		{[]kind{writer, writer}, 1},
		{[]kind{writer, shared1}, 1},
		{[]kind{shared1, writer}, 1},
		{[]kind{shared1, shared1, writer, shared1}, 2},
		{[]kind{one, one}, 1},
		{[]kind{two, two, two}, 2},
		{[]kind{two, one}, 1},
		{[]kind{two, shared1, two}, 1},
	} {
		var claims []*mvccpb.KeyValue
		for _, k := range c.kinds {
			claims = append(claims, &mvccpb.KeyValue{Key: []byte("k/" + k.part() + "12ab" + mark + "0")})
		}
		if n := holding("k/", claims); n != c.held {
			t.Errorf("%d of %v hold the lock, want %d", n, c.kinds, c.held)
		}
	}
}

// Only the names that Name returns are those of locks.
func TestKeyOfAName(t *testing.T) {
	for name, want := range map[string]string{"a": "a", "a%2Fb": "a/b", "%25": "%", "%252F": "%2F", "": "", "a/b": "", "%zz": "", "a%2fb": ""} {
		key, ok := keyOf(name)
		if ok != (want != "") || ok && key != want {
			t.Errorf("%q: %q, %v; want %q", name, key, ok, want)
		}
	}
}

// Claims are told from other data below the name of a lock. Keys alone, without their leases, do not show what may be a
// Mutex.
func TestClaimsAmongOtherData(t *testing.T) {
	for _, c := range []struct {
		name  string
		lease int64
		claim bool
		alone bool // keys alone are enough
	}{
		{"12ab" + mark + "0", 0, true, true},
		{"r-12ab" + mark + "17", 0, true, true},
		{"p2-12ab" + mark + "0", 0, true, true},
		{"0123456789abcdef" + mark + "0", 0, true, true},
		{"0123456789abcdef0" + mark + "0", 0, false, true},
		{"12ab" + mark, 0, false, true},
		{"12ab" + mark + "x", 0, false, true},
		{"12ab" + mark + "-1", 0, false, true},
		{mark + "0", 0, false, true},
		{"config", 0, false, true},
		{"", 0, false, true},
		{"12ab", 0x12ab, true, false},
		{"12ab", 0x12ac, false, false},
		{"12ab", 0, false, false},
		{"0", 0, false, false},
		{"r-12ab", 0x12ab, false, true},
		{"p2-12ab", 0x12ab, false, true},
	} {
		kvs := []*mvccpb.KeyValue{{Key: []byte("k/" + c.name), Lease: c.lease}}
		if claims, sure := sift("k/", kvs, true); (len(claims) == 1) != c.claim || !sure {
			t.Errorf("%q on lease %x: a claim: %v, sure %v", c.name, c.lease, len(claims) == 1, sure)
		}
		kvs[0].Lease = 0 // as it comes with keys alone
		if claims, sure := sift("k/", kvs, false); (len(claims) == 1) != (c.claim && c.alone) || sure != c.alone {
			t.Errorf("%q without its lease: a claim: %v, sure %v", c.name, len(claims) == 1, sure)
		}
	}
}

// A driver knows its own keys, of any kind.
func TestOwnKeys(t *testing.T) {
	d := &etcdDriver{me: "12ab"}
	for _, k := range []kind{{}, shared1, permits(2)} {
		if own := d.ownKey("k", k, 3); own != "k/"+k.part()+"12ab"+mark+"3" || !d.isOurs("k/", own) {
			t.Errorf("%q is ours: %v", own, d.isOurs("k/", own))
		}
	}
	for _, other := range []string{"k/12ac" + mark + "3", "k/12ab", "l/12ab" + mark + "3", "12ab" + mark + "3"} {
		if d.isOurs("k/", other) {
			t.Errorf("%q is ours", other)
		}
	}
}

// No two claims on a lock have a number at the same time. One that a late delete may still hit is not used for as long as
// the delete may arrive. When all have been given back, the lock is forgotten.
func TestNumbersOfClaims(t *testing.T) {
	d := &etcdDriver{numbers: map[string]*numbers{}}
	take := func(want int) *claim {
		t.Helper()
		c := &claim{key: "k", number: d.number("k"), lease: &lease{ttl: 2 * time.Minute}}
		if c.number != want {
			t.Errorf("number %d, want %d", c.number, want)
		}
		return c
	}
	a, b := take(0), take(1)
	d.giveNumber(a)
	a = take(0)
	a.tainted = true
	d.giveNumber(a)
	c := take(2)
	d.giveNumber(c)
	d.giveNumber(b)
	if d.numbers["k"] == nil {
		t.Fatal("a number that may not be used yet is forgotten")
	}
	d.findNumbers(time.Now().Add(time.Minute))
	if n := d.numbers["k"]; n == nil || len(n.lost) != 1 {
		t.Fatal("a number is free while a delete may arrive")
	}
	take(1)
	d.findNumbers(time.Now().Add(3 * time.Minute))
	if n := d.numbers["k"]; n == nil || len(n.lost) != 0 || len(n.free) != 2 {
		t.Errorf("after the delete cannot arrive any more: %+v", n)
	}
	d.giveNumber(b)
	if len(d.numbers) != 0 {
		t.Error("a lock without claims is remembered")
	}
	lost := take(0)
	lost.tainted = true
	d.giveNumber(lost)
	d.findNumbers(time.Now().Add(3 * time.Minute))
	if len(d.numbers) != 0 {
		t.Error("a lock whose last number was found is remembered")
	}
}

// A claim that waits for permits does so for as many of the oldest as there are permits, and otherwise for the last claim
// of another kind.
func TestWhoKeepsAClaimWaiting(t *testing.T) {
	queue := func(kinds ...kind) (claims []*mvccpb.KeyValue) {
		for i, k := range kinds {
			claims = append(claims, &mvccpb.KeyValue{Key: []byte("k/" + k.part() + "12ab" + mark + "0"), CreateRevision: int64(i + 1)})
		}
		return claims
	}
	for _, c := range []struct {
		claims []*mvccpb.KeyValue
		want   []int64
	}{
		{queue(kind{}, kind{}), []int64{1}},
		{queue(shared1, shared1, kind{}), []int64{2}},
		{queue(kind{}, shared1, shared1), []int64{1}},
		{queue(permits(2), permits(2), permits(2)), []int64{1, 2}},
		{queue(permits(2), permits(2), permits(2), permits(2)), []int64{1, 2}},
		{queue(permits(2), kind{}, permits(2)), []int64{2}},
	} {
		var got []int64
		for _, kv := range keepWaiting("k/", c.claims) {
			got = append(got, kv.CreateRevision)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v wait for %v, want %v", c.claims, got, c.want)
		}
	}
}

// The first key after all keys of a lock is that of another lock, whatever the lock's name.
func TestEndOfAQueue(t *testing.T) {
	d := &etcdDriver{prefix: "p:"}
	if got, want := d.behind("a"), clientv3.GetPrefixRangeEnd("p:a/"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
