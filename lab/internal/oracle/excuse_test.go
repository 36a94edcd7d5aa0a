package oracle_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/store"
	"github.com/ceyewan/genesis/lab/internal/watch"
)

// stall adds a gap of a process, in milliseconds.
func (s *story) stall(worker string, from, to int64) {
	s.Events = append(s.Events, event.Event{At: to * ms, Kind: event.Stall, Worker: worker, PID: int(worker[0]), Dur: (to - from) * ms})
}

func (s *story) expectStalled(t *testing.T, want bool, oracles ...string) {
	t.Helper()
	v := s.expect(t, oracles...)
	if v.Stalled() != want {
		t.Errorf("stalled: %v, want %v: %+v", v.Stalled(), want, v.Violations)
	}
}

// overlapping is a story in which a stays inside for so long after b has entered.
func overlapping(together int64) *story {
	s := newStory()
	s.hold("a", 10, 20, 4000+together, 4010+together, 1)
	s.hold("b", 15, 4000, 4500+together, 4510+together, 2)
	return s
}

// One gap of a process that has nothing to do with it excused two holders for 18 s and
// all lost updates.
func TestStallOfAnotherWorkerExcusesNothing(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 19_000, 19_010, 1)
	s.hold("b", 15, 1000, 19_500, 19_510, 2)
	s.add(16, event.Call, "c", 0, "")
	s.add(30, event.Failed, "c", 0, "context canceled")
	s.loseUpdate(18_900, 18_901)
	s.stall("c", 15_899, 16_000)
	s.expectStalled(t, false, "overlap", "history", "store")

	near := overlapping(50)
	near.stall("c", 3900, 4050)
	near.expectStalled(t, false, "overlap", "history")
}

func TestStallExcusesOnlyNearTheBeginning(t *testing.T) {
	for _, tt := range []struct {
		name     string
		together int64
		from, to int64
		want     bool
	}{
		{"across the beginning", 50, 3850, 4050, true},
		{"less than a lease before", 50, 2500, 2700, true},
		{"more than a lease before", 50, 1500, 1700, false},
		{"after the beginning", 600, 4200, 4600, false},
		{"shorter than the margin", 50, 3960, 4050, false},
		{"shorter than the overlap", 600, 3900, 4100, false},
		{"as long as the overlap", 600, 3450, 4050, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := overlapping(tt.together)
			s.stall("a", tt.from, tt.to)
			s.expectStalled(t, tt.want, "overlap", "history")
		})
	}
}

// A process that runs for a moment between two gaps has not caught up.
func TestStallsInARowAreOne(t *testing.T) {
	s := overlapping(500)
	s.stall("a", 3700, 3990)
	s.stall("a", 4000, 4250)
	s.expectStalled(t, true, "overlap", "history")
}

// The network may take as long as it likes: no lock is valid for longer because of that.
func TestStallOfTheNetworkExcusesNoOverlap(t *testing.T) {
	s := overlapping(50)
	s.stall(oracle.Lab, 3850, 4050)
	s.expectStalled(t, false, "overlap", "history")
}

// One excused overlap explains one lost update of its own.
func TestAnOverlapExplainsOneLostUpdate(t *testing.T) {
	s := overlapping(50)
	s.stall("a", 3850, 4050)
	s.loseUpdate(4060, 4061)
	s.expectStalled(t, true, "overlap", "history", "store")
	s.loseUpdate(4070, 4071)
	s.expectStalled(t, false, "overlap", "history", "store")
}

// loseUpdate adds a lost update of a, whose write was sent and arrived then.
func (s *story) loseUpdate(sent, arrived int64) {
	late := store.Write{Key: "slow-0", Attempt: "a/1", Sent: sent * ms, At: arrived * ms}
	other := store.Write{Key: "slow-0", Attempt: "b/1", Sent: arrived * ms, At: arrived * ms}
	s.Lost = append(s.Lost, store.LostUpdate{Write: late, Overwritten: other})
	s.Counts.UnfencedLost++
}

// Those that share a lock do not write, and what overlaps on another key has nothing to do with this one.
func TestOverlapOfOthersExplainsNoLostUpdate(t *testing.T) {
	for name, change := range map[string]func(*event.Event){
		"a reader":    func(e *event.Event) { e.Plan = &event.Plan{Mode: "shared"} },
		"another key": func(e *event.Event) { e.Key = "slow-1" },
	} {
		t.Run(name, func(t *testing.T) {
			s := overlapping(50)
			for i := range s.Events {
				if s.Events[i].Worker == "b" || name == "another key" {
					change(&s.Events[i])
				}
			}
			s.stall("a", 3850, 4050)
			s.expectStalled(t, true, "overlap", "history")
			s.loseUpdate(4300, 4301)
			s.expectStalled(t, false, "overlap", "history", "store")
		})
	}
}

