package dashboard

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/election"
	"github.com/ceyewan/genesis/pkg/dlock/once"
)

// elect makes this process stand for election, and returns what ends it and its term.
func (f *fixture) elect(name string, opts ...election.Option) (e *election.Election, term int64) {
	f.Helper()
	terms := make(chan int64, 1)
	e, err := election.New(f.locks, name, election.Callbacks{OnElected: func(ctx context.Context, term int64) {
		terms <- term
		<-ctx.Done()
	}}, opts...)
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Run(ctx)
	}()
	f.Cleanup(func() {
		cancel()
		<-done
	})
	return e, <-terms
}

func (f *fixture) leaders() []leadership {
	f.Helper()
	return get[struct{ Sources []sourceLeaders }](f, "/api/v1/leaders").Sources[0].Leaders
}

func (f *fixture) jobs() []*job {
	f.Helper()
	return get[struct{ Sources []sourceJobs }](f, "/api/v1/jobs").Sources[0].Jobs
}

// run runs a job once.
func (f *fixture) run(key string, every time.Duration, fn func(context.Context) error, opts ...once.Option) {
	f.Helper()
	j, err := once.New(f.locks, key, every, opts...)
	if err != nil {
		f.Fatal(err)
	}
	if ran, err := j.Do(f.Context(), fn); !ran && err != nil {
		f.Fatal(err)
	}
}

func succeed(context.Context) error { return nil }

// Leaders have their term, and the value that they have published; ordinary locks are none.
func TestLeaders(t *testing.T) {
	f := setUp(t)
	e, term := f.elect("billing:leader", election.WithValue("10.0.0.7:8080"))
	_, plain := f.elect("mail:leader")
	f.take("order:1")
	f.take("order:1:value", dlock.WithInfo(dlock.Info{Purpose: "about to ship"}))
	f.eventually("the value", func() bool { return len(f.leaders()) == 2 && f.leaders()[0].Value != "" })
	all := f.leaders()
	if l := all[0]; l.Key != "billing:leader" || l.Term != fmt.Sprint(term) || l.Value != "10.0.0.7:8080" || l.Owner == "" || l.PID == 0 || l.Since == 0 || *l.Candidates != 0 {
		t.Errorf("%+v", l)
	}
	if l := all[1]; l.Key != "mail:leader" || l.Term != fmt.Sprint(plain) || l.Value != "" {
		t.Errorf("%+v", l)
	}
	if d := get[detail](f, "/api/v1/lock?source=memory&key=billing:leader"); d.Role != roleLeader || d.Leader == nil || d.Leader.Value != "10.0.0.7:8080" {
		t.Errorf("%+v", d.part)
	}
	for key, role := range map[string]string{"billing:leader:value": roleValue, "order:1": "", "order:1:value": ""} {
		if d := get[detail](f, "/api/v1/lock?source=memory&key="+key); d.Role != role || d.Leader != nil {
			t.Errorf("%s: %+v", key, d.part)
		}
	}
	if err := e.SetValue("10.0.0.8:8080"); err != nil {
		t.Fatal(err)
	}
	f.eventually("the new value", func() bool { return f.leaders()[0].Value == "10.0.0.8:8080" })
}

// A change of the value alone reaches the viewers.
func TestValueIsStreamed(t *testing.T) {
	f := setUp(t)
	long := []dlock.LockOption{dlock.WithTTL(time.Hour), dlock.WithoutRenewal()}
	g := f.take("k", long...)
	next, _ := f.follow()
	f.nextUpdate(next)
	f.take("k:value", append(long, dlock.WithInfo(dlock.Info{Purpose: fmt.Sprint(g.Token(), " here")}))...)
	u := f.nextUpdate(next)
	for _, r := range u.Changed {
		if r.Key == "k" && r.Leader != nil && r.Leader.Value == "here" {
			return
		}
	}
	t.Errorf("%+v", u)
}

// A value of an earlier term is not that of the leader.
func TestStaleValue(t *testing.T) {
	f := setUp(t)
	g := f.take("k", dlock.WithInfo(dlock.Info{Purpose: "leader election"}))
	f.take("k:value", dlock.WithInfo(dlock.Info{Purpose: fmt.Sprint(g.Token()+1, " elsewhere")}))
	if all := f.leaders(); len(all) != 1 || all[0].Value != "" || all[0].Term != fmt.Sprint(g.Token()) {
		t.Errorf("%+v", all)
	}
}

