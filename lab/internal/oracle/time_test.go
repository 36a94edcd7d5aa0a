package oracle_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/watch"
)

// see is a look that found a claim of a process.
func (s *story) see(at int64, worker string) {
	s.Stored = append(s.Stored, oracle.StoredClaim{Before: at * ms, After: (at + 5) * ms, Key: "slow-0", PID: int(worker[0]), Phase: "held", Left: time.Second})
}

func TestUnknownClaim(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 40, 1)
	s.see(1039, "a")
	s.expect(t)
	s.see(1041, "a")
	if v := s.expect(t, "lingering"); v.Lingering != 1 {
		t.Errorf("%+v", v)
	}
	s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.WorkerKill}, From: 1000 * ms, To: 1010 * ms, Worker: "a"}}
	s.expect(t)
}

// A claim that a stall has left is seen until its lease ends. Another one is not excused by that.
func TestALeftClaimIsSeenAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		token   int64
		stalled bool
		want    bool
	}{"the same": {0, true, true}, "another": {7, true, false}, "no stall": {0, false, false}} {
		s := newStory()
		s.TTL = 2 * time.Second
		s.hold("a", 10, 20, 30, 40, 1)
		s.see(1400, "a")
		s.see(9000, "a")
		s.Stored[1].Token = tt.token
		if tt.stalled {
			s.stall("a", 200, 900)
		}
		if v := s.Judge(0); len(v.Violations) != 2 || v.Stalled() != tt.want {
			t.Errorf("%s: stalled: %v: %+v", name, v.Stalled(), v.Violations)
		}
	}
}

// A release that a killed master answered, and that its replica never saw, is lost. One
// that was answered longer before is not.
func TestAReleaseLostInAFailover(t *testing.T) {
	for _, tt := range []struct {
		kill int64
		want []string
	}{{50, nil}, {35, []string{"lingering"}}, {400, []string{"lingering"}}} {
		s := newStory()
		s.Mode = schedule.Beyond
		s.hold("a", 10, 20, 30, 40, 1)
		s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.Failover}, From: (tt.kill - 1) * ms, Hit: tt.kill * ms, To: 800 * ms}}
		s.see(1900, "a")
		s.Stored[0].Token = 1
		s.expect(t, tt.want...)
		s.Stored[0].Token = 2 // the new master has granted it to the waiter that it still knew
		s.expect(t, tt.want...)
	}
}

// A master that was told to step down went on answering until it knew: what it answered
// meanwhile is lost as well, be it a release, the departure of a waiter or an extension.
func TestWhatADeposedMasterAnswered(t *testing.T) {
	deposed := oracle.Struck{Fault: schedule.Fault{Kind: schedule.ForcedFailover}, From: 25 * ms, Hit: 900 * ms, To: 950 * ms}
	s := newStory()
	s.Mode = schedule.Beyond
	s.Faults = []oracle.Struck{deposed}
	s.hold("a", 10, 20, 30, 800, 1)
	s.Ghosts = []oracle.Ghost{{Key: "slow-0", PID: 'a', Phase: "held", Token: 1, Left: time.Second}}
	s.expect(t)
	s.Faults[0].Hit = 700 * ms
	s.expect(t, "ghost")

	s = newStory()
	s.Mode = schedule.Beyond
	s.add(10, event.Call, "a", 0, "")
	s.add(500, event.Failed, "a", 0, "context canceled")
	s.see(2000, "a")
	s.expect(t, "lingering")
	s.Faults = []oracle.Struck{deposed}
	s.expect(t)
	s.Stored[0].Token = 7 // which the new master gave to the waiter that it still knew
	s.expect(t)
	s.Faults[0].Hit = 400 * ms
	s.expect(t, "lingering")

	s = newStory()
	s.Mode = schedule.Beyond
	s.lose("a", 5, 10, 3000, 1)
	s.Deaths = []watch.Death{{At: 2500 * ms, Key: "slow-0", Fence: 1, Cause: "expired"}}
	s.expect(t, "late-loss")
	s.Faults = []oracle.Struck{deposed}
	s.expect(t)
	s.Deaths[0].At = 1000 * ms
	s.expect(t, "late-loss")
	s.plan("a", "lock", event.Plan{Lease: 4000 * ms, Fixed: true})
	s.expect(t)
}

func TestAClaimOfAFailedCall(t *testing.T) {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.see(500, "a")
	s.add(900, event.Failed, "a", 0, "outcome is unknown")
	s.see(1800, "a")
	s.expect(t)
	s.see(2000, "a")
	s.expect(t, "lingering")
}

