package redlock_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// narrow leaves the user only the keys that begin with app:, and widen all keys.
func (s *set) narrow(tb testing.TB) {
	tb.Helper()
	setUser(tb, s.direct, "resetkeys", "~app:*", "~{app:*")
}

func (s *set) widen(tb testing.TB) {
	tb.Helper()
	setUser(tb, s.direct, "~*")
}

// holdKeys acquires locks, and returns their claims.
func holdKeys(tb testing.TB, d driver.Driver, keys ...string) (refs []driver.Ref) {
	tb.Helper()
	for i, key := range keys {
		refs = append(refs, driver.Ref{Key: key, ID: fmt.Sprintf("%032x", i+1), TTL: time.Minute})
		submit(tb, d, driver.Request{Ref: refs[i]}, driver.Held)
	}
	return refs
}

// appKeys returns the names of n locks, those at some places without app:.
func appKeys(n int, others ...int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("app:", i)
	}
	for _, i := range others {
		keys[i] = fmt.Sprint("other:", i)
	}
	return keys
}

// renewals counts the calls of the script for renewals to the first node.
func (s *set) renewals() *atomic.Int64 {
	n := &atomic.Int64{}
	s.intercept(func(node int, cmd []string) faultproxy.Action {
		if node == 0 && len(cmd) > 1 && strings.HasPrefix(cmd[0], "EVAL") && (cmd[1] == redlock.Scripts["renew"] || cmd[1] == redlock.Sources["renew"]) {
			n.Add(1)
		}
		return faultproxy.Forward
	})
	return n
}

// renewDenied renews locks of which those without app: are denied, and checks that the others are renewed on all nodes.
func (s *set) renewDenied(tb testing.TB, d driver.Driver, refs []driver.Ref) {
	tb.Helper()
	for _, ref := range refs {
		for _, node := range s.direct {
			if strings.HasPrefix(ref.Key, "app:") {
				check(tb, node.PExpire(tb.Context(), ref.Key, ref.TTL/2).Err())
			}
		}
	}
	states, err := d.Renew(tb.Context(), refs)
	want(tb, err, driver.ErrDenied, redlock.ErrNoQuorum)
	for i, ref := range refs {
		expected := driver.Unknown
		if strings.HasPrefix(ref.Key, "app:") {
			expected = driver.Held
		}
		if states[i].Phase != expected {
			tb.Errorf("%s is %v, want %v", ref.Key, states[i].Phase, expected)
		}
		for n, node := range s.direct {
			if expected == driver.Held {
				testenv.Eventually(tb, patience, fmt.Sprintf("node %d has renewed %s", n, ref.Key), func() bool { // perhaps after the others
					return node.PTTL(tb.Context(), ref.Key).Val() > ref.TTL/2
				})
			}
		}
	}
}

// A user that loses the right to some keys loses no other lock: the servers refuse a call for many locks if one of its keys is
// denied. To find those costs some calls, once.
func TestDeniedKeyLosesNoOtherLock(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		locks, first int // calls of the first renewal, at most
		denied       []int
	}{
		"one of two":     {2, 1 + 2, []int{1}},
		"the first":      {101, 1 + 8 + 8 + 2, []int{0}},
		"two neighbors":  {128, 1 + 8 + 8 + 2, []int{64, 65}},
		"in two batches": {200, 2 + 2*(8+8+2), []int{3, 199}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, 3)
			d := s.open(t, patient)
			refs := holdKeys(t, d, appKeys(tt.locks, tt.denied...)...)
			phase(t, d, refs[0])
			s.loaded(t, "renew", len(s.direct)) // the last node may be late
			s.narrow(t)
			calls := s.renewals()
			s.renewDenied(t, d, refs)
			if n := calls.Swap(0); n > int64(tt.first) {
				t.Errorf("the first renewal took %d calls, want at most %d", n, tt.first)
			}
			batches := (tt.locks - len(tt.denied) + 127) / 128
			most := int64(batches + 1 + len(tt.denied))
			for range 3 {
				s.renewDenied(t, d, refs)
				if n := calls.Swap(0); n > most {
					t.Errorf("a later renewal took %d calls, want at most %d", n, most)
				}
			}
			s.widen(t)
			testenv.Eventually(t, patience, "all share their calls again", func() bool {
				calls.Store(0)
				states, err := d.Renew(t.Context(), refs)
				check(t, err)
				for i, st := range states {
					if st.Phase != driver.Held {
						t.Fatalf("%s is %v", refs[i].Key, st.Phase)
					}
				}
				return calls.Load() <= int64((tt.locks+127)/128)
			})
		})
	}
}

