package docs_test

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/dashboard"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
	"github.com/ceyewan/genesis/pkg/telemetry"
)

// The alert rules and the dashboard of deploy/ use metrics, labels and values that a real Client or lock page exports,
// and the dashboard shows all metrics.
func TestDeployedQueriesAreReal(t *testing.T) {
	metrics := scrapeLocks(t) + scrapePage(t)
	names := regexp.MustCompile(`(?m)^dlock_[a-z_]+`)
	real := map[string]bool{}
	for _, name := range names.FindAllString(metrics, -1) {
		real[name] = true
	}
	var shown []string
	for _, file := range []string{"../deploy/prometheus/dlock.rules.yml", "../deploy/prometheus/dlock.rules.test.yml", "../deploy/grafana/dlock.json"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, ".json") && !json.Valid(text) {
			t.Errorf("%s is not JSON", file)
		}
		used := regexp.MustCompile(`\bdlock_[a-z_]+`).FindAllString(string(text), -1)
		if len(used) < 5 {
			t.Errorf("%s uses %q only", file, used)
		}
		for _, name := range used {
			if !real[name] {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
		for _, m := range regexp.MustCompile(`(result|reason)=~?\\?"([a-z_|]+)\\?"`).FindAllStringSubmatch(string(text), -1) {
			for value := range strings.SplitSeq(m[2], "|") {
				if !strings.Contains(metrics, m[1]+`="`+value+`"`) {
					t.Errorf("%s: no metric has %s=%q", file, m[1], value)
				}
			}
		}
		shown = used
	}
	for name := range real {
		base := strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count")
		if !slices.Contains(shown, name) && !slices.Contains(shown, base+"_bucket") {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

// Every alert has a test. promtool runs them: it checks the rules more closely, but CI does not have it.
func TestAlertsAreTested(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile("../deploy/prometheus/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	alerts := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(read("dlock.rules.yml"), -1)
	if len(alerts) < 10 {
		t.Errorf("%d alerts", len(alerts))
	}
	tests := read("dlock.rules.test.yml")
	for _, a := range alerts {
		if !strings.Contains(tests, `alertname="`+a[1]+`",alertstate="firing"`) {
			t.Errorf("no test fires %s", a[1])
		}
	}
	if _, err := exec.LookPath(cmp.Or(os.Getenv("PROMTOOL"), "promtool")); err != nil {
		t.Logf("promtool has not checked the rules: %v", err)
		return
	}
	if out, err := exec.CommandContext(t.Context(), "../scripts/promtool").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// scrapePage returns the metrics of a lock page that has read its locks, and whose process has renewed one.
func scrapePage(t *testing.T) string {
	t.Helper()
	locks, err := dlock.New(&dlock.Config{DefaultTTL: time.Minute, RenewInterval: 20 * time.Millisecond}, dlock.WithBackend(memlock.New()), dlock.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	page, err := dashboard.New([]dashboard.Source{{Name: "orders", Client: locks}})
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	ask := func(path string) string {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "http://localhost"+path, nil))
		return w.Body.String()
	}
	if _, err := locks.Acquire(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	ask("/api/v1/health")
	testenv.Eventually(t, time.Minute, "a renewal is shown", func() bool { return strings.Contains(ask("/metrics"), "\ndlock_page_least_slack_ratio{") })
	return ask("/metrics")
}

// scrapeLocks returns the metrics of a Client that has held, renewed, waited for and released a lock.
func scrapeLocks(t *testing.T) string {
	t.Helper()
	tel, err := telemetry.New(telemetry.Config{ServiceName: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tel.Shutdown(context.Background()) }()
	locks, err := dlock.New(&dlock.Config{DefaultTTL: time.Minute, RenewInterval: 20 * time.Millisecond}, dlock.WithBackend(memlock.New()), dlock.WithMeter(tel.Meter("dlock")))
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close()
	ctx := t.Context()
	g, err := locks.Acquire(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	waiter := make(chan error)
	go func() { waiter <- locks.Do(ctx, "k", func(context.Context) error { return nil }) }()
	scrape := func() string {
		w := httptest.NewRecorder()
		tel.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/metrics", nil))
		return w.Body.String()
	}
	testenv.Eventually(t, time.Minute, "a renewal is measured", func() bool {
		return strings.Contains(scrape(), "dlock_renewal_slack_seconds_bucket")
	})
	if err := g.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-waiter; err != nil {
		t.Fatal(err)
	}
	return scrape()
}
