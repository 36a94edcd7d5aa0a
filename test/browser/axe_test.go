package browser

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dashboard"
)

// axe returns the source of axe-core.
func axe(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "build", "axe", "node_modules", "axe-core", "axe.min.js"))
	switch {
	case err == nil:
		return string(text)
	case os.Getenv(testenv.RequireEnv) == "1" || os.Getenv("CI") != "":
		t.Fatalf("axe-core is needed: run ./scripts/axe (%v)", err)
	default:
		t.Skipf("axe-core is needed: run ./scripts/axe (%v)", err)
	}
	return ""
}

// A barrier is something that keeps people from using the page.
type barrier struct {
	ID, Impact, Help string
	Nodes            []struct{ HTML, FailureSummary string }
}

// Axe finds nothing that breaks WCAG 2.2 AA, on any view, in light, dark and on a phone.
func TestNoBarriers(t *testing.T) {
	source := axe(t)
	s := inMemory(t, dashboard.WithEvict())
	s.nightShift()
	s.deadlock()
	s.losses()
	locked := inMemory(t, dashboard.WithBearerToken(oldToken))
	open := `document.querySelector("[aria-label=Holders] button.danger").click()`
	for name, look := range map[string]screen{"light": light, "dark": dark, "phone": phone} {
		t.Run(name, func(t *testing.T) {
			p := openTab(t, look, s.server.URL)
			p.do(chromedp.Evaluate[chromedp.Void](source))
			p.await("the list", `document.querySelectorAll("#rows .row").length > 2 && !document.getElementById("rings").hidden && !document.getElementById("losses").hidden && document.querySelector("#sources .lost")`)
			p.barriers("the list")
			p.do(chromedp.Evaluate[chromedp.Void](`location.hash = "#/health"`))
			p.await("the findings", `document.querySelector(".findings") && document.querySelectorAll(".lost tbody tr").length === 2`)
			p.barriers("the health")
			p.do(chromedp.Evaluate[chromedp.Void](`location.hash = "#/jobs"`))
			p.await("the jobs", `document.querySelectorAll("[aria-label=Jobs] tbody tr").length === 4`)
			p.barriers("the jobs")
			p.do(chromedp.Evaluate[chromedp.Void](`location.hash = "#/lock/memory/cron%3Async-ldap"`))
			p.await("a job", `document.querySelectorAll("[aria-label=Runs] tbody tr").length === 1`)
			p.barriers("a job")
			p.do(chromedp.Evaluate[chromedp.Void](`location.hash = "#/lock/memory/billing%3Aclose-month"`))
			p.await("the lock", `document.querySelectorAll("#view-lock tbody tr").length > 5 && document.querySelector("svg.timeline")`)
			p.barriers("a lock")
			p.do(chromedp.Evaluate[chromedp.Void](open))
			p.await("the dialog", `document.getElementById("evict").open`)
			p.barriers("the dialog")
			login := openTab(t, look, locked.server.URL)
			login.expect("401")
			login.do(chromedp.Evaluate[chromedp.Void](source))
			login.await("the login", `!document.getElementById("login").hidden`)
			login.barriers("the login")
		})
	}
}

// barriers fails the test for each barrier that axe finds.
func (p *tab) barriers(view string) {
	p.t.Helper()
	for _, b := range p.violations() {
		p.t.Errorf("%s: %s (%s): %s: %+v", view, b.ID, b.Impact, b.Help, b.Nodes[0])
	}
}

func (p *tab) violations() (found []barrier) {
	p.t.Helper()
	text := eval[string](p, `axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"], resultTypes: ["violations"] }).then((r) => JSON.stringify(r.violations))`)
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		p.t.Fatal(err)
	}
	return found
}

// What the tests rely on to find faults does find them: axe, the console, and foreign requests.
func TestFaultsAreFound(t *testing.T) {
	source := axe(t)
	s := inMemory(t)
	p := openTab(t, light, s.server.URL)
	p.await("the list", noLocks)
	p.do(chromedp.Evaluate[chromedp.Void](source))
	p.do(chromedp.Evaluate[chromedp.Void](`(() => {
		const faint = document.getElementById("count");
		faint.style.color = "#ddd";
		document.getElementById("main").append(document.createElement("img"));
	})()`))
	ids := map[string]bool{}
	for _, b := range p.violations() {
		ids[b.ID] = true
	}
	if !ids["color-contrast"] || !ids["image-alt"] {
		t.Errorf("axe finds only %v", ids)
	}
	p.expect("a fault of the test")
	p.expect("elsewhere.invalid")
	p.do(chromedp.Evaluate[chromedp.Void](`setTimeout(() => { console.error("a fault of the test"); throw new Error("a fault of the test") })`),
		chromedp.Evaluate[chromedp.Void](`fetch("http://elsewhere.invalid/").catch(() => {})`))
	testenv.Eventually(t, limit, "three errors", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		faults, blocked := 0, false
		for _, e := range p.errs {
			if strings.Contains(e, "a fault of the test") {
				faults++
			}
			blocked = blocked || strings.Contains(e, "Content Security Policy") // nothing leaves the page
		}
		return faults == 2 && blocked
	})
}

// deadlock makes two owners wait for each other.
func (s *store) deadlock() {
	s.t.Helper()
	c := s.client()
	owners := []dlock.Info{{Owner: "left", Host: "h", PID: 1}, {Owner: "right", Host: "h", PID: 2}}
	for i, o := range owners {
		if _, err := c.TryAcquire(s.t.Context(), fmt.Sprint("ring-", i), dlock.WithInfo(o)); err != nil {
			s.t.Fatal(err)
		}
	}
	for i, o := range owners {
		s.waits(fmt.Sprint("ring-", 1-i), o, 1)
	}
}
