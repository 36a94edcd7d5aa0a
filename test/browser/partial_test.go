package browser

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dashboard"
)

// If there are more locks than are read, the page does not say that no other lock has waiters or is held, or that
// there are no other jobs and leaders.
func TestMoreLocksThanAreRead(t *testing.T) {
	s := inMemory(t, dashboard.WithMaxLocks(2))
	c := s.client()
	take := func(key string) {
		t.Helper()
		if _, err := c.TryAcquire(t.Context(), key, dlock.WithTTL(time.Hour), dlock.WithoutRenewal()); err != nil {
			t.Fatal(err)
		}
	}
	const (
		waited, longest = `document.getElementById("waited").textContent`, `document.getElementById("longest").textContent`
		among           = "among the locks that were read"
	)
	p := openTab(t, light, s.server.URL)
	p.await("no waiters", waited+` === "No lock has waiters." && `+longest+` === "No lock is held, apart from those of leaders and jobs."`)
	for _, key := range []string{"a", "b", "c"} {
		take(key)
	}
	p.await("that not all are known", fmt.Sprintf(`%s === "None %s." && document.getElementById("count").textContent === "2 locks; there are more on memory: 2 of them are read"`, waited, among))
	p.await("that the panels have not all", fmt.Sprintf(`[...document.querySelectorAll(".culprits h3")].every((h) => h.textContent.includes(%q))`, among))
	p.do(chromedp.Evaluate[chromedp.Void](`location.hash = "#/jobs"`))
	p.await("that jobs and leaders can be missing", fmt.Sprintf(`["jobs", "leaders"].every((n) => document.getElementById(n + "-table").textContent === "None %s.")`, among))
	p.await("that it is marked", fmt.Sprintf(`[...document.querySelectorAll("#view-jobs h3")].every((h) => h.textContent.includes(%q))`, among))
}

// A ring that was found among some of the locks says so.
func TestRingsOfSomeLocks(t *testing.T) {
	s := inMemory(t, dashboard.WithMaxLocks(2))
	s.deadlock()
	p := openTab(t, light, s.server.URL)
	const title = `document.getElementById("rings-title").textContent`
	p.await("the ring", `!document.getElementById("rings").hidden && `+title+` === "Possible deadlock"`)
	for _, key := range []string{"z-1", "z-2"} {
		if _, err := s.client().TryAcquire(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	p.await("that it is not all", title+`.includes("among the locks that were read")`)
}
