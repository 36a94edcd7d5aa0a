package oracle_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// plan gives the call of a worker a plan.
func (s *story) plan(worker, verb string, p event.Plan) {
	for i := range s.Events {
		if s.Events[i].Worker == worker && s.Events[i].Kind == event.Call {
			s.Events[i].Verb, s.Events[i].Plan = verb, &p
		}
	}
}

// lose is an attempt that ends by a loss.
func (s *story) lose(worker string, call, enter, exit, fence int64) {
	s.add(call, event.Call, worker, 0, "")
	s.add(enter, event.Enter, worker, fence, "")
	s.add(exit, event.Exit, worker, fence, event.Lost)
	s.add(exit+5, event.Released, worker, 0, dlock.ErrOwnershipLost.Error())
	s.releasing(worker, 5)
}

func TestAnEndByPlanIsNoLoss(t *testing.T) {
	for _, tt := range []struct {
		name string
		plan event.Plan
		exit int64
		want []string
	}{
		{"renewed", event.Plan{Lease: 2000 * ms}, 1900, []string{"false-loss"}},
		{"not renewed", event.Plan{Lease: 2000 * ms, Fixed: true}, 1900, nil},
		{"not renewed, and much too soon", event.Plan{Lease: 2000 * ms, Fixed: true}, 1000, []string{"false-loss"}},
		{"at most so long", event.Plan{Lease: 2000 * ms, MaxHold: 1000 * ms}, 1010, nil},
		{"at most so long, and too soon", event.Plan{Lease: 2000 * ms, MaxHold: 1000 * ms}, 500, []string{"false-loss"}},
		{"at most so long, and too late", event.Plan{Lease: 2000 * ms, MaxHold: 1000 * ms}, 1600, []string{"max-hold"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStory()
			s.lose("a", 5, 10, tt.exit, 1)
			s.plan("a", "acquire", tt.plan)
			s.expect(t, tt.want...)
		})
	}
}

// The lease counts from when the call was sent that was granted, however long its answer took.
func TestALeaseCountsFromItsCall(t *testing.T) {
	for _, tt := range []struct {
		name              string
		sent, took, fence int64
		want              []string
	}{
		{"the answer took long", 5, 400, 1, nil},
		{"it did not", 405, 4, 1, []string{"false-loss"}},
		{"that of another grant did", 5, 400, 2, []string{"false-loss"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStory()
			s.add(tt.sent+tt.took, event.Granted, "a", tt.fence, "")
			s.Events[len(s.Events)-1].Dur = tt.took * ms
			s.lose("a", 5, 410, 1890, 1)
			s.plan("a", "acquire", event.Plan{Lease: 2000 * ms, Fixed: true})
			s.expect(t, tt.want...)
		})
	}
}

func TestAnExtensionMovesThePlan(t *testing.T) {
	s := newStory()
	s.lose("a", 5, 10, 1900, 1)
	s.plan("a", "acquire", event.Plan{Lease: 2000 * ms, Fixed: true})
	s.add(1000, event.Extended, "a", 0, "")
	for i := range s.Events {
		if s.Events[i].Kind == event.Extended {
			s.Events[i].Dur = 4000 * ms
		}
	}
	s.expect(t, "false-loss")
}

func TestTheLeastHold(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 40, 1)
	s.plan("a", "lock", event.Plan{Lease: 2000 * ms, MinHold: 500 * ms})
	s.hold("b", 15, 530, 540, 550, 2)
	s.expect(t)
	s = newStory()
	s.hold("a", 10, 20, 30, 40, 1)
	s.plan("a", "lock", event.Plan{Lease: 2000 * ms, MinHold: 500 * ms})
	s.hold("b", 15, 60, 70, 80, 2)
	s.expect(t, "min-hold")
}

// A claim with a least hold may be stored until then, and one that Close met in it until its
// lease ends.
func TestALeastHoldLingers(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 40, 1)
	s.plan("a", "lock", event.Plan{Lease: 2000 * ms, MinHold: 500 * ms})
	s.see(1519, "a")
	s.expect(t)
	s.see(1521, "a")
	s.expect(t, "lingering")
	s.add(101, event.Closed, "a", 0, "")
	s.expect(t)
	s.Ghosts = []oracle.Ghost{{Key: "slow-0", PID: 'a', Phase: "held", Token: 1, Left: time.Second}}
	s.expect(t)
	s.Ghosts[0].Token = 2
	s.expect(t, "ghost")
}

// closing changes the end of a Client.
func (s *story) closing(change func(*event.Event)) {
	for i := range s.Events {
		if s.Events[i].Kind == event.Closed {
			change(&s.Events[i])
		}
	}
}

