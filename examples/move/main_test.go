package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/servers"
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

// A fleet is what the processes of a test share.
type fleet struct {
	service
	counted atomic.Int64
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	return &fleet{service: service{
		redis: testenv.Redis(t).Addr(), etcd: testenv.Etcd(t).Endpoint(), counter: filepath.Join(t.TempDir(), "counter"),
	}}
}

// A process is one of them.
type process struct {
	*servers.Child
	ended   sync.WaitGroup // its output
	counted atomic.Int64
}

func (f *fleet) start(t *testing.T, locks string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-redis", f.redis, "-etcd", f.etcd, "-locks", locks, "-counter", f.counter)
	cmd.Env = append(os.Environ(), asService+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Child: testenv.Child(t, cmd)}
	p.ended.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var n int64
			if found, _ := fmt.Sscanf(lines.Text(), "counted %d", &n); found == 1 {
				p.counted.Add(1)
				f.counted.Add(1)
			}
		}
	})
	return p
}

// stop lets a process finish what it does.
func (p *process) stop(t *testing.T) {
	t.Helper()
	process, err := os.FindProcess(p.Pid())
	if err == nil {
		err = process.Signal(syscall.SIGTERM)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.ended.Wait()
}

// lost returns how many numbers are missing from the file.
func (f *fleet) lost(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(f.counter)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f.counted.Load() - n
}

// move takes six processes through the steps one by one, while together they count this often.
func (f *fleet) move(t *testing.T, sections int64, steps ...string) {
	t.Helper()
	const size = 6
	var all [size]*process
	for i := range all {
		all[i] = f.start(t, steps[0])
	}
	restarts := int64(0)
	for _, step := range steps[1:] {
		for i := range all {
			restarts++
			part := sections * restarts / (size*int64(len(steps)-1) + 1)
			testenv.Eventually(t, 10*time.Minute, "the processes count", func() bool { return f.counted.Load() >= part })
			all[i].stop(t)
			all[i] = f.start(t, step)
			testenv.Eventually(t, 2*time.Minute, "the new process counts", func() bool { return all[i].counted.Load() > 0 })
		}
	}
	testenv.Eventually(t, 10*time.Minute, "the processes count", func() bool { return f.counted.Load() >= sections })
	for _, p := range all {
		p.stop(t)
	}
}

// A fleet of six moves from Redis to etcd while it works: no two processes work at the same time.
func TestFleetMoves(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	began := time.Now()
	f.move(t, testenv.UnderStress[int64](800, 10_000), "old", "both", "new")
	if n := f.lost(t); n != 0 {
		t.Errorf("%d of %d numbers are lost", n, f.counted.Load())
	}
	t.Logf("%d sections in %v", f.counted.Load(), time.Since(began).Round(time.Millisecond))
}

// The control: a fleet that leaves out the step with both loses numbers.
func TestFleetWithoutBoth(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	f.move(t, 800, "old", "new")
	if n := f.lost(t); n == 0 {
		t.Errorf("no number is lost of %d: the test would not notice an overlap", f.counted.Load())
	}
}
