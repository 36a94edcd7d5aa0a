package browser

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dashboard"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// lost returns an expression: the page about health has a row for a lost lock, with these words.
func lost(key, why string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".lost tbody tr")].some((r) => r.querySelector(".key").textContent === %q && r.querySelector(".why").textContent.includes(%q))`, key, why)
}

// A service that mounts the page sees there which of its locks it lost and why, also while the
// server hangs. The page of dlock ui, which holds no locks, says where to look.
func TestLosses(t *testing.T) {
	server := testenv.Redis(t)
	conn := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer conn.Close()
	client := func(opts ...dlock.Option) *dlock.Client {
		c, err := dlock.New(&dlock.Config{DefaultTTL: 4 * time.Second}, append(opts, dlock.WithBackend(redislock.New(conn)))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	locks, admin := client(), client(dlock.WithAdmin())
	page, err := dashboard.New([]dashboard.Source{{Name: "orders", Client: admin, Holders: []*dlock.Client{locks}}})
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewServer(page)
	defer service.Close()
	defer page.Close()
	p := openTab(t, light, service.URL+"/#/health")
	p.await("nothing is lost", `document.querySelector(".own .elsewhere")?.textContent.includes("seen only where the locks are held") && !document.querySelector("#losses-list li")`)

	g, err := locks.Acquire(t.Context(), "nightly:export", dlock.WithInfo(dlock.Info{Owner: "ann"}))
	if err != nil {
		t.Fatal(err)
	}
	p.await("the slack", `/Least slack in the last 5 minutes: \d+ % of the lease was left when nightly:export/.test(document.querySelector(".own .slack").textContent)`)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	<-g.Context().Done()
	p.await("the loss, while the server hangs", lost("nightly:export", "not renewed"))
	p.await("the failed renewals", `/renewals? of \d+ failed in the last 5 minutes: ./.test(document.querySelector(".own .renewals").textContent)`)
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	p.await("the server answers", `document.querySelector("#sources .lost .facts")?.textContent.startsWith("1 lock lost")`)

	g, err = locks.Acquire(t.Context(), "nightly:report", dlock.WithInfo(dlock.Info{Owner: "bob"}))
	if err != nil {
		t.Fatal(err)
	}
	operator, err := admin.Admin()
	if err != nil {
		t.Fatal(err)
	}
	if err := operator.Evict(t.Context(), "nightly:report", g.Token()); err != nil {
		t.Fatal(err)
	}
	<-g.Context().Done()
	p.await("the eviction", lost("nightly:report", "taken away"))
	p.do(chromedp.Evaluate[chromedp.Void](`location.hash = "#/"`))
	p.await("the newest first, on the list", `document.querySelector("#losses:not([hidden]) li").innerText.startsWith("nightly:report") && document.querySelectorAll("#losses li").length === 2`)
	p.click("#losses-list a")
	p.await("the lost lock", `location.hash === "#/lock/orders/nightly%3Areport" && !document.getElementById("view-lock").hidden`)

	text := fetch(t, service.URL+"/metrics")
	for _, reason := range []string{"not_renewed", "taken_away"} {
		if line := `dlock_page_losses_total{source="orders",backend="redis",reason="` + reason + `"} 1`; !strings.Contains(text, line+"\n") {
			t.Errorf("no %s in %s", line, text)
		}
	}
	other := openTab(t, light, serve(t, nil, "--backend", "redis://"+server.Addr())+"#/health")
	other.await("where to look", `/renewed and lost no lock here.*\/metrics of the service.*DlockLossesGrow/.test(document.querySelector(".own .elsewhere")?.textContent) && !document.querySelector("#losses-list li")`)
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// losses makes the service that serves the page lose two locks, and hold a third.
func (s *store) losses() {
	s.t.Helper()
	take := func(key, owner string, opts ...dlock.LockOption) *dlock.Guard {
		g, err := s.holder.Acquire(s.t.Context(), key, append(opts, dlock.WithInfo(dlock.Info{Owner: owner, Host: "web-2", PID: 5120}))...)
		if err != nil {
			s.t.Fatal(err)
		}
		return g
	}
	g := take("mail:digest", "mailer")
	<-take("export:customers", "export", dlock.WithMaxHold(time.Second)).Context().Done()
	admin, err := s.client().Admin()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := admin.Evict(s.t.Context(), "mail:digest", g.Token()); err != nil {
		s.t.Fatal(err)
	}
	<-g.Context().Done()
	take("orders:import", "import")
	testenv.Eventually(s.t, limit, "a renewal", func() bool { return s.holder.Health().LeastSlackKey == "orders:import" })
}