// A node that denies some keys, and does not know the script either, as after a restart, still renews the others.
func TestDeniedKeyOnANodeWithoutScripts(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	d := s.open(t, patient)
	refs := holdKeys(t, d, appKeys(20, 7)...)
	s.narrow(t)
	for range 2 {
		for _, node := range s.direct {
			check(t, node.ScriptFlush(t.Context()).Err())
		}
		s.renewDenied(t, d, refs)
	}
}

// One node that denies a key is a minority: all are renewed.
func TestKeyDeniedByOneNode(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	d := s.open(t, patient)
	refs := holdKeys(t, d, appKeys(20, 7)...)
	setUser(t, s.direct[:1], "resetkeys", "~app:*", "~{app:*")
	for range 3 {
		states, err := d.Renew(t.Context(), refs)
		check(t, err)
		for i, st := range states {
			if st.Phase != driver.Held {
				t.Errorf("%s is %v", refs[i].Key, st.Phase)
			}
		}
	}
}

// A user that is denied everything costs few calls: one if the command is denied, and if all keys are, one per lock after the first time.
func TestDeniedEverything(t *testing.T) {
	t.Parallel()
	const n = 100
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	for name, tt := range map[string]struct {
		rules []any
		most  []int64
	}{
		"the commands": {[]any{"-evalsha", "-eval"}, []int64{1, 1, 1}},
		"the keys":     {[]any{"resetkeys", "~app:*", "~{app:*"}, []int64{2 * n, 1 + n, 1 + n}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, 3)
			d := s.open(t, patient)
			refs := holdKeys(t, d, appKeys(n, all...)...)
			phase(t, d, refs[0])
			s.loaded(t, "renew", len(s.direct)) // the last node may be late
			setUser(t, s.direct, tt.rules...)
			calls := s.renewals()
			for _, most := range tt.most {
				s.renewDenied(t, d, refs)
				if n := calls.Swap(0); n > most {
					t.Errorf("%d calls, want at most %d", n, most)
				}
			}
		})
	}
}

// Through a Client: the lock whose key is denied is lost when its lease ends, and the others are held.
func TestDeniedKeyThroughAClient(t *testing.T) {
	t.Parallel()
	hazardtest.UntilValid(t, loseTheDeniedKey)
}

// loseTheDeniedKey is a round of TestDeniedKeyThroughAClient. It is void if another lock was lost because the machine stalled.
func loseTheDeniedKey(t *testing.T) (valid bool) {
	s := start(t, 3)
	const ttl = 15 * time.Second
	c := s.locks(t, dlock.Config{DefaultTTL: ttl})
	var permitted []*hazardtest.Hold
	for i := range 10 {
		permitted = append(permitted, hazardtest.Keep(t, acquire(t, c, fmt.Sprint("app:", i)), ttl/5)) // a third of what there is to spare
	}
	other := acquire(t, c, "other")
	s.narrow(t)
	select {
	case <-other.Done(): // so the others would be lost by now
	case <-time.After(patience):
		t.Fatal("the lock that is denied is still held")
	}
	elapse(ttl)
	for _, h := range permitted {
		if h.Lost(t) {
			return false
		}
		unlock(t, h.Guard)
	}
	return true
}
