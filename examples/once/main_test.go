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

// Three processes, of which the one that runs the job is killed each time: the job runs once in each interval.
func TestOncePerInterval(t *testing.T) {
	t.Parallel()
	const every = 8 * time.Second
	addr := testenv.Redis(t).Addr()
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
			if i > 0 && (r.at.Sub(before.at) < every/4 || r.token <= before.token) { // without a hold, it would be milliseconds
				t.Errorf("run %d began %v after the one before, with token %d after %d", i, r.at.Sub(before.at), r.token, before.token)
			}
			before = r
			all[r.pid].Kill()
		case <-time.After(time.Minute):
			t.Fatal("the job does not run")
		}
	}
}
