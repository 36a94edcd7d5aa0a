//go:build unix

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	library "github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// The report as programs read it. A field that is not here, or has another name, is
// another schema.
type (
	benchSpread struct {
		Median, Min, Max float64
		Rounds           int
	}
	benchRound struct {
		Seconds      float64 `json:"seconds"`
		Acquisitions int     `json:"acquisitions"`
		OpenWaits    int     `json:"open_waits"`
		Wait         struct {
			Mean, P70, P90, P99, Max float64
			P99ByTime                float64 `json:"p99_by_time"`
		} `json:"wait_seconds"`
		Rate     float64  `json:"acquisitions_per_second"`
		Fairness float64  `json:"fairness"`
		Commands *float64 `json:"commands_per_acquisition"`
		CPU      *float64 `json:"cpu_seconds_per_acquisition"`
		Shares   []int    `json:"shares"`
	}
	benchResult struct {
		Clients      int          `json:"clients"`
		Section      float64      `json:"section_seconds"`
		Acquisitions int          `json:"acquisitions"`
		OpenWaits    int          `json:"open_waits"`
		Shares       []int        `json:"shares"`
		Mean         *benchSpread `json:"wait_seconds_mean"`
		P70          *benchSpread `json:"wait_seconds_p70"`
		P90          *benchSpread `json:"wait_seconds_p90"`
		P99          *benchSpread `json:"wait_seconds_p99"`
		Max          *benchSpread `json:"wait_seconds_max"`
		P99ByTime    *benchSpread `json:"wait_seconds_p99_by_time"`
		Rate         *benchSpread `json:"acquisitions_per_second"`
		Fairness     *benchSpread `json:"fairness"`
		Commands     *benchSpread `json:"commands_per_acquisition"`
		CPU          *benchSpread `json:"cpu_seconds_per_acquisition"`
		Rounds       []benchRound `json:"rounds"`
	}
	benchReport struct {
		Schema, Program, Backend, Where, Key, Platform string

		Started   time.Time
		Seconds   float64
		CPUs      int
		Rounds    int
		Duration  float64 `json:"round_seconds"`
		Ended     string  `json:"ended_early"`
		Exclusion struct {
			Held                           bool
			Acquisitions, Overlaps, Losses int64
			OutOfOrder                     int64 `json:"tokens_out_of_order"`
		}
		Results []benchResult
	}
)

func readBench(t *testing.T, stdout string) benchReport {
	t.Helper()
	var r benchReport
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	return r
}

// check holds the figures of an experiment against each other.
func (r *benchResult) check(t *testing.T, counted bool) {
	t.Helper()
	shares, turns, open := make([]int, r.Clients), 0, 0
	for i := range r.Rounds {
		m := &r.Rounds[i]
		if m.Acquisitions > 0 || stress() { // a machine that stalls can take a whole round
			m.check(t, r, counted)
		}
		turns, open = turns+m.Acquisitions, open+m.OpenWaits
		for c, n := range m.Shares {
			shares[c] += n
		}
	}
	if turns == 0 || turns != r.Acquisitions || open != r.OpenWaits || !slices.Equal(shares, r.Shares) {
		t.Errorf("%d clients: the rounds sum up to %d acquisitions, %d open waits and %v, not %d, %d and %v",
			r.Clients, turns, open, shares, r.Acquisitions, r.OpenWaits, r.Shares)
	}
	waits := []*benchSpread{r.P70, r.P90, r.P99, r.P99ByTime, r.Max}
	for i, s := range append(waits, r.Mean, r.Rate, r.Fairness, r.CPU) {
		if s == nil || s.Min > s.Median || s.Median > s.Max || s.Min < 0 {
			t.Errorf("%d clients: spread %d is %+v", r.Clients, i, s)
		} else if i > 0 && i < len(waits) && s.Median < waits[i-1].Median {
			t.Errorf("%d clients: a percentile is below a smaller one", r.Clients)
		}
	}
}

