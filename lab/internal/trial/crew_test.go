package trial

import (
	"errors"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
)

// A worker that crashes, also when it is told to end, is not one that is stuck.
func TestHowAWorkerEnds(t *testing.T) {
	const runs = "; echo ready; while :; do sleep 0.01; done"
	for name, tt := range map[string]struct {
		script         string
		within         time.Duration
		crashed, stuck bool
	}{
		"in good order": {script: "trap 'exit 0' TERM" + runs, within: time.Minute},
		"crashes then":  {script: "trap 'exit 2' TERM" + runs, within: time.Minute, crashed: true},
		"before":        {script: "echo ready; exit 2", within: time.Minute, crashed: true},
		"too soon":      {script: "echo ready; exit 0", within: time.Minute, crashed: true},
		"hangs":         {script: "trap '' TERM" + runs, within: 500 * time.Millisecond, stuck: true},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := servers.StartProcess(servers.ProcessOptions{Path: "/bin/sh", Args: []string{"-c", tt.script}, StopWithin: tt.within, Orderly: true})
			if err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, time.Minute, "the process is ready", func() bool { return p.Log() != "" })
			if name == "before" || name == "too soon" {
				<-p.Done()
			}
			stuck, err := (&workerProcess{p, "w"}).stop()
			if (err != nil) != tt.crashed || errors.Is(err, ErrCrash) != tt.crashed {
				t.Errorf("it ended with %v", err)
			}
			if (stuck.Worker == "w") != tt.stuck || stuck.To-stuck.From < 0 || (tt.stuck && stuck.To-stuck.From < int64(tt.within)) {
				t.Errorf("it was %+v", stuck)
			}
		})
	}
}
