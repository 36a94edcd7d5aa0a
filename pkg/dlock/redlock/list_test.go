package redlock_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// Between two pages of a list, other locks are unlocked, or the caller asks for more keys at a time:
// a step of the scan then finds other keys than before. Every key that stays locked is listed.
func TestListAcrossPages(t *testing.T) {
	t.Parallel()
	const n = 400
	for name, tt := range map[string]struct {
		unlocks bool
		limits  []int // of the first page, and of the others
	}{
		"unlocked between pages": {true, []int{20, 20}},
		"larger pages":           {false, []int{1, 1000}},
		"smaller pages":          {false, []int{200, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, 3)
			c := s.locks(t, dlock.Config{DefaultTTL: 10 * time.Minute})
			admin, err := c.Admin()
			check(t, err)
			stay, leave := map[string]bool{}, []*dlock.Guard(nil)
			for i := range n {
				key := fmt.Sprintf("k-%03d", i)
				g := acquire(t, c, key)
				if tt.unlocks && i%4 > 0 {
					leave = append(leave, g)
				} else {
					stay[key] = true
				}
			}
			keys, next, err := admin.ListPage(t.Context(), "", "", tt.limits[0])
			check(t, err)
			for _, g := range leave {
				unlock(t, g)
			}
			for {
				for _, k := range keys {
					delete(stay, k)
				}
				if next == "" {
					break
				}
				keys, next, err = admin.ListPage(t.Context(), "", next, tt.limits[1])
				check(t, err)
				if len(keys) > tt.limits[1] {
					t.Errorf("a page of %d keys", len(keys))
				}
			}
			if len(stay) > 0 {
				t.Errorf("%d locked keys were not listed", len(stay))
			}
		})
	}
}

// A lock that reaches a node after that was scanned is listed all the same, and once.
func TestListWhileALockReachesNodes(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{DefaultTTL: time.Hour})
	admin, err := c.Admin()
	check(t, err)
	g := acquire(t, c, "k")
	testenv.Eventually(t, patience, "all nodes have it", func() bool { return s.isOnAll(t, "k") })
	value := s.stored(t, 0, "k")
	check(t, s.direct[0].Del(t.Context(), "k").Err())
	var scans atomic.Int64
	s.intercept(func(node int, cmd []string) faultproxy.Action {
		if cmd[0] == "SCAN" && node == 1 && scans.Add(1) == 1 { // the first node was scanned
			s.direct[0].Set(t.Context(), "k", value, time.Hour)
		}
		return faultproxy.Forward
	})
	keys, _, err := admin.ListPage(t.Context(), "", "", 10)
	check(t, err)
	if len(keys) != 1 || scans.Load() == 0 {
		t.Errorf("listed %q", keys)
	}
	unlock(t, g)
}

// A node that has left its keys to another one has them listed all the same if that other one fails.
func TestListWithANodeThatIsNotScanned(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{DefaultTTL: time.Hour})
	admin, err := c.Admin()
	check(t, err)
	acquire(t, c, "k")
	testenv.Eventually(t, patience, "all nodes have it", func() bool { return s.isOnAll(t, "k") })
	check(t, s.direct[2].Del(t.Context(), "k").Err())
	s.intercept(func(node int, cmd []string) faultproxy.Action {
		if cmd[0] == "SCAN" && node == 1 {
			return faultproxy.Swallow
		}
		return faultproxy.Forward
	})
	var keys []string
	for next := ""; ; {
		var page []string
		page, next, err = admin.ListPage(t.Context(), "", next, 1)
		check(t, err)
		keys = append(keys, page...)
		if next == "" {
			break
		}
	}
	if len(keys) == 0 || keys[0] != "k" {
		t.Errorf("listed %q", keys)
	}
}

