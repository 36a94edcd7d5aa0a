package oncegocron_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/adapters/cron/oncegocron"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/election"
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

func client(t *testing.T, addr string) *dlock.Client {
	t.Helper()
	conn := redis.NewClient(&redis.Options{Addr: addr})
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(conn)), dlock.WithAdmin())
	check(t, err)
	t.Cleanup(func() { _, _ = c.Close(), conn.Close() })
	return c
}

// A journal records which scheduler has run a job, and when.
type journal struct {
	mu    sync.Mutex
	asked map[int]time.Time // when each scheduler last asked for a lock that it got
	runs  []entry
}

type entry struct {
	scheduler int
	asked     time.Time // before the lock was granted
	at        time.Time // after that
}

func (j *journal) add(scheduler int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.runs = append(j.runs, entry{scheduler, j.asked[scheduler], time.Now()})
}

// A recorder records when locks were asked for.
type recorder struct {
	gocron.Locker
	scheduler int
	journal   *journal
}

func (r recorder) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	asked := time.Now()
	lock, err := r.Locker.Lock(ctx, key)
	if err == nil {
		r.journal.mu.Lock()
		defer r.journal.mu.Unlock()
		r.journal.asked[r.scheduler] = asked
	}
	return lock, err
}

func (j *journal) all() []entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.runs)
}

// start starts a scheduler that runs a job all the time.
func start(t *testing.T, i int, j *journal, opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(opts...)
	check(t, err)
	_, err = s.NewJob(gocron.DurationJob(50*time.Millisecond), gocron.NewTask(func() { j.add(i) }), gocron.WithName("report"))
	check(t, err)
	s.Start()
	return s
}

// Three schedulers run a job 60 times a second; with a Locker it runs once per interval.
func TestLocker(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t).Addr()
	j := &journal{asked: map[int]time.Time{}}
	var all []gocron.Scheduler
	for i := range 3 {
		locker, err := oncegocron.NewLocker(client(t, addr), 3*time.Second)
		check(t, err)
		all = append(all, start(t, i, j, gocron.WithDistributedLocker(recorder{locker, i, j})))
	}
	testenv.Eventually(t, patience, "the job runs in four intervals", func() bool { return len(j.all()) >= 4 })
	for _, s := range all {
		check(t, s.Shutdown())
	}
	runs := j.all()
	for i, a := range runs {
		if a.asked.IsZero() {
			t.Errorf("run %d has no lock", i)
		}
		for _, b := range runs[:i] {
			// Without a Locker, it is milliseconds. A machine that stalls makes it longer, but never shorter. It may also record the
			// second run first.
			if gap := max(a.at.Sub(b.asked), b.at.Sub(a.asked)); gap < 1500*time.Millisecond {
				t.Errorf("run %d began %v after another", i, gap)
			}
		}
	}
	job, err := once.New(client(t, addr), "report", 3*time.Second)
	check(t, err)
	if last, found, err := job.Last(t.Context()); err != nil || !found || !last.OK {
		t.Errorf("the last run is %+v, %v, %v", last, found, err)
	}
}

// What Lock and Unlock return, and that Close of the Client does not free the key.
func TestLockerItself(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t).Addr()
	first := client(t, addr)
	locker, err := oncegocron.NewLocker(first, time.Hour)
	check(t, err)
	other, err := oncegocron.NewLocker(client(t, addr), time.Hour)
	check(t, err)
	lock, err := locker.Lock(t.Context(), "report")
	check(t, err)
	check(t, lock.Unlock(t.Context()))
	if err := lock.Unlock(t.Context()); !errors.Is(err, dlock.ErrLockNotHeld) {
		t.Errorf("Unlock again: %v", err)
	}
	check(t, first.Close())
	if _, err := other.Lock(t.Context(), "report"); !errors.Is(err, oncegocron.ErrNotDue) {
		t.Errorf("Lock in the same interval: %v", err)
	}
	if _, err := locker.Lock(t.Context(), "report"); !errors.Is(err, dlock.ErrClosed) {
		t.Errorf("Lock after Close: %v", err)
	}
	if _, err := other.Lock(t.Context(), ""); !errors.Is(err, dlock.ErrInvalidKey) {
		t.Errorf("Lock without a name: %v", err)
	}
	if _, err := oncegocron.NewLocker(nil, time.Hour); !errors.Is(err, dlock.ErrInvalidConfig) {
		t.Errorf("no Client: %v", err)
	}
}

// With an Elector, one scheduler runs the job; when it closes, another one does.
func TestElector(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t).Addr()
	j := &journal{}
	schedulers, electors := map[int]gocron.Scheduler{}, map[int]*oncegocron.Elector{}
	for i := range 3 {
		e, err := oncegocron.NewElector(client(t, addr), "schedulers", election.WithTTL(20*time.Second), election.WithPoll(50*time.Millisecond))
		check(t, err)
		electors[i] = e
		schedulers[i] = start(t, i, j, gocron.WithDistributedElector(e))
	}
	for range 3 {
		seen := len(j.all())
		testenv.Eventually(t, patience, "a scheduler runs the job", func() bool { return len(j.all()) >= seen+3 })
		runs := j.all()[seen:]
		leader := runs[len(runs)-1].scheduler
		leaders := 0
		for i, e := range electors {
			if e.IsLeader(t.Context()) == nil {
				leaders++
			} else if i == leader {
				t.Errorf("%d runs the job and does not lead", leader)
			}
		}
		if leaders != 1 {
			t.Errorf("%d lead", leaders)
		}
		check(t, schedulers[leader].Shutdown())
		electors[leader].Close()
		if err := electors[leader].IsLeader(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("after Close: %v", err)
		}
		delete(schedulers, leader)
		delete(electors, leader)
	}
	if _, err := oncegocron.NewElector(nil, "schedulers"); !errors.Is(err, dlock.ErrInvalidConfig) {
		t.Errorf("no Client: %v", err)
	}
}
