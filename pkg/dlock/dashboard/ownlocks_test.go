package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// own returns what the page says about the locks of its process.
func (f *fixture) own() *ownLocks {
	f.Helper()
	return get[health](f, "/api/v1/health").Sources[0].Own
}

// The page says which lock was lost, why and when, in its API, its stream and its metrics.
func TestLossesAreShown(t *testing.T) {
	f := setUp(t, WithEvict())
	if own := f.own(); own.Renewals != 0 || own.LeastSlack != nil || len(own.LastLosses) != 0 || own.Losses["taken_away"] != 0 || own.Window != dlock.HealthWindow.Milliseconds() {
		t.Errorf("a page without locks of its own shows %+v", own)
	}
	next, _ := f.follow()
	began := time.Now().UnixMilli()
	g := f.take("k", dlock.WithInfo(dlock.Info{Owner: "ann"}))
	token := fmt.Sprint(g.Token())
	answer := f.request("POST", "/api/v1/evict", `{"source":"memory","key":"k","token":"`+token+`","confirm":"k"}`, "Content-Type", "application/json")
	if answer.StatusCode/100 != 2 {
		t.Fatal(answer.Status) // nothing would end the lock
	}
	<-g.Context().Done()
	check := func(own *ownLocks) bool {
		if len(own.LastLosses) == 0 {
			return false
		}
		l := own.LastLosses[0]
		if l.Key != "k" || l.Owner != "ann" || l.Token != token || l.Reason != "taken_away" || !strings.Contains(l.Cause, "does not hold it") || l.At < began || l.At > time.Now().UnixMilli() || own.Losses["taken_away"] != 1 {
			t.Errorf("%+v", own)
		}
		return true
	}
	f.eventually("the loss", func() bool { return check(f.own()) })
	for seen := false; !seen; {
		e := next()
		if e.name != "own_locks" {
			continue
		}
		var body struct {
			Source string
			Own    *ownLocks `json:"own_locks"`
		}
		if err := json.Unmarshal([]byte(e.data), &body); err != nil || body.Source != "memory" {
			t.Fatalf("%v, %s", err, e.data)
		}
		seen = check(body.Own)
	}
	f.awaitMetrics(`dlock_page_losses_total{source="memory",backend="memory",reason="taken_away"} 1`,
		`dlock_page_losses_total{source="memory",backend="memory",reason="not_renewed"} 0`)
}

// The page sums up all Clients of the process, shows the least slack of all, and asks them once per
// interval however many viewers there are.
func TestOwnLocksOfSeveralClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		faults := faultdriver.New(store, 1)
		client := func(opts ...dlock.Option) *dlock.Client {
			c, err := dlock.New(&dlock.Config{DefaultTTL: 12 * time.Second}, append(opts, dlock.WithAdmin())...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		shown, late, calm := client(dlock.WithBackend(store)), client(dlock.WithBackend(faults)), client(dlock.WithBackend(store))
		page, err := New([]Source{{Name: "memory", Client: shown, Holders: []*dlock.Client{late, calm}}})
		if err != nil {
			t.Fatal(err)
		}
		defer page.Close()
		reader := page.sources[0].own
		first := reader.read()
		for key, c := range map[string]*dlock.Client{"late": late, "calm": calm} {
			if _, err := c.Acquire(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		lost, err := calm.Acquire(t.Context(), "lost", dlock.WithMaxHold(time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		<-lost.Context().Done()
		if reader.read() != first {
			t.Error("the Clients are asked twice in an interval")
		}
		time.Sleep(time.Minute)
		faults.Add(faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseRequest, Hang: true, Times: 2})
		time.Sleep(time.Minute)
		own := reader.read()
		if own.LeastSlack == nil || *own.LeastSlack > 0.2 || own.LeastSlackKey != "late" || own.RecentFailed != 2 || own.RecentError != "no answer within 3s" || own.Renewals < 50 || own.Losses["max_hold"] != 1 {
			t.Errorf("%+v", own)
		}
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "http://localhost/metrics", nil))
		for _, line := range []string{
			fmt.Sprintf(`dlock_page_least_slack_ratio{source="memory",backend="memory"} %v`, *own.LeastSlack),
			`dlock_page_renewals_total{source="memory",backend="memory",result="failed"} 2`,
		} {
			if !strings.Contains(w.Body.String(), line+"\n") {
				t.Errorf("no %s in %s", line, w.Body)
			}
		}
	})
}

// Of many losses, the newest 20 of all Clients are shown.
func TestNewestLossesAreShown(t *testing.T) {
	own := &ownLocks{Losses: map[string]int64{}}
	start := time.UnixMilli(1_000_000)
	for i := range 2 {
		h := dlock.Health{Losses: map[string]int64{"max_hold": 15}}
		for n := range 15 { // the newest first
			h.LastLosses = append(h.LastLosses, dlock.Loss{At: start.Add(time.Duration(2*(15-n)+i) * time.Second), Key: fmt.Sprint(2*(15-n) + i), Cause: strings.Repeat("x", 2000)})
		}
		own.add(h)
	}
	own.sort()
	if len(own.LastLosses) != 20 || own.LastLosses[0].Key != "31" || own.LastLosses[1].Key != "30" || own.LastLosses[19].Key != "12" || own.Losses["max_hold"] != 30 {
		t.Errorf("%+v", own)
	}
	if n := len(own.LastLosses[0].Cause); n > maxText+3 {
		t.Errorf("a cause of %d bytes", n)
	}
}
