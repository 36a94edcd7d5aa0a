package oracle_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/watch"
	"github.com/ceyewan/genesis/lab/internal/worker"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// patient gives every call so long, in milliseconds, on a key.
func (s *story) patient(key string, wait int64) {
	for i := range s.Events {
		s.Events[i].Key = key
		if s.Events[i].Kind == event.Call {
			s.Events[i].Dur = wait * ms
		}
	}
}

func (s *story) fault(kind schedule.Kind, target int, from, to int64) {
	s.Faults = append(s.Faults, oracle.Struck{
		Fault: schedule.Fault{Kind: kind, Target: target, For: time.Duration((to - from) * ms)},
		From:  from * ms, Hit: (from + 1) * ms, To: to * ms,
	})
}

// One node of a redlock may cost no lock; one after the other, with no time in between, may.
func TestOneNodeExcusesNoLoss(t *testing.T) {
	s := newStory()
	s.Topology = schedule.Redlock5
	s.fault(schedule.BlackHole, 0, 500, 3500)
	s.lose("a", 10, 20, 2300, 1)
	s.expect(t, "false-loss")
	s.fault(schedule.ServerRestart, 1, 3700, 3900)
	s.expect(t)
	s.Faults = s.Faults[:1]
	s.Faults[0].Target = 5 // all
	s.expect(t)
}

func TestOneNodeKeepsNobodyWaiting(t *testing.T) {
	s := newStory()
	s.Topology = schedule.Redlock5
	s.fault(schedule.BlackHole, 0, 500, 10_500)
	s.hold("a", 10, 20, 30, 40, 1)
	s.add(510, event.Call, "b", 0, "")
	s.add(10_500, event.Failed, "b", 0, dlock.ErrUnavailable.Error())
	s.patient("slow-0", 16_000)
	s.expect(t, "idle")
}

func TestAnotherMasterExcusesNoLoss(t *testing.T) {
	s := newStory()
	s.Topology = schedule.Cluster
	key := schedule.SteadyKey(worker.Prefix, 1, 0)
	s.fault(schedule.MasterStall, 0, 500, 3500)
	s.lose("a", 10, 20, 2300, 1)
	s.patient(key, 6000)
	s.expect(t, "false-loss")
	s.Faults[0].Target = 1
	s.expect(t)
}

func TestErrorsWhereNothingIsWrong(t *testing.T) {
	s := newStory()
	s.Mode = schedule.Calm
	s.hold("a", 10, 20, 30, 40, 1)
	s.expect(t)
	s.hold("b", 100, 120, 130, 140, 2)
	s.Events[len(s.Events)-1].Note = dlock.ErrUnknownOutcome.Error()
	s.expect(t, "calm")
	s.Events = s.Events[:4]
	s.add(500, event.Call, "d", 0, "")
	s.add(510, event.Failed, "d", 0, dlock.ErrUnavailable.Error())
	s.expect(t, "calm")
	s.Events[len(s.Events)-1].Note = dlock.ErrLockHeldByOther.Error()
	s.expect(t)
}

func TestAnUnlockThatHangs(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 10_030, 1)
	s.hold("b", 25, 10_031, 10_040, 10_050, 2)
	s.patient("slow-0", 16_000)
	s.expect(t, "overrun")
}

func TestAReaderWhomNobodyServes(t *testing.T) {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(15_000, event.Failed, "a", 0, "context deadline exceeded")
	s.patient("mixed-0", 15_000)
	s.expect(t, "idle")
}

// A pause excuses what comes late because of it, and nothing later.
func TestAPauseLongBeforeExcusesNoLateLoss(t *testing.T) {
	s := newStory()
	s.lose("a", 10, 20, 8000, 1)
	s.Deaths = []watch.Death{{At: 6050 * ms, Key: "slow-0", Fence: 1, Cause: "expired"}}
	s.fault(schedule.WorkerPause, 0, 30, 230)
	s.fault(schedule.BlackHole, 0, 4000, 7000)
	s.Faults[0].Worker = "a"
	s.expect(t, "late-loss")
	s.Faults[0].From, s.Faults[0].To = 6000*ms, 7900*ms
	s.expect(t)
	s.Faults[0].From, s.Faults[0].To = 7900*ms, 7950*ms // when it was late by far
	s.expect(t, "late-loss")
}

