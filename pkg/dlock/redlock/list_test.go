package redlock_test

import (
	"fmt"
	"testing"
	"time"

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