// commands is how many were sent, also by those that still waited when a round ended: on a slow machine they count.
func (r *benchResult) commands() (sum float64) {
	for _, m := range r.Rounds {
		if m.Commands != nil {
			sum += *m.Commands * float64(m.Acquisitions)
		}
	}
	return sum
}

func (m *benchRound) check(t *testing.T, r *benchResult, counted bool) {
	t.Helper()
	sum := 0
	for _, n := range m.Shares {
		sum += n
	}
	least, most := slices.Min(m.Shares), slices.Max(m.Shares)
	w := m.Wait
	switch {
	case len(m.Shares) != r.Clients || sum != m.Acquisitions || sum == 0:
		t.Errorf("%d clients: shares %v of %d acquisitions", r.Clients, m.Shares, m.Acquisitions)
	case m.OpenWaits > r.Clients:
		t.Errorf("%d open waits of %d clients", m.OpenWaits, r.Clients)
	case near(m.Rate*m.Seconds, float64(sum)) != nil || near(m.Fairness*float64(most), float64(least)) != nil:
		t.Errorf("%+v does not add up", m)
	case w.P70 > w.P90 || w.P90 > w.P99 || w.P99 > w.P99ByTime || w.P99ByTime > w.Max || w.Mean > w.Max || w.Mean <= 0 || w.Max > m.Seconds:
		t.Errorf("waits %+v in a round of %v s", w, m.Seconds)
	case m.CPU == nil || *m.CPU < 0:
		t.Errorf("CPU %v", m.CPU)
	case r.Section > 0 && m.Rate > 1/r.Section:
		t.Errorf("%v acquisitions/s of %v s each", m.Rate, r.Section)
	case counted != (m.Commands != nil):
		t.Errorf("commands: %v", m.Commands)
	}
}

// near is an error if two figures differ by more than rounding.
func near(a, b float64) error {
	if d := a - b; d > 1e-6*max(a, 1) || d < -1e-6*max(a, 1) {
		return os.ErrInvalid
	}
	return nil
}

// leftIn is what is in Redis, but for IDs that must not come back for a minute, and the last tokens that
// all locks share. It closes the client.
func leftIn(t *testing.T, c *redis.Client) []string {
	t.Helper()
	defer c.Close()
	keys, err := c.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(keys, func(k string) bool {
		return strings.HasPrefix(k, "dlock:token\x01") || strings.Contains(k, "\x01b") && c.PTTL(t.Context(), k).Val() > 0
	})
}

func TestBenchOnRedis(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	page := filepath.Join(t.TempDir(), "report.html")
	stdout, stderr, code := dlock(t, "redis://"+server.Addr()+"?prefix=app:",
		"bench", "--clients", "1,2,6", "--duration", "100ms", "--json", "--html", page)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	r := readBench(t, stdout)
	if r.Schema != "dlock-bench/1" || r.Backend != "redis" || r.Rounds != 3 || r.Ended != "" || len(r.Results) != 6 {
		t.Errorf("%+v", r)
	}
	turns := int64(0)
	for i := range r.Results {
		m := &r.Results[i]
		m.check(t, true)
		turns += int64(m.Acquisitions)
		if c := m.Commands; len(m.Rounds) != 3 || c == nil || c.Median < 1.5 || (stress() && c.Median > 10) || m.commands() > 10*float64(m.Acquisitions+m.OpenWaits) {
			t.Errorf("%d rounds, %+v commands", len(m.Rounds), c)
		}
		if m.Clients == 6 && m.Section > 0 && m.OpenWaits == 0 {
			t.Error("no client waited when a round ended")
		}
	}
	if e := r.Exclusion; !e.Held || e.Acquisitions < turns || e.Overlaps+e.Losses+e.OutOfOrder != 0 {
		t.Errorf("%+v", e)
	}
	if n := strings.Count(stderr, "acquisitions/s"); n != 18 {
		t.Errorf("%d lines of progress: %s", n, stderr)
	}
	if keys := leftIn(t, server.Client()); len(keys) > 0 {
		t.Errorf("left behind: %q", keys)
	}
	checkPage(t, page, 2*(2+2), "Mutual exclusion held")
}

