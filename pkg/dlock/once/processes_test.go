//go:build unix

package once_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/etcdlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		skew, err := time.ParseDuration(os.Args[3])
		if err == nil {
			err = beProcess(os.Args[1], os.Args[2], skew)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

const (
	// asProcess in the environment makes the test binary one of the processes.
	asProcess = "ONCE_TEST_PROCESS"
	every     = 3 * time.Second
)

// beProcess schedules the job until it is killed. It calls Do when its own clock, which is ahead of the time by its skew,
// shows a multiple of a tenth of the interval. In a run it prints a line, and waits for one.
func beProcess(backend, addr string, skew time.Duration) error {
	store, _, err := connect(backend, addr)
	if err != nil {
		return err
	}
	locks, err := dlock.New(&dlock.Config{}, dlock.WithBackend(store))
	if err != nil {
		return err
	}
	job, err := once.New(locks, "job", every)
	if err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	for {
		asked := time.Now()
		_, err := job.Do(context.Background(), func(ctx context.Context) error {
			guard, _ := dlock.FromContext(ctx)
			fmt.Printf("began %d %d %d\n", asked.UnixNano(), time.Now().UnixNano(), guard.Token())
			_, err := in.ReadString('\n')
			return err
		})
		if err != nil {
			fmt.Printf("error %v\n", err)
		}
		clock := time.Now().Add(skew)
		time.Sleep(clock.Truncate(every / 10).Add(every / 10).Sub(clock))
	}
}

func connect(backend, addr string) (store driver.Opener, closeConn func(), err error) {
	if backend == "redis" {
		c := redis.NewClient(&redis.Options{Addr: addr})
		return redislock.New(c), func() { _ = c.Close() }, nil
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	return etcdlock.New(c), func() { _ = c.Close() }, err
}

// A worker is one process. Its lines are read as they come.
type worker struct {
	*servers.Child
	in    io.WriteCloser
	began chan beginning
}

// A beginning is what a process prints when a run begins.
type beginning struct {
	by    *worker
	asked time.Time // before the lock was granted
	at    time.Time // after that
	token int64
}

func startWorker(t *testing.T, backend, addr string, skew time.Duration, began chan beginning) *worker {
	t.Helper()
	cmd := exec.Command(os.Args[0], backend, addr, skew.String())
	cmd.Env = append(os.Environ(), asProcess+"=1")
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	w := &worker{in: in, began: began, Child: testenv.Child(t, cmd)}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var asked, at, token int64
			if n, _ := fmt.Sscanf(lines.Text(), "began %d %d %d", &asked, &at, &token); n == 3 {
				began <- beginning{w, time.Unix(0, asked), time.Unix(0, at), token}
			}
		}
	}()
	return w
}

func (w *worker) goOn() { _, _ = io.WriteString(w.in, "\n") } // it may be dead

// Five processes whose clocks are up to 30 s apart are killed and stopped in the middle of runs: no two runs begin
// within one hold.
func TestProcesses(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) { t.Parallel(); sabotage(t, "redis", testenv.Redis(t).Addr()) })
	t.Run("etcd", func(t *testing.T) { t.Parallel(); sabotage(t, "etcd", testenv.Etcd(t).Endpoint()) })
}

// sabotage lets each run end well, late or badly.
func sabotage(t *testing.T, backend, addr string) {
	t.Helper()
	began := make(chan beginning, 100)
	skew := func(i int) time.Duration { return time.Duration(i) * 7470 * time.Millisecond }
	workers := map[*worker]int{}
	for i := range 5 {
		workers[startWorker(t, backend, addr, skew(i), began)] = i
	}
	var runs []beginning
	for i := range testenv.UnderStress(6, 60) {
		b := next(t, began, i)
		runs = append(runs, b)
		switch i % 4 {
		case 0:
			b.by.goOn()
		case 1: // it takes longer than the interval
			later(t, b.by.goOn)
		case 2:
			b.by.Kill()
			workers[startWorker(t, backend, addr, skew(workers[b.by]), began)] = workers[b.by]
		case 3: // it wakes up in the run of another process
			check(t, syscall.Kill(b.by.Pid(), syscall.SIGSTOP))
			later(t, func() {
				_ = syscall.Kill(b.by.Pid(), syscall.SIGCONT)
				b.by.goOn()
			})
		}
	}
	checkHolds(t, runs)
}

// checkHolds expects that no two runs began within one hold. A process that stalls after it was granted the lock says so
// after the next one, so that only the tokens have the order of the grants.
func checkHolds(t *testing.T, runs []beginning) {
	t.Helper()
	slices.SortFunc(runs, func(a, b beginning) int { return cmp.Compare(a.token, b.token) })
	hold := every * 9 / 10
	for i := 1; i < len(runs); i++ {
		a, b := runs[i-1], runs[i]
		// Without a hold, the next run would begin at once. A machine that stalls makes the gap longer, but never shorter.
		if gap := b.at.Sub(a.asked); gap < hold/2 || b.token <= a.token {
			t.Errorf("run %d began %v after the one before, with token %d after %d", i, gap, b.token, a.token)
		}
	}
}

// next waits for the beginning of a run. It waits on if the machine has hardly run the processes.
func next(t *testing.T, began chan beginning, i int) beginning {
	t.Helper()
	start := time.Now()
	for {
		select {
		case b := <-began:
			return b
		case <-time.After(2 * time.Minute):
			if took := time.Since(start); !testenv.Stalled(t, start, took-time.Millisecond) {
				t.Fatalf("run %d does not begin for %v", i, took)
			}
		}
	}
}

// later calls f after one and a half intervals, unless the test has ended.
func later(t *testing.T, f func()) {
	t.Helper()
	var calling sync.WaitGroup
	calling.Add(1)
	timer := time.AfterFunc(every*3/2, func() {
		defer calling.Done()
		f()
	})
	t.Cleanup(func() { // before the processes end
		if !timer.Stop() {
			calling.Wait()
		}
	})
}