func TestAClientThatIsClosed(t *testing.T) {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(20, event.Enter, "a", 1, "")
	s.add(300, event.Exit, "a", 1, event.Parted)
	s.add(310, event.Released, "a", 0, dlock.ErrClosed.Error())
	s.add(350, event.Closed, "a", 0, "")
	s.closing(func(e *event.Event) { e.Dur = 50 * ms })
	s.hold("b", 15, 305, 400, 410, 2)
	s.see(1340, "a")
	s.expect(t)
	s.see(1400, "a")
	s.expect(t, "lingering")
	s.closing(func(e *event.Event) { e.Note = dlock.ErrUnknownOutcome.Error() })
	s.expect(t)
	s.closing(func(e *event.Event) { e.At, e.Dur = 3500*ms, 3200*ms })
	s.expect(t, "overrun")
}

// A master that is deposed loses what Close released there.
func TestAReleaseByCloseIsLost(t *testing.T) {
	s := newStory()
	s.Mode = schedule.Beyond
	s.add(10, event.Call, "a", 0, "")
	s.add(20, event.Enter, "a", 1, "")
	s.add(300, event.Exit, "a", 1, event.Parted)
	s.add(310, event.Released, "a", 0, dlock.ErrClosed.Error())
	s.add(350, event.Closed, "a", 0, "")
	s.closing(func(e *event.Event) { e.Dur = 50 * ms })
	s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.ForcedFailover}, From: 200 * ms, Hit: 400 * ms, To: 800 * ms}}
	s.see(1900, "a")
	s.Stored[0].Token = 1
	s.expect(t)
	s.Faults[0].Hit = 290 * ms
	s.expect(t, "lingering")
	s.Faults[0].Hit = 400 * ms
	s.closing(func(e *event.Event) { e.At, e.Dur = 800*ms, 50*ms }) // another Client
	s.expect(t, "lingering")
}

// What could not be released before a Client was closed is left to its lease, if Close says
// that something is; and a server of etcd that is back lets leases begin anew.
func TestAClientThatIsClosedInTrouble(t *testing.T) {
	trouble := oracle.Struck{Fault: schedule.Fault{Kind: schedule.ServerRestart}, From: 30 * ms, To: 1500 * ms}
	told := func() *story {
		s := newStory()
		s.hold("a", 10, 20, 35, 40, 1)
		s.add(1600, event.Closed, "a", 0, dlock.ErrUnknownOutcome.Error())
		s.closing(func(e *event.Event) { e.Dur = 500 * ms })
		s.Faults = []oracle.Struck{trouble}
		s.see(2700, "a")
		return s
	}
	s := told()
	s.expect(t)
	s.closing(func(e *event.Event) { e.Note = "" })
	s.expect(t, "lingering")

	s = told() // there was time to release it
	s.Faults[0].From = 1041 * ms
	s.expect(t, "lingering")

	s = told() // another process slept, and this one did not
	s.Faults[0].Kind, s.Faults[0].Worker = schedule.WorkerSleep, "b"
	s.expect(t, "lingering")

	for topology, want := range map[string][]string{schedule.Single: {"lingering"}, schedule.Etcd1: nil} {
		s = told()
		s.Topology = topology
		s.Faults = append(s.Faults, oracle.Struck{Fault: schedule.Fault{Kind: schedule.ServerRestart}, From: 9000 * ms, To: 10000 * ms})
		s.see(14000, "a") // the longest lease is ten seconds
		s.expect(t, want...)
	}
}

// A grant that a closing Client ended before its caller saw it overlaps with nothing.
func TestAGrantThatWasOverAtOnce(t *testing.T) {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(100, event.Exit, "a", 1, event.Parted)
	s.add(120, event.Enter, "a", 1, "")
	s.add(130, event.Released, "a", 0, dlock.ErrClosed.Error())
	s.hold("b", 15, 110, 200, 210, 2)
	s.expect(t)
}

func TestCallsInsideALock(t *testing.T) {
	already := dlock.ErrLockAlreadyHeld.Error()
	for _, tt := range []struct {
		reentrant bool
		note      string
		fence     int64
		want      []string
	}{
		{true, "", 7, nil},
		{true, "", 8, []string{"reentry", "history"}},
		{true, already, 7, []string{"reentry"}},
		{true, dlock.ErrLockHeldByOther.Error(), 7, []string{"reentry"}},
		{false, already, 7, nil},
		{false, "", 7, []string{"reentry"}},
	} {
		t.Run(fmt.Sprint(tt.reentrant, " ", tt.note, " ", tt.fence), func(t *testing.T) {
			s := newStory()
			s.Setup.Reentrant = tt.reentrant
			s.hold("a", 10, 20, 100, 110, 7)
			s.add(50, event.Again, "a", tt.fence, tt.note)
			if v := s.expect(t, tt.want...); v.Reentries != 1 {
				t.Errorf("%+v", v)
			}
		})
	}
}

