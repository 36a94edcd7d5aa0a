package oracle_test

import (
	"testing"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/watch"
)

// believing is a story beyond the assumptions in which a learns of the end of its lock so long after the
// server dropped it, at 1000.
func believing(topology, key, cause string, late int64) *story {
	s := newStory()
	s.Topology, s.Mode = topology, schedule.Beyond
	s.lose("a", 5, 10, 1000+late, 1)
	s.patient(key, 6000)
	s.Deaths = []watch.Death{{At: 1000 * ms, Key: key, Fence: 1, Cause: cause}}
	return s
}

// On a cluster, only a slot that moves excuses that a key is dropped and its holder believes in it.
func TestOnlyAMoveExcusesADroppedKey(t *testing.T) {
	s := believing(schedule.Cluster, "slow-0", "del", 9000)
	s.fault(schedule.KeyDelete, 0, 998, 999)
	s.expect(t, "late-loss")
	s = believing(schedule.Cluster, "slow-0", "del", 9000)
	s.fault(schedule.SlotMigration, 0, 900, 2900)
	s.expect(t)
	s = believing(schedule.Cluster, "slow-0", "del", 9000)
	s.fault(schedule.SlotMigration, 0, 3000, 5000)
	s.expect(t, "late-loss")
	s = believing(schedule.Cluster, "brisk-0", "del", 9000) // the slots of others do not move
	s.fault(schedule.SlotMigration, 0, 900, 2900)
	s.expect(t, "late-loss")
}

// Beyond the assumptions, a holder has the time of a renewal only if something may have taken its lock away.
// etcd does not say whether a key was deleted or its lease has ended.
func TestAnExpiryIsNoDeletion(t *testing.T) {
	for _, topology := range []string{schedule.Etcd1, schedule.Single} {
		s := believing(topology, "slow-0", "deleted", 1500)
		s.expect(t, "late-loss")
		s.fault(schedule.KeyDelete, 0, 950, 951)
		s.expect(t)
	}
	s := believing(schedule.Etcd1, "slow-0", "deleted", 1500)
	s.fault(schedule.LeaseRevoke, 0, 950, 951)
	s.expect(t)
}

// The server stores the first token of those that a Client hands over inside, and how many they are.
func TestTheEndOfATurn(t *testing.T) {
	s := believing(schedule.Single, "slow-0", "expired", 500)
	for i := range s.Events {
		if s.Events[i].Fence == 1 {
			s.Events[i].Fence = 4
		}
	}
	s.Deaths[0].Tokens = 3
	s.expect(t)
	s.Deaths[0].Tokens = 4
	s.expect(t, "late-loss")
}

// A lease that has a second left does not end while its holder is stopped for 200 ms.
func TestAPauseInTheMiddleOfALease(t *testing.T) {
	s := newStory()
	s.lose("a", 5, 10, 1490, 1)
	s.plan("a", "acquire", event.Plan{Lease: 2000 * ms, Fixed: true})
	s.hold("b", 15, 1010, 1500, 1510, 2)
	s.fault(schedule.WorkerPause, 0, 1000, 1200)
	s.Faults[0].Worker = "a"
	s.expect(t, "overlap", "history", "false-loss")
}

// A grant that was answered late, or not renewed once after the wait, has less of its lease.
func TestALeaseThatBeganEarly(t *testing.T) {
	s := newStory()
	s.lose("a", 5, 1000, 2000, 1)
	s.plan("a", "acquire", event.Plan{Lease: 2000 * ms, Fixed: true})
	s.fault(schedule.ServerPause, 0, 200, 990)
	s.expect(t)
	s.Faults[0].From, s.Faults[0].To = 1600*ms, 1700*ms // which has nothing to do with the grant
	s.expect(t, "false-loss")
}

// Each time in which a lock was free counts, not only the longest.
func TestEveryGapIsJudged(t *testing.T) {
	s := newStory()
	s.add(5, event.Call, "b", 0, "")
	s.hold("a", 8010, 8020, 8100, 8110, 1)
	s.add(15_500, event.Failed, "b", 0, "context deadline exceeded")
	s.fault(schedule.BlackHole, 0, 100, 7000)
	s.patient("slow-0", 16_000)
	s.expect(t, "idle")
}

func TestTheLeastHoldOfReaders(t *testing.T) {
	const least = 500 * ms
	reader := event.Plan{Lease: 2000 * ms, MinHold: least, Mode: "shared"}
	permit := event.Plan{Lease: 2000 * ms, MinHold: least, Mode: "permit", Limit: 2}
	for name, tt := range map[string]struct {
		first, second, next event.Plan
		want                []string
	}{
		"a writer":         {reader, reader, event.Plan{}, []string{"min-hold"}},
		"another reader":   {reader, reader, reader, nil},
		"a third permit":   {permit, permit, permit, []string{"min-hold"}},
		"a permit of few":  {permit, event.Plan{Lease: 2000 * ms, Mode: "permit", Limit: 2}, permit, nil},
		"another for each": {reader, reader, permit, []string{"min-hold"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			s.hold("a", 10, 20, 30, 40, 1)
			s.plan("a", "acquire", tt.first)
			s.hold("b", 11, 21, 31, 41, 2)
			s.plan("b", "acquire", tt.second)
			s.hold("c", 15, 60, 70, 80, 3)
			s.plan("c", "acquire", tt.next)
			s.expect(t, tt.want...)
		})
	}
	s := newStory() // the first permit is left early, the second is still held
	s.hold("a", 10, 20, 30, 40, 1)
	s.plan("a", "acquire", permit)
	s.hold("b", 11, 21, 300, 310, 2)
	s.plan("b", "acquire", event.Plan{Lease: 2000 * ms, Mode: "permit", Limit: 2})
	s.hold("c", 15, 60, 70, 80, 3)
	s.plan("c", "acquire", permit)
	s.expect(t, "min-hold")
}
