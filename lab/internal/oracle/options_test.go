package oracle_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// Others may get the lock a little after an Unlock that does not wait, and the Unlock returns at once.
func TestAnUnlockThatDoesNotWait(t *testing.T) {
	async := event.Plan{Lease: 2000 * ms, Async: true}
	s := newStory()
	s.hold("a", 10, 20, 30, 31, 1)
	s.plan("a", "acquire", async)
	s.hold("b", 15, 200, 210, 220, 2)
	s.expect(t)
	s = newStory()
	s.hold("a", 10, 20, 30, 600, 1)
	s.plan("a", "acquire", async)
	s.expect(t, "overrun")
	s = newStory()
	s.hold("a", 10, 20, 30, 31, 1)
	s.plan("a", "acquire", async)
	s.see(1032, "a")
	s.expect(t, "lingering")
	s.fault(schedule.WorkerPause, 0, 25, 300) // of another worker
	s.Faults[0].Worker = "b"
	s.fault(schedule.ScriptFlush, 0, 25, 300)
	s.expect(t, "lingering")
	s.fault(schedule.ServerPause, 0, 25, 300) // which kept the first attempt from an answer
	s.expect(t)
	s.see(1698, "a")
	s.expect(t, "lingering")
}

// The answer to a release that was not waited for may be lost with a master some time later.
func TestALateReleaseIsLost(t *testing.T) {
	s := newStory()
	s.Mode = schedule.Beyond
	s.hold("a", 10, 20, 30, 31, 1)
	s.plan("a", "acquire", event.Plan{Lease: 2000 * ms, Async: true})
	s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.Failover}, From: 900 * ms, Hit: 901 * ms, To: 1000 * ms}}
	s.see(2100, "a")
	s.Stored[0].Token = 1
	s.expect(t)
	s.Faults[0].From, s.Faults[0].Hit = 1200*ms, 1201*ms
	s.expect(t, "lingering")
}

// leaving is a story in which a leaves its lock at 110 to a lease that it had extended at 50.
func leaving() *story {
	s := newStory()
	s.hold("a", 10, 20, 100, 110, 1)
	s.plan("a", "acquire", event.Plan{Lease: 2000 * ms, Fixed: true, Leave: true})
	s.add(50, event.Extended, "a", 0, "")
	for i := range s.Events {
		if s.Events[i].Kind == event.Extended {
			s.Events[i].Dur = 2000 * ms
		}
	}
	return s
}

func TestALockThatIsLeft(t *testing.T) {
	s := leaving()
	s.hold("b", 15, 2060, 2070, 2080, 2)
	s.see(3000, "a")
	s.Stored[0].Token = 1
	s.Ghosts = []oracle.Ghost{{Key: "slow-0", PID: 'a', Phase: "held", Token: 1, Left: 2 * time.Second}}
	s.expect(t)
	s.Ghosts[0].Left = 3 * time.Second
	s.expect(t, "ghost")
	s.Ghosts = nil
	s.see(3200, "a")
	s.Stored[1].Token = 1
	s.expect(t, "lingering")

	s = leaving()
	s.hold("b", 15, 1000, 1010, 1020, 2)
	s.expect(t, "left")
	s.fault(schedule.KeyDelete, 0, 900, 901)
	s.expect(t)
}

// A leader of etcd that dies before it has ended a lease that is over lets it begin anew.
func TestALeaseThatWasAboutToEnd(t *testing.T) {
	for died, want := range map[int64][]string{2200: nil, 3200: {"lingering"}} {
		s := leaving()
		s.Topology, s.Mode = schedule.Etcd3, schedule.Beyond
		s.fault(schedule.LeaderKill, 0, died, died+100)
		s.see(4500, "a")
		s.Stored[0].Token = 1
		s.expect(t, want...)
	}
}

// A margin ends the validity so long before the lease.
func TestAMargin(t *testing.T) {
	plan := event.Plan{Lease: 2000 * ms, Fixed: true, Margin: 600 * ms}
	for exit, want := range map[int64][]string{1390: nil, 1800: {"max-hold"}, 800: {"false-loss"}} {
		s := newStory()
		s.lose("a", 5, 10, exit, 1)
		s.plan("a", "acquire", plan)
		s.expect(t, want...)
	}
}

func TestALeaseThatIsNotKnown(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 40, 1)
	s.add(25, event.Leased, "a", 0, "")
	s.expect(t)
	s.add(26, event.Leased, "a", 0, dlock.ErrUnsupported.Error())
	s.expect(t, "lease")
}