// A node that does not answer does not slow down each step of a list, and what only it and one other have is
// listed, and inspected as held.
func TestListWithASilentNode(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{DefaultTTL: time.Hour})
	admin, err := c.Admin()
	check(t, err)
	const n = 30
	for i := range n {
		key := fmt.Sprintf("k-%02d", i)
		acquire(t, c, key)
		testenv.Eventually(t, patience, "all nodes have it", func() bool { return s.isOnAll(t, key) })
		check(t, s.direct[2].Del(t.Context(), key).Err())
	}
	var asked [3]atomic.Int64
	s.intercept(func(node int, cmd []string) faultproxy.Action {
		if cmd[0] == "GETRANGE" {
			asked[node].Add(1)
		}
		if node == 0 {
			return faultproxy.Swallow
		}
		return faultproxy.Forward
	})
	listed := map[string]bool{}
	for next := ""; ; {
		var page []string
		page, next, err = admin.ListPage(t.Context(), "", next, 1)
		check(t, err)
		for _, k := range page {
			listed[k] = true
		}
		if next == "" {
			break
		}
	}
	if len(listed) != n {
		t.Errorf("%d of %d locks were listed", len(listed), n)
	}
	if silent, other := asked[0].Load(), asked[1].Load(); silent > other/2 {
		t.Errorf("the silent node was asked for %d owners, another one for %d", silent, other)
	}
	claims, err := admin.Inspect(t.Context(), "k-00")
	check(t, err)
	if len(claims) != 1 || claims[0].Phase != dlock.PhaseHeld {
		t.Errorf("inspected %+v", claims)
	}
}

// A node that refuses to say who has a lock is not a node without it. A key of another type is none.
func TestListWithANodeThatRefuses(t *testing.T) {
	t.Parallel()
	for name, node := range map[string]int{"scanned": 1, "not scanned": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, 3)
			c := s.locks(t, dlock.Config{DefaultTTL: time.Hour})
			admin, err := c.Admin()
			check(t, err)
			acquire(t, c, "k")
			testenv.Eventually(t, patience, "all nodes have it", func() bool { return s.isOnAll(t, "k") })
			check(t, s.direct[0].Del(t.Context(), "k").Err())
			for _, d := range s.direct {
				check(t, d.RPush(t.Context(), "list", "x").Err())
			}
			keys, _, err := admin.ListPage(t.Context(), "", "", 10)
			check(t, err)
			if fmt.Sprint(keys) != "[k]" {
				t.Errorf("listed %q", keys)
			}
			check(t, s.direct[node].Do(t.Context(), "ACL", "SETUSER", "default", "-getrange").Err())
			keys, _, err = admin.ListPage(t.Context(), "", "", 10)
			check(t, err)
			if !slices.Contains(keys, "k") {
				t.Errorf("listed %q", keys)
			}
		})
	}
}

// Without a majority, a list fails as soon as that is known, and says why.
func TestListWithoutAMajority(t *testing.T) {
	t.Parallel()
	for up, pages := range []int{30, 30, 0} { // the first node to be scanned, or the last of them
		t.Run(fmt.Sprint("node ", up, " is up"), func(t *testing.T) {
			t.Parallel()
			s := start(t, 3)
			c := s.locks(t, dlock.Config{DefaultTTL: time.Hour})
			admin, err := c.Admin()
			check(t, err)
			for i := range 10 {
				key := fmt.Sprintf("k-%02d", i)
				acquire(t, c, key)
				testenv.Eventually(t, patience, "all nodes have it", func() bool { return s.isOnAll(t, key) })
			}
			for i, server := range s.servers {
				if i != up {
					check(t, server.Kill())
				}
			}
			got := 0
			for next := ""; err == nil; got++ {
				if got > pages {
					t.Fatalf("%d pages without a majority", got)
				}
				_, next, err = admin.ListPage(t.Context(), "", next, 1)
			}
			want(t, err, redlock.ErrNoQuorum)
			if !strings.Contains(err.Error(), "2 of 3 did not: ") {
				t.Error(err)
			}
		})
	}
}
