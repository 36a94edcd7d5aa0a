package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// metrics returns the answer of /metrics.
func (f *fixture) metrics() string {
	f.Helper()
	answer := f.request(http.MethodGet, "/metrics", "")
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		f.Fatalf("%d, %v, %s: %s", answer.StatusCode, err, answer.Header.Get("Content-Type"), text)
	}
	return string(text)
}

// awaitMetrics waits until there are these lines.
func (f *fixture) awaitMetrics(lines ...string) {
	f.Helper()
	for _, line := range lines {
		f.eventually(line, func() bool { return strings.Contains("\n"+f.metrics(), "\n"+line+"\n") })
	}
}

// The metrics show what the page knows, and asking for them asks no backend.
func TestMetrics(t *testing.T) {
	f := setUp(t, WithEvict())
	const at = `source="memory",backend="memory"`
	text := f.metrics()
	for _, name := range []string{"dlock_page_readable{", "dlock_page_locks{", "dlock_page_findings{", "dlock_page_last_reading_timestamp_seconds{"} {
		if strings.Contains(text, name) {
			t.Errorf("%s before the first reading", name)
		}
	}
	if n := f.store.lists.Load(); n != 0 {
		t.Errorf("%d readings for the metrics", n)
	}
	g := f.take("k")
	f.queue("k")
	f.elect("billing:leader")
	f.run("report", time.Hour, succeed)
	f.run("backup", time.Hour, func(context.Context) error { return errors.New("no") })
	next, leave := f.follow()
	f.nextUpdate(next)
	f.awaitMetrics(
		"dlock_page_viewers 1",
		"dlock_page_locks{"+at+"} 6", "dlock_page_locks_left_out{"+at+"} 0", "dlock_page_waiters{"+at+"} 1",
		"dlock_page_leaders{"+at+"} 1", "dlock_page_jobs_failed{"+at+"} 1", `dlock_page_jobs{`+at+`,state="done"} 2`,
		`dlock_page_jobs{`+at+`,state="due"} 0`, "dlock_page_readable{"+at+"} 1", `dlock_page_findings{`+at+`,level="warning"} 1`,
		`dlock_page_findings{`+at+`,level="unsafe"} 0`, "dlock_page_possible_deadlocks 0", `dlock_page_backend_calls_total{`+at+`,call="check"} 1`,
		`dlock_page_evictions_total{`+at+`,result="evicted"} 0`, `dlock_page_readings_total{`+at+`,result="failed"} 0`)
	body := `{"source":"memory","key":"k","token":"%d","confirm":"k"}`
	for _, token := range []int64{g.Token() + 100, g.Token()} {
		f.request(http.MethodPost, "/api/v1/evict", fmt.Sprintf(body, token), "Content-Type", "application/json")
	}
	f.awaitMetrics(`dlock_page_evictions_total{`+at+`,result="evicted"} 1`, `dlock_page_evictions_total{`+at+`,result="refused"} 1`,
		`dlock_page_backend_calls_total{`+at+`,call="evict"} 1`)
	f.store.fails.Store(true)
	f.awaitMetrics("dlock_page_readable{" + at + "} 0")
	leave()
	f.awaitMetrics("dlock_page_viewers 0")
}

// The counts of questions are those that the backend got.
func TestMetricsCountCalls(t *testing.T) {
	f := setUp(t)
	f.take("k")
	next, leave := f.follow()
	f.nextUpdate(next)
	f.eventually("some readings", func() bool { return f.store.lists.Load() >= 3 })
	leave()
	p := f.page.sources[0]
	f.eventually("the reading ends", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.running
	})
	const at = `source="memory",backend="memory"`
	lists, readings := f.store.lists.Load(), p.tally.ok.Load()
	f.awaitMetrics(
		fmt.Sprintf(`dlock_page_backend_calls_total{%s,call="list"} %d`, at, lists),
		fmt.Sprintf(`dlock_page_backend_calls_total{%s,call="inspect"} %d`, at, f.store.inspects.Load()),
		fmt.Sprintf(`dlock_page_readings_total{%s,result="ok"} %d`, at, readings),
		fmt.Sprintf(`dlock_page_reading_duration_seconds_count{%s} %d`, at, readings),
		fmt.Sprintf(`dlock_page_reading_duration_seconds_bucket{%s,le="+Inf"} %d`, at, readings))
	if lists-readings > 1 || readings == 0 { // the last one may have been cut short
		t.Errorf("%d readings, %d lists", readings, lists)
	}
}