// A holder looks at its lock, which is valid, and writes. The lock ends before the write arrives, and the next one comes: that is
// excused if the lab, which serves the store, or the writer was stalled meanwhile, for as long as the write took.
func TestStallExcusesAWriteThatArrivesLate(t *testing.T) {
	for _, tt := range []struct {
		name, worker string
		from, to     int64
		want         bool
	}{
		{"the lab", oracle.Lab, 3000, 4500, true},
		{"the writer", "a", 3000, 4500, true},
		{"another worker", "b", 3000, 4500, false},
		{"a server", oracle.Server, 3000, 4500, false},
		{"before the write was sent", oracle.Lab, 1400, 2950, false},
		{"for a part of the time", oracle.Lab, 3000, 4300, false},
		{"for most of the time", oracle.Lab, 3080, 4480, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStory()
			s.hold("a", 10, 20, 3200, 3210, 1)
			s.hold("b", 15, 3500, 4000, 4010, 2)
			s.loseUpdate(3000, 4500)
			s.stall(tt.worker, tt.from, tt.to)
			s.expectStalled(t, tt.want, "store")
		})
	}
	s := newStory()
	s.hold("a", 10, 20, 3200, 3210, 1)
	s.hold("b", 15, 3500, 4000, 4010, 2)
	s.loseUpdate(3000, 3050)
	s.expectStalled(t, false, "store")
}

// What counts is the write that arrived after its section, also if the other took longer. A gap counts only after the end of
// that section.
func TestStallExcusesTheWriteThatWasLate(t *testing.T) {
	for name, tt := range map[string]struct {
		arrived      int64 // of a, whose section ends at 3200
		worker       string
		from, to     int64
		want         bool
		sent, inTime int64 // of b
	}{
		"the other was slow by a gap":  {3600, oracle.Lab, 3700, 4500, false, 3700, 4500},
		"the other was slow by itself": {3890, "a", 3190, 3890, true, 3900, 4700},
		"a gap just before":            {3250, "a", 3000, 3191, false, 3260, 3260},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			s.hold("a", 10, 20, 3200, 3210, 1)
			s.hold("b", 15, 3225, 5600, 5610, 2)
			late := store.Write{Key: "slow-0", Attempt: "a/1", Sent: 3190 * ms, At: tt.arrived * ms}
			other := store.Write{Key: "slow-0", Attempt: "b/1", Sent: tt.sent * ms, At: tt.inTime * ms}
			s.Lost = append(s.Lost, store.LostUpdate{Write: other, Overwritten: late})
			s.stall(tt.worker, tt.from, tt.to)
			s.expectStalled(t, tt.want, "store")
		})
	}
}

func losing(key string) *story {
	s := newStory()
	s.add(10, event.Call, "a", 0, "")
	s.add(20, event.Enter, "a", 1, "")
	s.add(9000, event.Exit, "a", 1, event.Lost)
	s.add(9010, event.Released, "a", 0, "ownership of the lock was lost")
	for i := range s.Events {
		s.Events[i].Key = key
	}
	return s
}

// A lock is lost at its end, however long it was held before.
func TestStallExcusesALossNearIt(t *testing.T) {
	for _, worker := range []string{"a", oracle.Server, oracle.Lab} {
		s := losing("slow-0")
		s.stall(worker, 100, 1400)
		s.expectStalled(t, false, "false-loss")
		s.stall(worker, 7500, 8800)
		s.expectStalled(t, true, "false-loss")
	}
}

func TestStallOfAMasterExcusesItsKeysOnly(t *testing.T) {
	key := schedule.SteadyKey("lab:", 1, 7)
	for shard, want := range []bool{false, true, false} {
		s := losing(key)
		s.Topology = schedule.Cluster
		s.Events = append(s.Events, event.Event{At: 8800 * ms, Kind: event.Stall, Worker: oracle.Server, Dur: 1300 * ms, Note: oracle.ShardNote(shard)})
		s.expectStalled(t, want, "false-loss")
	}
}

func TestStallExcusesALateLossOfItsLength(t *testing.T) {
	for learned, want := range map[int64]bool{9000: true, 9300: false} {
		s := newStory()
		s.add(10, event.Call, "a", 0, "")
		s.add(20, event.Enter, "a", 1, "")
		s.add(learned, event.Exit, "a", 1, event.Lost)
		s.add(learned+10, event.Released, "a", 0, "ownership of the lock was lost")
		s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.BlackHole}, From: 6000 * ms, To: 9500 * ms}}
		s.Deaths = []watch.Death{{At: 8900 * ms, Key: "slow-0", Fence: 1, Cause: "expired"}}
		s.stall("a", 8800, 9000)
		s.expectStalled(t, want, "late-loss")
	}
}

// A trial with half of the sections that it needs is excused if the machine took half of
// the time.
func TestStallsExcuseTheRateByTheirShare(t *testing.T) {
	s := newStory()
	s.hold("a", 10, 20, 30, 40, 1)
	s.add(19_999, event.Call, "a", 0, "")
	need := 2 / time.Duration(s.To-s.From).Seconds()
	s.stall("a", 5000, 5101)
	if v := s.Judge(need); len(v.Violations) != 1 || v.Stalled() {
		t.Errorf("a gap of 101 ms excuses that half is missing: %+v", v.Violations)
	}
	s.stall("a", 6000, 16_000)
	if v := s.Judge(need); !v.Stalled() {
		t.Errorf("not excused: %+v", v.Violations)
	}
}

func TestStallsExcuseIdlenessByTheirLength(t *testing.T) {
	for to, want := range map[int64]bool{3000: false, 4500: true} {
		s := newStory()
		s.hold("a", 10, 20, 30, 40, 1)
		s.add(25, event.Call, "b", 0, "")
		s.add(6000, event.Failed, "b", 0, "context deadline exceeded")
		s.stall("b", 2500, to)
		s.expectStalled(t, want, "idle")
	}
}
