package redlock_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/hazardtest"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// confirmed returns how many nodes have a claim under k with a token.
func (s *set) confirmed(tb testing.TB, id string) (n int) {
	for i := range s.servers {
		fields := strings.Fields(s.stored(tb, i, "k"))
		if len(fields) > 1 && fields[0] == id && fields[1] != "0" {
			n++
		}
	}
	return n
}

// A waiter wins a majority and does not learn of it; then it misses its heartbeat, and its driver
// removes it. Its next renewal must not find what the removal has not reached yet.
func TestDroppedWaiterIsNotRenewed(t *testing.T) {
	t.Parallel()
	hazardtest.Within(t, silence, dropAWaiter)
}

// silence is for how long a waiter of TestDroppedWaiterIsNotRenewed is not renewed.
const silence = 6 * time.Second

func dropAWaiter(t testing.TB) {
	t.Helper()
	s := start(t, 3)
	d := s.open(t, patient)
	direct := (&set{servers: s.servers, proxies: s.proxies, direct: s.direct}).straight(t)
	other := direct.open(t, patient)
	submit(t, other, driver.Request{Ref: claim(0)}, driver.Held)
	s.confirms(t)
	for _, p := range s.proxies {
		p.DropMessages(true) // a claim that is told its turn may win without a confirm, and so without a reply to drop
	}
	dropped := claim(1)
	dropped.QueueTTL = silence
	submit(t, d, driver.Request{Ref: dropped, Wait: true}, driver.Queued)
	release(t, other, claim(0), driver.Held)
	var silent atomic.Bool
	silent.Store(true)
	s.intercept(func(_ int, cmd []string) faultproxy.Action {
		switch {
		case calls(cmd, "confirm", "k") && silent.Load():
			return faultproxy.DropReply // done, and not answered
		case calls(cmd, "release", "k"):
			return faultproxy.Swallow // the removal does not get there
		}
		return faultproxy.Forward
	})
	for tries := 0; s.confirmed(t, dropped.ID) < 2; tries++ {
		if tries == 20 {
			t.Fatal("no round has reached a majority")
		}
		if states, err := d.Renew(t.Context(), []driver.Ref{dropped}); err == nil && states[0].Phase == driver.Held {
			t.Fatal("the round was answered")
		}
	}
	silent.Store(false)
	elapse(silence + 100*time.Millisecond)
	submit(t, d, driver.Request{Ref: claim(2), Wait: true}, driver.Queued) // drops the first
	if p := phase(t, d, dropped); p != driver.Gone {
		t.Errorf("a claim that is being removed is %v", p)
	}
	if n := s.confirmed(t, dropped.ID); n < 2 {
		t.Errorf("%d nodes have the claim: the removal has reached them, and this has shown nothing", n)
	}
	s.heal()
	s.cut()
}
