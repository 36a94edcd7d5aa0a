package browser

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/election"
	"github.com/ceyewan/genesis/pkg/dlock/once"
)

// leads makes a process lead until the test ends, and returns its term.
func (s *store) leads(name, value string) int64 {
	s.t.Helper()
	terms := make(chan int64, 1)
	e, err := election.New(s.client(), name, election.Callbacks{OnElected: func(ctx context.Context, term int64) {
		terms <- term
		<-ctx.Done()
	}}, election.WithValue(value))
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Run(ctx)
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
	})
	return <-terms
}

// runs runs a job once.
func (s *store) runs(key string, every time.Duration, info dlock.Info, result error) {
	s.t.Helper()
	j, err := once.New(s.client(), key, every, once.WithInfo(info))
	if err != nil {
		s.t.Fatal(err)
	}
	if ran, err := j.Do(s.t.Context(), func(context.Context) error { return result }); !ran {
		s.t.Fatal(err)
	}
}

// cells are the cells of the row of a table that begins with a key.
func cells(label, key string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("[aria-label=%s] tbody tr")].filter((r) => r.children[0].textContent === %q).map((r) => [...r.children].map((c) => c.textContent))[0]`, label, key)
}

// Leaders have their term and value; jobs their last run and when the next one is due. Hostile text stays text.
func TestLeadersAndJobs(t *testing.T) {
	s := inMemory(t)
	hostile := `<img src=x onerror="window.hacked=1">`
	term := s.leads("billing:leader", hostile)
	ann, bob := dlock.Info{Owner: "ann", Host: "web-1", PID: 7}, dlock.Info{Owner: "bob", Host: "web-2", PID: 8}
	s.runs("report", time.Hour, ann, nil)
	s.runs("backup", time.Hour, bob, errors.New("disk full "+hostile))
	p := openTab(t, light, s.server.URL)
	p.await("what there is", `document.getElementById("jobs-link").textContent === "1 leader · 2 jobs (1 failed)"`)
	p.await("no culprit among them", `document.getElementById("longest").textContent.startsWith("No lock is held")`)
	p.await("their roles", `[...document.querySelectorAll("#rows .role:not([hidden])")].map((e) => e.textContent).sort().join() === "job,job,leader,records,records,value"`)
	p.click("#jobs-link")
	p.await("the leader", fmt.Sprintf(`((c) => c && c[2] === %q && c[3] === "%d" && c[5] === "0")(%s)`, hostile, term, cells("Leaders", "billing:leader")))
	p.await("the job that failed, first", fmt.Sprintf(`document.querySelector("[aria-label=Jobs] tbody td").textContent === "backup" && ((c) => c[1] === %q && c[4] === "bob@web-2 pid 8" && c[5] === "has run" && /^in 5[89]m/.test(c[6]))(%s)`, "faileddisk full "+hostile, cells("Jobs", "backup")))
	p.await("the other job", fmt.Sprintf(`((c) => c && c[1] === "ok" && / ago$/.test(c[2]) && c[4] === "ann@web-1 pid 7")(%s)`, cells("Jobs", "report")))
	s.opener.Advance(61 * time.Minute)
	p.await("it is due", fmt.Sprintf(`((c) => c && c[5] === "due" && /^since \d+/.test(c[6]))(%s)`, cells("Jobs", "report")))
	s.runs("report", time.Hour, bob, nil)
	p.await("it has run again", fmt.Sprintf(`((c) => c && c[4] === "bob@web-2 pid 8" && /^in /.test(c[6]))(%s)`, cells("Jobs", "report")))
	p.do(chromedp.Evaluate[chromedp.Void](`[...document.querySelectorAll("[aria-label=Jobs] a")].find((a) => a.textContent === "report").click()`))
	p.await("its page", `document.querySelector(".answer")?.textContent.startsWith("The job has run. Its lock stays taken until the next run is due, in ") && document.querySelectorAll("[aria-label=Runs] tbody tr").length === 2`)
	p.do(chromedp.Evaluate[chromedp.Void](`location.hash = "#/lock/memory/billing%3Aleader"`))
	p.await("the page of the leader", fmt.Sprintf(`/The holder leads, in term \d+\. It has published /.test(document.getElementById("view-lock").textContent) && document.getElementById("view-lock").textContent.includes(%q)`, hostile))
	p.do(chromedp.Evaluate[chromedp.Void](`location.hash = "#/lock/memory/billing%3Aleader%3Avalue"`))
	p.await("the page of the value", `document.getElementById("view-lock").textContent.includes("carries the value of the leader of billing:leader")`)
	if eval[bool](p, `window.hacked === 1 || document.querySelectorAll("main img").length > 0`) {
		t.Error("text of the store became HTML")
	}
}

// The jobs of dlock run --every are there with their results.
func TestJobsOfTheCommand(t *testing.T) {
	onServers(t, nil, func(t *testing.T, f fleet) {
		if f.name == "file" || f.name == "redlock" {
			return // which have no records of jobs
		}
		for key, command := range map[string]string{"report": "true", "backup": "false"} {
			cmd := exec.Command(program(t), "run", "--quiet", "--every", "1h", key, "--", command)
			cmd.Env = append(os.Environ(), "DLOCK_BACKEND="+f.backend, "USER=ann")
			_ = cmd.Run() // the code is that of the command
		}
		p := openTab(t, light, f.url+"#/jobs")
		p.await("the job that failed", fmt.Sprintf(`((c) => c && c[1].startsWith("failedexit status 1") && c[4].startsWith("ann@") && c[5] === "has run" && /^in 5\dm/.test(c[6]))(%s)`, cells("Jobs", "backup")))
		p.await("the other job", fmt.Sprintf(`((c) => c && c[1] === "ok" && c[5] === "has run")(%s)`, cells("Jobs", "report")))
		p.do(chromedp.Navigate(f.url + "#/lock/" + url.QueryEscape(f.backend) + "/backup"))
		p.await("its page", `document.querySelector(".answer")?.textContent.startsWith("The job has run, and has failed.")`)
	})
}