// A call inside a lock that is lost in that moment may have any error.
func TestACallInsideALockThatIsLost(t *testing.T) {
	s := newStory()
	s.Setup.Reentrant = true
	s.Mode = schedule.Beyond
	s.lose("a", 5, 10, 3000, 1)
	s.add(2950, event.Again, "a", 1, dlock.ErrUnknownOutcome.Error())
	s.expect(t)
	s = newStory()
	s.Setup.Reentrant = true
	s.Mode = schedule.Beyond
	s.lose("a", 5, 10, 3000, 1)
	s.add(2000, event.Again, "a", 1, dlock.ErrUnknownOutcome.Error())
	s.expect(t, "reentry")
}

// Beyond the assumptions a lock is handed over inside a process that a new master has granted to
// another: the tokens of the turn are smaller than that of the other.
func TestAHandoffAfterAFailover(t *testing.T) {
	told := func(mode schedule.Mode, batch int, later string, token int64) *story {
		s := newStory()
		s.Mode, s.Setup.Batch = mode, batch
		s.hold("a", 5, 10, 30, 31, 100)
		s.hold("b", 15, 20, 21, 22, 200)
		s.hold(later, 25, 32, 40, 50, token)
		for i := range s.Events {
			if s.Events[i].Worker == later {
				s.Events[i].Worker = "a"
			}
		}
		return s
	}
	told(schedule.Beyond, 4, "c", 101).expect(t)
	told(schedule.Beyond, 4, "c", 104).expect(t, "fence", "history")
	told(schedule.Beyond, 0, "c", 101).expect(t, "fence", "history")
	told(schedule.Inside, 4, "c", 101).expect(t, "fence", "history", "overlap")
}

func TestReadersAndPermits(t *testing.T) {
	share := func(mode string, limit int, workers ...string) *story {
		s := newStory()
		for i, w := range workers {
			at := int64(10 * (i + 1))
			s.hold(w, at, at+5, 200+at, 300+at, int64(i+1))
			s.plan(w, "acquire", event.Plan{Lease: 2000 * ms, Mode: mode, Limit: limit})
		}
		return s
	}
	share("shared", 0, "a", "b", "c").expect(t)
	share("permit", 2, "a", "b").expect(t)
	share("permit", 2, "a", "b", "c").expect(t, "overlap", "history")
	s := share("shared", 0, "a", "b")
	s.hold("w", 100, 150, 160, 170, 9)
	s.expect(t, "overlap", "history")
	s = share("shared", 0, "a", "b")
	s.hold("w", 100, 330, 340, 350, 9)
	s.expect(t)
}

func TestAClaimFromBeforeTheClockWasSet(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 5000, 5010, 1)
	s.see(1000, "a")
	s.expect(t)
	s.Stored[0].Left = time.Hour
	s.expect(t, "overlong")
	s.Stored[0].Left, s.Stored[0].Purpose = time.Second, "b/1"
	s.expect(t)
	s.hold("b", 5010, 5020, 5030, 5040, 2)
	for i := range s.Events {
		if s.Events[i].Worker == "b" {
			s.Events[i].Key = "slow-1"
		}
	}
	s.expect(t, "info")
}

func TestACallThatIsDenied(t *testing.T) {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(12, event.Failed, "a", 0, dlock.ErrDenied.Error())
	s.expect(t, "denied")
}

// steady is a story in which hands at two masters work, at the first only while it answers.
func steady(rate int64, during int64) *story {
	s := newStory()
	stall := schedule.Fault{Kind: schedule.MasterStall, For: 3 * time.Second, Target: 0}
	s.Faults = []oracle.Struck{{Fault: stall, From: 10_000 * ms, Hit: 10_000 * ms, To: 13_000 * ms}}
	for at := int64(100); at < 20_000; at += rate {
		if at > 10_000 && at < 13_000 && during != 0 && at%during != 0 {
			continue
		}
		name := fmt.Sprint("w/", at)
		one := func(after int64, kind event.Kind, note string) {
			s.Events = append(s.Events, event.Event{At: (at + after) * ms, Kind: kind, Worker: "w", Key: "steady-1-0-0", Attempt: name, Fence: at, Note: note, PID: 1})
		}
		one(0, event.Call, "")
		one(1, event.Enter, "")
		one(2, event.Exit, event.Done)
		one(3, event.Released, "")
	}
	return s
}

func TestOtherMastersGoOn(t *testing.T) {
	if v := steady(100, 0).expect(t); v.Others < 20 {
		t.Errorf("%+v", v)
	}
	steady(100, 1000).expect(t, "other-masters")
}
