package etcdlock

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// More locks are lost at once than the event queue can hold. Each loss is reported when the engine
// has taken the events before, and the remaining ones do not keep Close from returning.
func TestLossesWaitForRoom(t *testing.T) {
	t.Parallel()
	d := &etcdDriver{EventQueue: driver.NewEventQueue(4)}
	d.losses.wake = make(chan struct{}, 1)
	d.ctx, d.cancel = context.WithCancel(t.Context())
	defer d.cancel()
	const n = 20
	lose := func() {
		for i := range n {
			d.losses.add(&claim{key: "k", id: strconv.Itoa(i)})
		}
	}
	lose()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.notifyLosses()
	}()
	waits := func() bool { return len(d.Events()) > cap(d.Events())/2 }
	testenv.Eventually(t, patience, "the next waits for room", waits)
	for i := range n {
		select {
		case ev := <-d.Events():
			if ev.ID != strconv.Itoa(i) || ev.State.Phase != driver.Gone {
				t.Fatalf("told of %+v, want the loss of %d", ev, i)
			}
		case <-time.After(patience):
			t.Fatalf("the loss of %d is not told", i)
		}
	}
	lose()
	testenv.Eventually(t, patience, "the next waits for room again", waits)
	d.cancel()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("does not end with the driver")
	}
}
