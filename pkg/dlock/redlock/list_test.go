package redlock_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
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
