package oracle_test

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// What a master answered before it was a replica is lost as well if the servers replaced it themselves, and only then.
func TestAReleaseLostInAFailoverOfTheServersOwn(t *testing.T) {
	turn := func(addr string, master bool, at int64) oracle.Turn {
		return oracle.Turn{Addr: addr, Master: master, From: (at - 50) * ms, To: at * ms}
	}
	planned := oracle.Struck{Fault: schedule.Fault{Kind: schedule.Failover}, From: 9000 * ms, Hit: 9001 * ms, To: 9500 * ms}
	elsewhere := turn("old", false, 390)
	elsewhere.Note = oracle.ShardNote(1)
	for name, tt := range map[string]struct {
		turns []oracle.Turn
		want  []string
	}{
		"none":                          {nil, []string{"lingering"}},
		"deposed after it had answered": {[]oracle.Turn{turn("new", true, 300), turn("old", false, 500)}, nil},
		"before":                        {[]oracle.Turn{turn("new", true, 300), turn("old", false, 390)}, []string{"lingering"}},
		"promoted after it":             {[]oracle.Turn{turn("new", true, 600), turn("old", false, 900)}, []string{"lingering"}},
		"not yet a replica":             {[]oracle.Turn{turn("new", true, 300)}, nil},
		"the same server again":         {[]oracle.Turn{turn("new", true, 300), turn("new", false, 390)}, nil},
		"a replica of another shard":    {[]oracle.Turn{turn("new", true, 300), elsewhere}, nil},
		"as the schedule wanted it":     {[]oracle.Turn{turn("new", true, 9200), turn("old", false, 9300)}, []string{"lingering"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			s.Mode = schedule.Beyond
			s.hold("a", 10, 20, 390, 400, 1)
			s.see(1900, "a")
			s.Stored[0].Token = 1
			s.Faults = oracle.WithOwn([]oracle.Struck{planned}, tt.turns, s.To)
			s.expect(t, tt.want...)
			own := len(s.Faults) - 1
			if want := len(tt.turns) > 0 && name != "as the schedule wanted it"; (own == 1) != want || s.Faults[own] != planned {
				t.Errorf("faults, which are in order: %+v", s.Faults)
			}
		})
	}
}

// What is left at the end may be of a call that failed while a master went on answering that was being replaced: of its process,
// for the key, and of none that succeeded.
func TestAFailedCallIsLostInAFailover(t *testing.T) {
	told := func(failed int64, worker string) *story {
		s := newStory()
		s.Mode, s.To = schedule.Beyond, 10_600*ms // the longest lease is ten seconds
		s.Faults = []oracle.Struck{{Fault: schedule.Fault{Kind: schedule.ForcedFailover}, From: 400 * ms, Hit: 900 * ms, To: 950 * ms}}
		s.add(10, event.Call, worker, 0, "")
		s.add(failed, event.Failed, worker, 0, "outcome is unknown")
		s.hold("d", 2000, 2010, 2020, 2030, 2)
		s.Ghosts = []oracle.Ghost{{Key: "slow-0", PID: 'a', Phase: "held", Token: 1, Left: time.Second}}
		return s
	}
	told(600, "a").expect(t)
	told(299, "a").expect(t, "ghost")
	told(901, "a").expect(t, "ghost")
	told(600, "b").expect(t, "ghost")
	s := told(600, "a")
	s.Ghosts[0].Key = "slow-1"
	s.expect(t, "ghost")
	s.Ghosts[0].Key, s.Ghosts[0].Purpose = "slow-0", "of another call"
	s.expect(t, "ghost")
	s.Ghosts[0].Purpose = "a/1"
	s.expect(t)
	s.To += ms // its lease would have ended
	s.expect(t, "ghost")
	for _, refused := range []struct {
		verb string
		wait int64
		want []string
	}{{"try-acquire", 0, []string{"ghost"}}, {"do", 0, []string{"ghost"}}, {"acquire", 100 * ms, nil}} {
		s = told(600, "a")
		for i := range s.Events {
			if e := &s.Events[i]; e.Worker == "a" && e.Kind == event.Failed {
				e.Note = dlock.ErrLockHeldByOther.Error()
			}
		}
		s.plan("a", refused.verb, event.Plan{HasWait: true, Wait: refused.wait})
		s.expect(t, refused.want...)
	}
	s = told(600, "d")
	s.Ghosts[0].PID = 'd'
	s.expect(t)
	s.Ghosts[0].Token = 2 // which was released
	s.expect(t, "ghost")
}