func TestACallThatOutlastsItsContext(t *testing.T) {
	s := newStory()
	s.TTL = 5 * time.Second
	s.add(10, event.Call, "a", 0, "")
	s.add(6150, event.Failed, "a", 0, "context deadline exceeded")
	if v := s.expect(t); len(v.Overruns) != 1 || v.Overruns[0] != 140*time.Millisecond {
		t.Errorf("%+v", v)
	}
	s.Events[1].At = 6300 * ms
	s.expect(t, "overrun")
	s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.WorkerPause}, From: 6000 * ms, To: 6250 * ms, Worker: "a"}}
	s.expect(t)
}

func TestLocksThatEndureAStandstill(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 3000, 3010, 1)
	s.hold("b", 10, 3020, 3030, 3040, 2)
	still := schedule.Fault{Kind: schedule.ServerPause, For: time.Second}
	s.Faults = []oracle.Struck{{Fault: still, From: 1000 * ms, To: 2000 * ms}}
	if v := s.expect(t); v.Endured != 1 {
		t.Errorf("%+v", v)
	}
	s.Faults[0].For = 1500 * time.Millisecond
	if v := s.expect(t); v.Endured != 0 {
		t.Error("longer than a lock must survive")
	}
}

func TestHandovers(t *testing.T) {
	s := newStory()
	s.Mode = schedule.Calm
	s.hold("a", 10, 20, 100, 104, 1)
	s.hold("b", 30, 107, 200, 210, 2)
	s.hold("c", 205, 211, 220, 230, 3)
	v := s.expect(t)
	if len(v.Handovers) != 1 || v.Handovers[0] != 7*time.Millisecond {
		t.Errorf("%v", v.Handovers)
	}
}

// A server that was not run excuses, unless it was the lab that stood in its way.
func TestAServerThatStalls(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 300, 310, 1)
	s.hold("b", 15, 290, 320, 330, 2)
	s.Events = append(s.Events, event.Event{At: 298 * ms, Kind: event.Stall, Worker: oracle.Server, Dur: 150 * ms})
	if v := s.expect(t, "overlap", "history"); !v.Stalled() {
		t.Errorf("not excused: %+v", v.Violations)
	}
	s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.ServerPause}, From: 140 * ms, To: 298 * ms}}
	if v := s.expect(t, "overlap", "history"); v.Stalled() {
		t.Error("a standstill that the lab made excuses nothing")
	}
	s.Faults[0].From = 290 * ms
	if v := s.expect(t, "overlap", "history"); !v.Stalled() {
		t.Error("most of it was before the lab's")
	}
}

// Two faults that a lock must survive one by one may cost it together.
func TestFaultsThatAddUp(t *testing.T) {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(20, event.Enter, "a", 1, "")
	s.add(5000, event.Exit, "a", 1, event.Lost)
	s.add(5010, event.Released, "a", 0, "ownership of the lock was lost")
	still := schedule.Fault{Kind: schedule.ServerPause, For: 900 * time.Millisecond}
	s.Faults = []oracle.Struck{{Fault: still, From: 4000 * ms, To: 4900 * ms}}
	s.expect(t, "false-loss")
	s.Faults = append([]oracle.Struck{{Fault: schedule.Fault{Kind: schedule.Cut}, From: 3000 * ms, To: 3800 * ms}}, s.Faults...)
	s.expect(t)
}

func TestRecoveryWithoutALeader(t *testing.T) {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(20, event.Enter, "a", 1, "")
	s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.Beheading}, From: 500 * ms, To: 900 * ms, Worker: "a"}}
	s.hold("b", 30, 2100, 2200, 2210, 2)
	if v := s.expect(t); len(v.Recoveries) != 0 || len(v.Beheaded) != 1 || v.Beheaded[0] != 1600*time.Millisecond {
		t.Errorf("%+v", v)
	}
}

// A claim that was unlocked lingers also where its process waits for the key again.
func TestAClaimLingersBehindAnotherCall(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 40, 1)
	s.see(3000, "a")
	s.Stored[0].Token = 1
	s.expect(t, "lingering")
	for _, ev := range []event.Event{
		{At: 50 * ms, Kind: event.Call, Dur: 6000 * ms},
		{At: 3900 * ms, Kind: event.Enter, Fence: 2},
		{At: 3950 * ms, Kind: event.Exit, Fence: 2, Note: event.Done},
		{At: 3960 * ms, Kind: event.Released},
	} {
		ev.Worker, ev.Key, ev.Attempt, ev.PID = "a", "slow-0", "a/2", 'a'
		s.Events = append(s.Events, ev)
	}
	s.expect(t, "lingering")
	s.Stored[0].Token = 0 // of the call that waits
	s.expect(t)
}
