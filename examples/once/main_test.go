package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
)

// asService in the environment makes the test binary run as the program itself.
const asService = "EXAMPLE_AS_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// A printed is what a process has printed about a run.
type printed struct {
	pid   int
	token int64
	at    time.Time
}

// midway returns an interval of about 16 seconds of which a half is left, by the clock: processes that start now try
// to run the job a second time before the interval is over.
func midway() time.Duration {
	for every := 16 * time.Second; ; every += time.Millisecond {
		now := time.Now()
		if left := now.Truncate(every).Add(every).Sub(now); left > every/2 && left < every*5/8 {
			return every
		}
	}
}

// Three processes, of which the one that runs the job is killed each time: the job runs once in each interval.
func TestOncePerInterval(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t).Addr()
	metronome, every := testenv.StartMetronome(t), midway()
	runs := make(chan printed, 100)
	all := map[int]interface{ Kill() }{}
	for range 3 {
		cmd := exec.Command(os.Args[0], "-redis", addr, "-every", every.String())
		cmd.Env = append(os.Environ(), asService+"=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		child := testenv.Child(t, cmd)
		all[child.Pid()] = child
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				r := printed{at: time.Now()}
				if n, _ := fmt.Sscanf(lines.Text(), "%d runs the job, token %d", &r.pid, &r.token); n == 2 {
					runs <- r
				}
			}
		}()
	}
	var before printed
	for i := range 3 {
		select {
		case r := <-runs:
			// At least 0.85 intervals are between two runs, unless the line of the first came late.
			least := testenv.UnderStress(every*5/8-metronome.LostBetween(before.at.Add(-every), before.at), every*3/4)
			if i > 0 && (r.at.Sub(before.at) < least || r.token <= before.token) {
				t.Errorf("run %d began %v after the one before, with token %d after %d", i, r.at.Sub(before.at), r.token, before.token)
			}
			before = r
			all[r.pid].Kill()
		case <-time.After(5 * every): // an attempt that takes a twentieth of an interval is given up
			t.Fatal("the job does not run")
		}
	}
}
