package oncerobfig_test

import (
	"bytes"
	"log"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/adapters/cron/oncerobfig"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/once"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newJob(t *testing.T, addr string, every time.Duration) (*once.Job, *dlock.Client) {
	t.Helper()
	conn := redis.NewClient(&redis.Options{Addr: addr})
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(conn)), dlock.WithAdmin())
	check(t, err)
	t.Cleanup(func() { _, _ = c.Close(), conn.Close() })
	job, err := once.New(c, "report", every)
	check(t, err)
	return job, c
}

// A text is what loggers of several goroutines have written.
type text struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.all.Write(p)
}

func (x *text) has(part string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return strings.Contains(x.all.String(), part)
}

// Three crons schedule a job every second; it runs once per interval.
func TestWrap(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t).Addr()
	var mu sync.Mutex
	type run struct{ asked, began time.Time } // before the lock was granted, and after that
	var began []run
	runs := func() []run {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(began)
	}
	said := &text{}
	logger := cron.VerbosePrintfLogger(log.New(said, "", 0))
	for range 3 {
		job, _ := newJob(t, addr, 3*time.Second)
		c := cron.New()
		_, err := c.AddFunc("@every 1s", func() {
			asked := time.Now()
			cron.NewChain(oncerobfig.Wrap(job, logger)).Then(cron.FuncJob(func() {
				mu.Lock()
				defer mu.Unlock()
				began = append(began, run{asked, time.Now()})
			})).Run()
		})
		check(t, err)
		c.Start()
		defer func() { <-c.Stop().Done() }()
	}
	testenv.Eventually(t, patience, "the job runs in four intervals", func() bool { return len(runs()) >= 4 })
	all := runs()
	for i, a := range all {
		for _, b := range all[:i] {
			// Without the wrapper, it is milliseconds. A machine that stalls makes it longer, but never shorter. It may also record the
			// second run first.
			if gap := max(a.began.Sub(b.asked), b.began.Sub(a.asked)); gap < 1500*time.Millisecond {
				t.Errorf("run %d began %v after another", i, gap)
			}
		}
	}
	if !said.has("skip, key=report") {
		t.Error("no run was reported as skipped")
	}
}

// A panic is passed on, and the run is recorded as failed. What goes wrong with the lock is logged.
func TestPanicAndError(t *testing.T) {
	t.Parallel()
	job, c := newJob(t, testenv.Redis(t).Addr(), time.Hour)
	said := &text{}
	logger := cron.PrintfLogger(log.New(said, "", 0))
	wrapped := cron.NewChain(cron.Recover(logger), oncerobfig.Wrap(job, nil)).Then(cron.FuncJob(func() { panic("out of cheese") }))
	wrapped.Run()
	if !said.has("out of cheese") {
		t.Error("the panic was not passed on")
	}
	last, found, err := job.Last(t.Context())
	if err != nil || !found || last.OK {
		t.Errorf("the last run is %+v, %v, %v", last, found, err)
	}
	check(t, c.Close())
	oncerobfig.Wrap(job, logger)(cron.FuncJob(func() { t.Error("it runs without a lock") })).Run()
	if !said.has("ran=false") {
		t.Error("the error was not logged")
	}
}
