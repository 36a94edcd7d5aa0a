package result_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/lab/internal/event"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/result"
	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/trial"
)

// returning is a trial with so many calls that returned late after their context had ended, of a hundred.
func returning(late int) *oracle.Verdict {
	const ms = int64(time.Millisecond)
	e := &oracle.Evidence{Topology: schedule.Single, Mode: schedule.Inside, TTL: 2 * time.Second, From: ms, To: 200_000 * ms}
	for i := range 100 {
		over := ms
		if i < late {
			over = 180 * ms
		}
		call := event.Event{At: int64(1+1000*i) * ms, Kind: event.Call, Worker: "a", Key: "quick-0-0", Attempt: fmt.Sprint("a/", i), Dur: 50 * ms}
		failed := call
		failed.At, failed.Kind, failed.Dur, failed.Note = call.At+call.Dur+over, event.Failed, 0, "context deadline exceeded"
		e.Events = append(e.Events, call, failed)
	}
	return e.Judge(0)
}

// Of 3000 calls 50 return late, which is more than one in a hundred, all of them in one trial.
func TestLateReturnsOfOneTrial(t *testing.T) {
	folder := result.Folder(t.TempDir())
	for i := range 30 {
		late := 0
		if i == 0 {
			late = 50
		}
		spec := trial.Spec{Seed: uint64(i), Topology: schedule.Single, Mode: schedule.Inside, Length: time.Minute}
		if err := folder.Save(result.Result{Spec: spec, Verdict: returning(late)}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := folder.Summarise("nightly", []string{schedule.Single}, []string{"inside"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range s.Figures {
		if f.Name == "return after the context ended, p99 of 3000, seconds" {
			if f.Value != 0.18 || f.OK {
				t.Errorf("%+v", f)
			}
			return
		}
	}
	t.Errorf("no such figure: %+v", s.Figures)
}