// The same holds for everything else that a worker may do late because it was stopped.
func TestAShortPauseExcusesNoLongDelay(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 10_030, 1)
	s.patient("slow-0", 16_000)
	s.fault(schedule.WorkerPause, 0, 5000, 5100)
	s.Faults[0].Worker = "a"
	s.expect(t, "overrun")

	s = newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(16_000, event.Failed, "a", 0, "context deadline exceeded")
	s.patient("quick-0-0", 6000)
	s.fault(schedule.WorkerPause, 0, 1000, 1100)
	s.Faults[0].Worker = "a"
	s.expect(t, "overrun")
}

func TestCallsThatNeverReturn(t *testing.T) {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.patient("quick-0-0", 6000)
	s.expect(t, "overrun")

	s = newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(20, event.Enter, "a", 1, "")
	s.add(30, event.Exit, "a", 1, event.Done)
	s.patient("quick-0-0", 6000)
	s.expect(t, "overrun")
	s.fault(schedule.WorkerKill, 0, 500, 510) // before it could
	s.Faults[0].Worker = "a"
	s.expect(t)
}

func TestAnUnlockOfALostLockHangs(t *testing.T) {
	s := newStory()
	s.fault(schedule.BlackHole, 0, 500, 3500)
	s.lose("a", 10, 20, 2300, 1)
	s.Events[len(s.Events)-1].At = 15_000 * ms
	s.patient("quick-0-0", 6000)
	s.expect(t, "overrun")
}

func TestAWorkerThatDoesNotEnd(t *testing.T) {
	s := newStory()
	s.add(5, event.Start, "a", 0, "")
	s.expect(t, "stuck")
	s.add(21_000, event.Stop, "a", 0, "")
	s.expect(t)
}

// A call that waits is not told that another holds the lock, unless its wait was bounded and is over.
func TestAWaitingCallIsRefused(t *testing.T) {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(500, event.Failed, "a", 0, dlock.ErrLockHeldByOther.Error())
	s.patient("quick-0-0", 6000)
	for verb, caught := range map[string]bool{"acquire": true, "lock": true, "do": true, "try-lock": false, "try-acquire": false} {
		s.Events[0].Verb, s.Events[0].Plan = verb, &event.Plan{}
		if caught {
			s.expect(t, "refused")
		} else {
			s.expect(t)
		}
	}
	s.Events[0].Verb, s.Events[0].Plan = "lock", &event.Plan{Bounded: true, Wait: 490 * ms}
	s.expect(t)
	s.Events[0].Plan.Wait = 491 * ms
	s.expect(t, "refused")
}

// What does not change the leader does not restart a lease.
func TestACompactionProlongsNoLease(t *testing.T) {
	s := newStory()
	s.Topology, s.TTL, s.To = schedule.Etcd3, 5*time.Second, 300_000*ms
	s.hold("a", 10, 20, 30, 40, 1)
	s.add(50, event.Closed, "a", 0, dlock.ErrUnknownOutcome.Error())
	for at := int64(10_000); at < 280_000; at += 24_000 {
		s.fault(schedule.Compact, 0, at, at+1000)
	}
	s.Sights = []oracle.Sight{{Before: 250_000 * ms, After: 250_001 * ms, Key: "slow-0", PID: 'a', Phase: "held", Token: 1, Left: time.Second}}
	s.expect(t, "lingering")
	for i := range s.Faults {
		s.Faults[i].Kind = schedule.LeaderKill
	}
	s.expect(t)
}

// A node was away when a lock was released and its Client closed: what reaches it late is left to its
// lease on a redlock. If there was time to remove it, it must not be there.
func TestAClosedRedlockLeavesANodeThatWasAway(t *testing.T) {
	s := newStory()
	s.Topology = schedule.Redlock5
	s.hold("a", 10, 20, 1030, 1040, 1)
	s.fault(schedule.BlackHole, 0, 900, 2000)
	s.add(1500, event.Closed, "a", 0, "")
	s.Sights = []oracle.Sight{{Before: 3500 * ms, After: 3501 * ms, Key: "slow-0", PID: 'a', Phase: "queued", Token: 1, Left: time.Second}}
	s.expect(t)
	s.Topology = schedule.Single
	s.expect(t, "lingering")
	s.Topology = schedule.Redlock5
	s.Faults[0].From, s.Faults[0].To = 100*ms, 200*ms
	s.Events[len(s.Events)-1].At = 2500 * ms
	s.Sights[0].Before, s.Sights[0].After = 4500*ms, 4501*ms
	s.expect(t, "lingering")
}