// A job that has run is done until its lock ends, with its last run.
func TestJobs(t *testing.T) {
	f := setUp(t)
	before := time.Now()
	f.run("report", time.Hour, succeed)
	f.run("backup", time.Hour, func(context.Context) error { return errors.New("disk <full>") })
	all := f.jobs()
	if len(all) != 2 || all[0].Key != "backup" || all[1].Key != "report" {
		t.Fatalf("%+v", all)
	}
	if j := all[0]; j.Last.OK || j.Last.Error != "disk <full>" || j.State != jobDone {
		t.Errorf("%+v", j)
	}
	j := all[1]
	if !j.Last.OK || j.Last.Owner == "" || j.Last.PID == 0 || j.Last.Ended < before.Add(-time.Second).UnixMilli() || j.State != jobDone || j.Since != 0 {
		t.Errorf("%+v", j)
	}
	due := time.UnixMilli(j.Due).Sub(before)
	if due < 58*time.Minute || due > 60*time.Minute {
		t.Errorf("due in %v, not in 59 minutes", due)
	}
	for _, key := range []string{"report", "report:runs"} {
		d := get[detail](f, "/api/v1/lock?source=memory&key="+key)
		if d.Job == nil || d.Job.Key != "report" || len(d.Runs) != 1 || d.Runs[0] != d.Job.Last {
			t.Errorf("%s: %+v, %+v", key, d.Job, d.Runs)
		}
	}
	f.take("none:runs", dlock.WithShared(), dlock.WithInfo(dlock.Info{Purpose: "ok"}))
	f.take("other:runs", dlock.WithInfo(dlock.Info{Purpose: "ok in 3s"}))
	f.eventually("these locks", func() bool {
		return get[struct{ Sources []sourceLocks }](f, "/api/v1/locks").Sources[0].Locks == 6
	})
	if n := len(f.jobs()); n != 2 {
		t.Errorf("%d jobs with locks that are no records", n)
	}
}

// A job that runs is shown with its process; when it is due again, with the time since when.
func TestJobRunsAndIsDue(t *testing.T) {
	f := setUp(t)
	f.run("report", time.Hour, succeed)
	f.eventually("it is done", func() bool { return len(f.jobs()) == 1 && f.jobs()[0].State == jobDone })
	f.store.Advance(61 * time.Minute)
	f.eventually("it is due", func() bool { return len(f.jobs()) == 1 && f.jobs()[0].State == jobDue })
	due := f.jobs()[0].Due
	if ago := time.Since(time.UnixMilli(due)); ago < 0 || ago > limit { // only the clock of the store was advanced
		t.Errorf("due since %v", ago)
	}
	f.eventually("another reading", func() bool { return f.page.sources[0].current().at.UnixMilli() > due+1000 || f.jobs() == nil })
	if got := f.jobs()[0].Due; got != due {
		t.Errorf("due since %d, then since %d", due, got)
	}
	if d := get[detail](f, "/api/v1/lock?source=memory&key=report"); d.HolderCount != 0 || d.Job == nil || len(d.Runs) != 1 {
		t.Errorf("%+v, %+v", d.Job, d.Runs)
	}
	began, end := make(chan struct{}), make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run("report", time.Hour, func(context.Context) error {
			close(began)
			<-end
			return errors.New("exit status 1")
		}, once.WithInfo(dlock.Info{Owner: "bob", Host: "db-1", PID: 77}))
	}()
	select {
	case <-began:
	case <-done:
		t.Fatal("the job did not run")
	}
	f.eventually("it runs", func() bool {
		j := f.jobs()[0]
		return j.State == jobRuns && j.Runner == process{"bob", "db-1", 77} && j.Since > 0 && j.Last.OK
	})
	close(end)
	<-done
	f.eventually("it has failed", func() bool { j := f.jobs()[0]; return j.State == jobDone && !j.Last.OK && j.Runner == process{} })
	d := get[detail](f, "/api/v1/lock?source=memory&key=report")
	if len(d.Runs) != 2 || d.Runs[0].OK || !d.Runs[1].OK {
		t.Errorf("not the newest first: %+v", d.Runs)
	}
}

// A run that lost its lock and ended later does not hide the run that followed it.
func TestRunThatLostItsLock(t *testing.T) {
	record := func(ended int64, result string) claim {
		return claim{Since: ended, Purpose: result, Mode: modeShared}
	}
	runs := &row{holders: []claim{record(10_000, "ok in 1s"), record(30_000, "ok in 5s"), record(31_000, "lost in 20s: taken away"), record(32_000, "no record")}}
	all := runsOf(runs)
	if len(all) != 3 || all[0].Ended != 30_000 || all[1].Ended != 31_000 || all[2].Ended != 10_000 {
		t.Errorf("the runs are %+v", all)
	}
	if last, ok := lastRun(runs); !ok || !last.OK {
		t.Errorf("the last run is %+v", last)
	}
	if all := runsOf(nil); all == nil || len(all) > 0 {
		t.Errorf("%v without records", all)
	}
}

// Leaders and jobs are found in the reading of the locks: they cost no question of their own.
func TestRecipesCostNothing(t *testing.T) {
	f := setUp(t)
	f.elect("billing:leader")
	f.run("report", time.Hour, succeed)
	next, _ := f.follow()
	f.nextUpdate(next)
	lists, inspects := f.page.sources[0].reader.Calls()
	seq := f.page.sources[0].current().seq
	for range 20 {
		f.leaders()
		f.jobs()
		get[detail](f, "/api/v1/lock?source=memory&key=report")
	}
	l, i := f.page.sources[0].reader.Calls()
	readings := int64(f.page.sources[0].current().seq-seq) + 1 // one may go on
	if l-lists > readings || i-inspects > 3*readings {         // three locks
		t.Errorf("%d and %d questions in %d readings", l-lists, i-inspects, readings)
	}
}