func TestBenchOnFiles(t *testing.T) {
	t.Parallel()
	backend := files(t)
	stdout, stderr, code := dlock(t, backend, "bench", "--clients", "3", "--section", "2ms", "--duration", "50ms", "--rounds", "4", "--quiet")
	if code != 0 || stderr != "" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, want := range []string{"4 rounds of 50.0 ms", "empty section", "section of 2ms", "3 clients", "wait, P99 ", "fairness", "n/a", "Mutual exclusion held"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	left, err := filepath.Glob(strings.TrimPrefix(backend, "file://") + "/*.lock")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	page := filepath.Join(t.TempDir(), "report.html")
	const key = `<b>&"mine"`
	stdout, _, code = dlock(t, backend, "bench", "--clients", "2", "--section", "0", "--duration", "50ms", "--key", key, "--json", "--html", page)
	r := readBench(t, stdout)
	if code != 0 || len(r.Results) != 1 || r.Key != key {
		t.Fatalf("exit %d, %+v", code, r)
	}
	checkPage(t, page, 2+1, "&lt;b&gt;&amp;&#34;mine&#34;")
	r.Results[0].check(t, false)
}

// Whoever interrupts sees what was measured until then, and no lock is left.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	page := filepath.Join(t.TempDir(), "report.html")
	cmd := command("redis://"+proxy.Addr(), "bench", "--clients", "4", "--section", "1s", "--duration", "2m", "--json", "--html", page)
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	underWay(t, proxy)
	began := time.Now()
	_ = cmd.Process.Signal(syscall.SIGINT)
	if code := exitOf(cmd); code != 130 {
		t.Errorf("exit %d", code)
	}
	if took := time.Since(began); took > testenv.UnderStress(time.Minute, 10*time.Second) {
		t.Errorf("it took %v to end", took)
	}
	r := readBench(t, out.String())
	if r.Ended != "signal: interrupt" || len(r.Results[0].Rounds) != 1 {
		t.Errorf("ended by %q with %d rounds", r.Ended, len(r.Results[0].Rounds))
	}
	r.Results[0].check(t, true)
	if keys := leftIn(t, server.Client()); len(keys) > 0 {
		t.Errorf("left behind: %q", keys)
	}
	checkPage(t, page, 2+1, "It ended early (signal: interrupt)")
}

// underWay waits until a few clients have sent more than they need to get ready.
func underWay(t *testing.T, p *faultproxy.Proxy) {
	t.Helper()
	testenv.Eventually(t, time.Minute, "the clients fight", func() bool { return p.Requests() > 500 })
}

// The key of a holder is deleted, and the next client enters: that must show.
func TestBenchFindsOverlaps(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	client := server.Client()
	other, err := library.New(&library.Config{}, library.WithBackend(redislock.New(client)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	page := filepath.Join(t.TempDir(), "report.html")
	cmd := command("redis://"+server.Addr(), "bench", "--clients", "3", "--section", "100ms", "--duration", "1s", "--key", "k", "--json", "--html", page)
	ended, meddled := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(meddled)
		meddle(client, other, ended)
	}()
	stdout, stderr, code := finish(t, cmd)
	close(ended)
	<-meddled
	r := readBench(t, stdout)
	if code != 1 || !strings.Contains(stderr, "mutual exclusion failed") || r.Exclusion.Held || r.Exclusion.Overlaps == 0 {
		t.Errorf("exit %d, %+v: %s", code, r.Exclusion, stderr)
	}
	checkPage(t, page, 2*(2+1), "Mutual exclusion FAILED: two clients were inside at once")
}

// meddle deletes the key again and again. Asking for it then grants it to the first in
// the queue.
func meddle(client *redis.Client, other *library.Client, ended <-chan struct{}) {
	ctx := context.Background()
	for t := time.NewTicker(30 * time.Millisecond); ; <-t.C {
		select {
		case <-ended:
			t.Stop()
			return
		default:
		}
		client.Del(ctx, "k")
		if mine, _ := other.TryLock(ctx, "k"); mine {
			_ = other.Unlock(ctx, "k")
		}
	}
}