// Prometheus' own parser accepts the text, whatever a source is called, and finds nothing to criticise.
func TestMetricsFormat(t *testing.T) {
	f := setUp(t)
	f.take("k")
	hostile := "a\"} 1\nfake_total{x=\"\\\xff"
	page, err := New([]Source{{Name: hostile, Client: f.client()}, {Name: "second", Client: f.client()}})
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	f.server.Config.Handler = page
	get[map[string]any](f, "/api/v1/locks")
	text := f.metrics()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %+v in\n%s", err, problems, text)
	}
	if strings.Contains(text, "\nfake_total") || strings.Count(text, "\nfake") > 0 || !strings.Contains(text, `source="a\"} 1\nfake_total{x=\"\\�"`) {
		t.Errorf("a name has become a metric:\n%s", text)
	}
	if strings.Count(text, `dlock_page_locks{source="`) != 2 {
		t.Errorf("not both sources:\n%s", text)
	}
}

// Requests that are refused are counted by their reason.
func TestRefusalsAreCounted(t *testing.T) {
	f := setUp(t, WithBearerToken(secret))
	auth := []string{"Authorization", "Bearer " + secret}
	f.request(http.MethodGet, "/metrics", "")
	f.request(http.MethodGet, "/metrics", "", "Authorization", "Bearer wrong")
	f.request(http.MethodGet, "/metrics", "", append(auth, "Origin", "http://evil.example")...)
	f.request(http.MethodGet, "/metrics", "", append(auth, "Host", "evil.example")...)
	text, err := io.ReadAll(f.request(http.MethodGet, "/metrics", "", auth...).Body)
	if err != nil {
		t.Fatal(err)
	}
	for reason, n := range map[string]int{"host": 1, "origin": 1, "token": 2} {
		if line := fmt.Sprintf("dlock_page_refused_requests_total{reason=%q} %d\n", reason, n); !strings.Contains(string(text), line) {
			t.Errorf("no %s in %s", line, text)
		}
	}
}

// No key, owner or purpose is in the metrics: their number does not grow with the locks.
func TestMetricsHaveNoKeys(t *testing.T) {
	f := setUp(t)
	f.take("secret-key", dlock.WithInfo(dlock.Info{Owner: "secret-owner", Host: "secret-host", Purpose: "secret-purpose"}))
	get[map[string]any](f, "/api/v1/locks")
	if text := f.metrics(); strings.Contains(text, "secret") {
		t.Errorf("%s", text)
	}
}

// docs/dashboard.md has a row for every metric, and none for another.
func TestMetricsAreDocumented(t *testing.T) {
	f := setUp(t)
	page, err := os.ReadFile("../../../docs/dashboard.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| name | kind |")
	documented := regexp.MustCompile("`(dlock_page_[a-z_]+)`").FindAllStringSubmatch(table, -1)
	families := regexp.MustCompile(`(?m)^# TYPE (\w+) `).FindAllStringSubmatch(f.metrics(), -1)
	names := func(found [][]string) (all []string) {
		for _, m := range found {
			all = append(all, m[1])
		}
		slices.Sort(all)
		return all
	}
	if want, got := names(families), names(documented); !slices.Equal(got, want) || len(want) < 10 {
		t.Errorf("the metrics are\n%q, but documented are\n%q", want, got)
	}
}

// A reading is counted in the bucket of its duration and in all greater ones.
func TestReadingBuckets(t *testing.T) {
	var c tally
	for _, d := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, 3 * time.Second, time.Hour} {
		c.reading(d, d == time.Hour)
	}
	e := exposition{name: "m"}
	e.histogram(&c, nil)
	for _, line := range []string{
		`m_bucket{le="0.001"} 2`, `m_bucket{le="0.005"} 3`, `m_bucket{le="2.5"} 3`, `m_bucket{le="5"} 4`, `m_bucket{le="30"} 4`,
		`m_bucket{le="+Inf"} 5`, `m_count 5`, `m_sum 3603.002000001`,
	} {
		if !strings.Contains(e.String(), line+"\n") {
			t.Errorf("no %s in\n%s", line, e.String())
		}
	}
	if c.ok.Load() != 4 || c.failed.Load() != 1 {
		t.Errorf("%d succeeded, %d failed", c.ok.Load(), c.failed.Load())
	}
}
