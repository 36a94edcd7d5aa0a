package trial

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/mono"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/topology"
)

// A failover is one of the servers' own unless the schedule has it, and lasts until the old master is a replica. It is looked for
// beyond the assumptions only: inside, nothing excuses it.
func TestFailoversOfTheServersOwn(t *testing.T) {
	for name, tt := range map[string]struct {
		mode    schedule.Mode
		planned bool
		want    int
	}{
		"planned":                {schedule.Beyond, true, 0},
		"own":                    {schedule.Beyond, false, 1},
		"inside the assumptions": {schedule.Inside, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			setup := schedule.SetupFor(1, schedule.Replicated, tt.mode)
			top, err := topology.Start(t.Context(), schedule.Replicated, tt.mode, setup)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := top.Stop(); err != nil {
					t.Error(err)
				}
			})
			log, err := event.Open(filepath.Join(t.TempDir(), "events"), oracle.Lab)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			one := &trial{top: top, log: log, spec: Spec{Mode: tt.mode}, evidence: &oracle.Evidence{}}
			stop := one.watchMachine()
			testenv.Eventually(t, time.Minute, "both were asked", func() bool { return one.turns.known() == 2 })
			s := oracle.Struck{Fault: schedule.Fault{Kind: schedule.PlannedFailover}, From: mono.Now()}
			heal, err := top.Inject(t.Context(), s.Fault)
			if err != nil {
				t.Fatal(err)
			}
			if err := heal(t.Context()); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, time.Minute, "both have turned", func() bool { return len(one.turns.seen()) == 2 })
			s.To = mono.Now()
			if tt.planned {
				one.evidence.Faults = []oracle.Struck{s}
			}
			stop()
			own := 0
			for _, f := range one.evidence.Faults {
				if f.Kind == schedule.OwnFailover {
					own++
					if f.From >= s.To || f.To <= s.From || f.Hit > s.To {
						t.Errorf("it was %+v, between %d and %d", f, s.From, s.To)
					}
				}
			}
			if own != tt.want {
				t.Errorf("%d failovers of their own, want %d: %+v", own, tt.want, one.evidence.Faults)
			}
		})
	}
}
