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

func TestOneNodeDelaysNoWaiter(t *testing.T) {
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

// A release is tried for a third of the lease, at most for two seconds.
func TestHowLongAnUnlockTries(t *testing.T) {
	for _, tt := range []struct {
		lease, extended, took int64
		want                  []string
	}{
		{2000, 0, 1160, nil},
		{2000, 0, 1170, []string{"overrun"}},
		{2000, 4000, 1170, nil},
		{2000, 4000, 1840, []string{"overrun"}},
		{5000, 0, 2160, nil},
		{5000, 0, 2170, []string{"overrun"}},
		{10_000, 0, 2490, nil},
		{10_000, 0, 2510, []string{"overrun"}},
	} {
		s := newStory()
		s.hold("a", 10, 20, 30, 30+tt.took, 1)
		s.plan("a", "acquire", event.Plan{Lease: tt.lease * ms})
		if tt.extended > 0 {
			s.add(25, event.Extended, "a", 0, "")
			s.Events[2].Dur = tt.extended * ms
		}
		s.expect(t, tt.want...)
	}
	s := newStory()
	s.hold("a", 10, 20, 30, 1430, 1)
	s.plan("a", "acquire", event.Plan{Lease: 2000 * ms})
	s.stall("a", 700, 800)
	s.expectStalled(t, false, "overrun") // it is late by more than the machine took
	s.stall("a", 810, 900)
	s.expectStalled(t, true, "overrun")
}

func TestUnservedReader(t *testing.T) {
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

// A lease that is not renewed ends while its holder is stopped: the holder can leave only when it
// goes on. It has to leave at once, and a renewed lease does not end.
func TestALeaseThatEndsInAPause(t *testing.T) {
	for name, tt := range map[string]struct {
		plan     event.Plan
		to, exit int64
		want     []string
	}{
		"left at once":       {event.Plan{Lease: 2000 * ms, Fixed: true}, 2010, 2020, nil},
		"was stopped before": {event.Plan{Lease: 2000 * ms, Fixed: true}, 1600, 2020, []string{"overlap", "history"}},
		"stays":              {event.Plan{Lease: 2000 * ms, Fixed: true}, 2010, 2400, []string{"overlap", "history", "max-hold"}},
		"renewed":            {event.Plan{Lease: 2000 * ms}, 2010, 2020, []string{"overlap", "history", "false-loss"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			s.lose("a", 5, 10, tt.exit, 1)
			s.plan("a", "acquire", tt.plan)
			s.hold("b", 15, 2012, 2500, 2510, 2)
			s.fault(schedule.WorkerPause, 0, 1500, tt.to)
			s.Faults[0].Worker = "a"
			s.expect(t, tt.want...)
		})
	}
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
	s.expect(t) // it was only called then
	s.releasing("a", 12_000)
	s.expect(t, "overrun")
}

// A worker that was told to end and had to be killed is excused by as much time as it was late by, if the
// machine took that while it was to end.
func TestAWorkerThatDoesNotEnd(t *testing.T) {
	told := func(run int64) *story {
		s := newStory()
		s.add(5, event.Start, "a", 0, "")
		s.add(run, event.Ending, "a", 0, "")
		s.Stuck = []oracle.Stuck{{Worker: "a", From: 20_001 * ms, To: 35_001 * ms}}
		return s
	}
	for run, want := range map[int64]bool{20_100: true, 25_800: true, 26_200: false, 34_950: false} {
		told(run).expectStalled(t, want, "stuck") // when it was run last
	}
	for name, tt := range map[string]struct {
		worker   string
		from, to int64
		want     bool
	}{
		"a short stall before":    {"a", 18_000, 18_100, false},
		"a long stall before":     {"a", 5000, 20_000, false},
		"a short stall meanwhile": {"a", 20_200, 20_300, false},
		"half of it":              {"a", 20_200, 27_700, false},
		"most of it":              {"a", 20_200, 29_300, true},
		"all of it":               {"a", 20_200, 35_200, true},
		"the lab":                 {oracle.Lab, 20_200, 35_200, true},
		"a server":                {oracle.Server, 20_200, 35_200, true},
		"another worker":          {"b", 20_200, 35_200, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := told(34_950)
			s.stall(tt.worker, tt.from, tt.to)
			s.expectStalled(t, tt.want, "stuck")
		})
	}
	s := told(34_950)
	s.Stuck = nil // it ended, and whoever does not end in good order has crashed
	s.expect(t)
}

// A worker whose Close was not confirmed was not stuck. If nothing was wrong, it is to be confirmed.
func TestALastCloseThatIsNotConfirmed(t *testing.T) {
	told := func(note string) *story {
		s := newStory()
		s.add(5, event.Start, "a", 0, "")
		s.hold("a", 10, 20, 30, 40, 1)
		s.add(22_000, event.Stop, "a", 0, note)
		s.Events[len(s.Events)-1].Dur = 2000 * ms
		return s
	}
	told("").expect(t)
	told(dlock.ErrUnknownOutcome.Error()).expectStalled(t, false, "unconfirmed")
	s := told(dlock.ErrUnknownOutcome.Error())
	s.fault(schedule.ServerPause, 0, 17_000, 18_900)
	s.expectStalled(t, false, "unconfirmed")
	s.Faults[0].To = 19_000 * ms
	s.expect(t)
	s = told(dlock.ErrUnknownOutcome.Error())
	s.stall("a", 20_500, 21_500)
	s.expectStalled(t, true, "unconfirmed")
	s = told("")
	s.Events[len(s.Events)-1].Dur = 3100 * ms
	s.expect(t, "overrun")
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
	s.Events[0].Verb, s.Events[0].Plan = "lock", &event.Plan{HasWait: true, Wait: 490 * ms}
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
	s.Stored = []oracle.StoredClaim{{Before: 250_000 * ms, After: 250_001 * ms, Key: "slow-0", PID: 'a', Phase: "held", Token: 1, Left: time.Second}}
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
	s.Stored = []oracle.StoredClaim{{Before: 3500 * ms, After: 3501 * ms, Key: "slow-0", PID: 'a', Phase: "queued", Token: 1, Left: time.Second}}
	s.expect(t)
	s.Topology = schedule.Single
	s.expect(t, "lingering")
	s.Topology = schedule.Redlock5
	s.Faults[0].From, s.Faults[0].To = 100*ms, 200*ms
	s.Events[len(s.Events)-1].At = 2500 * ms
	s.Stored[0].Before, s.Stored[0].After = 4500*ms, 4501*ms
	s.expect(t, "lingering")
}

// Only a fault that may have kept a node away does that: not one that came later, that struck another
// worker, or that leaves all nodes there. What Close itself releases is no different.
func TestAClosedRedlockLeavesNoHealthyNode(t *testing.T) {
	told := func() *story {
		s := newStory()
		s.Topology = schedule.Redlock5
		s.hold("a", 10, 20, 1030, 1040, 1)
		s.add(1500, event.Closed, "a", 0, "")
		s.Stored = []oracle.StoredClaim{{Before: 3410 * ms, After: 3411 * ms, Key: "slow-0", PID: 'a', Phase: "held", Token: 1, Left: time.Second}}
		return s
	}
	for name, tt := range map[string]struct {
		kind     schedule.Kind
		worker   string
		from, to int64
		want     []string
	}{
		"later":                {schedule.BlackHole, "", 1600, 2400, []string{"lingering"}},
		"a second before":      {schedule.BlackHole, "", 10, 29, []string{"lingering"}},
		"just before":          {schedule.BlackHole, "", 10, 900, nil},
		"meanwhile":            {schedule.BlackHole, "", 1100, 1200, nil},
		"until later":          {schedule.ServerPause, "", 1499, 2400, nil},
		"another worker":       {schedule.WorkerPause, "b", 1100, 1200, []string{"lingering"}},
		"the worker":           {schedule.WorkerPause, "a", 1100, 1200, nil},
		"unnoticed":            {schedule.ScriptFlush, "", 1100, 1200, []string{"lingering"}},
		"unnoticed to the end": {schedule.SiblingDelete, "", 1100, 2400, []string{"lingering"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := told()
			s.fault(tt.kind, 0, tt.from, tt.to)
			s.Faults[0].Worker = tt.worker
			s.expect(t, tt.want...)
		})
	}
	told().expect(t, "lingering")
	for at, want := range map[int64]bool{1000: true, 2500: false} { // what the machine does after the Close is no excuse
		s := told()
		s.Stored[0].Before, s.Stored[0].After = 6410*ms, 6411*ms
		s.stall("a", at, at+500)
		s.expectStalled(t, want, "lingering")
	}

	s := newStory() // Close itself releases it
	s.Topology = schedule.Redlock5
	s.add(10, event.Call, "a", 0, "")
	s.add(20, event.Enter, "a", 1, "")
	s.add(1030, event.Exit, "a", 1, event.Parted)
	s.add(1040, event.Released, "a", 0, dlock.ErrClosed.Error())
	s.add(1500, event.Closed, "a", 0, "")
	s.closing(func(e *event.Event) { e.Dur = 470 * ms })
	s.Stored = told().Stored
	s.expect(t, "lingering")
	s.fault(schedule.BlackHole, 0, 900, 2400)
	s.expect(t)
}
