package redlock_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A lost round has stored a claim on one node, which its removal has not reached yet. A later round
// wins on the other nodes. Once a renewal has counted the first node, the removal must not reach
// what it counted: with another node restarted, the lock would have two holders.
func TestRemovalOfALostRoundAfterARenewal(t *testing.T) {
	s := start(t, 3)
	d := s.open(t, patient)
	other := (&set{servers: s.servers, proxies: s.proxies, direct: s.direct}).straight(t).open(t, patient)
	submit(t, other, driver.Request{Ref: claim(0)}, driver.Held)
	s.confirms(t)
	check(t, s.direct[2].Del(t.Context(), "k").Err())
	var noRounds, noRemoval, restarted atomic.Bool
	noRemoval.Store(true)
	s.intercept(func(node int, cmd []string) faultproxy.Action {
		switch {
		case node == 1 && restarted.Load() && len(cmd) > 1 && cmd[0] == "EVALSHA",
			node == 2 && noRounds.Load() && calls(cmd, "acquire", "k"),
			node == 2 && noRemoval.Load() && calls(cmd, "release", "k"):
			return faultproxy.Swallow
		}
		return faultproxy.Forward
	})
	submit(t, d, driver.Request{Ref: claim(1), Wait: true}, driver.Queued)
	ours := func() bool { return strings.HasPrefix(s.stored(t, 2, "k"), claim(1).ID) }
	soon(t, "the lost round has reached the free node", ours)

	noRounds.Store(true)
	release(t, other, claim(0), driver.Held)
	held := func() bool {
		states, err := d.Renew(t.Context(), []driver.Ref{claim(1)})
		return err == nil && states[0].Phase == driver.Held
	}
	testenv.Eventually(t, beforeLease, "the claim has won", held)
	restarted.Store(true)
	check(t, s.direct[1].Del(t.Context(), "k").Err())
	testenv.Eventually(t, beforeLease, "two nodes renew it", held)

	s.logCommands(t)
	noRemoval.Store(false)
	s.cut() // so that the removal is tried again at once
	testenv.Eventually(t, beforeLease, "the removal arrives", func() bool { return s.hasRun(t, 2, "release", "k") })
	if !ours() {
		t.Error("the node that has renewed the claim does not have it any more")
	}
	submit(t, other, driver.Request{Ref: claim(2)}, driver.Gone)
	s.cut()
}
