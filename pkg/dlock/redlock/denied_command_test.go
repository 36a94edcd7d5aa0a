package redlock_test

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// setUser changes the rights of the user on nodes.
func setUser(tb testing.TB, nodes []*redis.Client, rules ...any) {
	tb.Helper()
	for _, node := range nodes {
		check(tb, node.Do(tb.Context(), append([]any{"ACL", "SETUSER", "default"}, rules...)...).Err())
	}
}

// scriptCommands returns the commands that scripts use.
func scriptCommands(scripts ...string) []string {
	used := map[string]bool{}
	for _, script := range scripts {
		for _, m := range regexp.MustCompile(`call\('(\w+)'`).FindAllStringSubmatch(redlock.Sources[script], -1) {
			used[strings.ToLower(m[1])] = true
		}
	}
	return slices.Sorted(maps.Keys(used))
}

// A user that may not use one of the commands of a script on a majority is told so, or the script does without it. A claim
// that is stored is never said to be gone.
func TestDeniedCommandLosesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	d, other := s.open(t, patient), s.open(t, patient)
	denied := map[string]bool{}
	n := 0
	for _, command := range scriptCommands("renew", "release") {
		for _, way := range []struct {
			waits      bool // another claim waits for the lock
			unanswered bool
			evict      bool
			renew      bool
		}{{}, {waits: true}, {unanswered: true}, {waits: true, unanswered: true}, {evict: true}, {waits: true, evict: true}, {renew: true}, {waits: true, renew: true}} {
			n += 2
			ref, waiter := claim(n), claim(n+1)
			ref.Key = fmt.Sprint("k", n) // what is left of one lock does not concern the next
			waiter.Key = ref.Key
			held, err := d.Acquire(t.Context(), driver.Request{Ref: ref})
			check(t, err)
			if way.waits {
				submit(t, other, driver.Request{Ref: waiter, Wait: true}, driver.Queued)
			}
			setUser(t, s.direct[:2], "-"+command)
			var st driver.State
			switch {
			case way.renew:
				var states []driver.State
				states, err = d.Renew(t.Context(), []driver.Ref{ref})
				st = states[0]
			case way.evict:
				st, err = d.(driver.Admin).Evict(t.Context(), ref.Key, ref.ID, held.Token)
			default:
				ref.Unanswered = way.unanswered
				st, err = d.Release(t.Context(), ref)
			}
			setUser(t, s.direct[:2], "+"+command)
			switch {
			case err != nil:
				want(t, err, driver.ErrDenied, redlock.ErrNoQuorum)
				denied[command] = true
				if st.Phase != driver.Unknown {
					t.Errorf("without %s (%+v), it is %v", command, way, st.Phase)
				}
			case st.Phase != driver.Held:
				t.Errorf("without %s (%+v), it is said to be %v", command, way, st.Phase)
			}
		}
	}
	for _, command := range strings.Fields("get pttl pexpire del exists") {
		if !denied[command] {
			t.Errorf("nothing was refused for want of %s", command)
		}
	}
}

// A holder that may not read its lock for a moment keeps it, and its release says that it is denied.
func TestHolderOutlastsADeniedRead(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	d := s.open(t, patient)
	submit(t, d, driver.Request{Ref: claim(1)}, driver.Held)
	setUser(t, s.direct[:2], "-get")
	states, err := d.Renew(t.Context(), []driver.Ref{claim(1)})
	want(t, err, driver.ErrDenied, redlock.ErrNoQuorum)
	if len(states) != 1 || states[0].Phase != driver.Unknown {
		t.Errorf("it is %v", states)
	}
	permit(t, s.direct[:2]...)
	if p := phase(t, d, claim(1)); p != driver.Held {
		t.Errorf("when it may read again, it is %v", p)
	}

	setUser(t, s.direct[:2], "-get")
	_, err = d.Release(t.Context(), claim(1))
	want(t, err, driver.ErrDenied, redlock.ErrNoQuorum)
}

// The same through a Client: no lock is lost, and Unlock says that it was denied.
func TestUnlockWithoutTheRightToRead(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	g := acquire(t, s.locks(t, dlock.Config{}), "k", dlock.WithTTL(patience))
	setUser(t, s.direct[:2], "-get")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	want(t, g.Extend(ctx, 2*patience), context.DeadlineExceeded) // it is repeated until then
	check(t, g.Err())
	want(t, g.Unlock(t.Context()), dlock.ErrDenied)
}
