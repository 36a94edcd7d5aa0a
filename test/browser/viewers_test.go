package browser

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// Ten viewers, of which one is a browser, make the server of the page ask Redis as often as one does,
// and neither keeps more and more. With DLOCK_STRESS they stay for ten minutes.
func TestTenViewers(t *testing.T) {
	server := testenv.Redis(t)
	conn := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = conn.Close() })
	child, page := startPage(t, nil, "--backend", "redis://"+server.Addr())
	churn(t, conn)
	o := &observer{t: t, conn: conn, server: child, page: page}
	alone := o.watch(1, testenv.UnderStress(3*time.Second, time.Minute))
	p := openTab(t, light, page)
	p.await("locks", keys+`.length > 0`)
	together := o.watch(9, testenv.UnderStress(4*time.Second, 5*time.Minute)) // and the browser
	before := p.heap()
	later := o.watch(9, testenv.UnderStress(4*time.Second, 5*time.Minute))
	t.Logf("one viewer:   %v", alone)
	t.Logf("ten viewers:  %v", together)
	t.Logf("and again:    %v; the heap of the browser's page: %.1f MB, then %.1f MB", later, before/1e6, p.heap()/1e6)
	for _, s := range []sample{together, later} {
		// A reading of locks that come and go is not always the same, and two may be under way when they are counted.
		if s.calls > 1.25*alone.perReading()*(s.readings+2) {
			t.Errorf("%.1f commands in a reading, %.1f with one viewer", s.perReading(), alone.perReading())
		}
		if most := s.took.Seconds()*2 + 2; s.readings > most { // the interval is half a second
			t.Errorf("%.0f readings in %v", s.readings, s.took)
		}
		if s.events < int64(s.readings) {
			t.Errorf("the viewers got %d events of %.0f readings", s.events, s.readings)
		}
	}
	if after := p.heap(); after > 1.5*before+2e6 {
		t.Errorf("the page in the browser has grown from %.1f to %.1f MB", before/1e6, after/1e6)
	}
	if most := together.memory * testenv.UnderStress[int64](200, 115) / 100; later.memory > most {
		t.Errorf("the server of the page has grown from %d to %d KiB", together.memory, later.memory)
	}
}

// heap returns how many bytes the scripts of the page use.
func (p *tab) heap() float64 {
	p.t.Helper()
	must(chromedp.Call(p.ctx, heapprofiler.CollectGarbage, cdp.Empty{}))(p.t)
	usage, err := chromedp.Call(p.ctx, runtime.GetHeapUsage, cdp.Empty{})
	if err != nil {
		p.t.Fatal(err)
	}
	return usage.UsedSize
}

// churn takes and releases locks until the test ends: 50 stay, and 5 change hands.
func churn(t *testing.T, conn *redis.Client) {
	t.Helper()
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(conn)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if _, err := c.TryAcquire(t.Context(), fmt.Sprint("stays:", i), dlock.WithTTL(time.Hour), dlock.WithoutRenewal()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	for i := range 5 {
		work.Go(func() {
			for ctx.Err() == nil {
				_ = c.Do(ctx, fmt.Sprint("changes:", i), func(ctx context.Context) error {
					select {
					case <-ctx.Done():
					case <-time.After(300 * time.Millisecond):
					}
					return nil
				})
			}
		})
	}
	t.Cleanup(func() {
		stop()
		work.Wait()
		_ = c.Close()
	})
}

// An observer counts what viewers cost.
type observer struct {
	t    *testing.T
	conn *redis.Client

	server *servers.Child // of the page
	page   string
}

// A sample is what viewers cost in some time.
type sample struct {
	viewers  int
	took     time.Duration
	calls    float64 // questions to the backend
	commands float64 // of Redis, also by those who use the locks
	readings float64
	events   int64
	memory   int64 // of the server of the page, in KiB, at the end
}

func (s sample) perReading() float64 { return s.calls / s.readings }

func (s sample) String() string {
	return fmt.Sprintf("%.1f readings/s, %.1f questions/s, %.1f commands/s of Redis, %.1f questions per reading, %d events, %.1f MB",
		s.readings/s.took.Seconds(), s.calls/s.took.Seconds(), s.commands/s.took.Seconds(), s.perReading(), s.events, float64(s.memory)/1024)
}

// watch follows the page with some viewers for a time.
func (o *observer) watch(viewers int, within time.Duration) (s sample) {
	o.t.Helper()
	ctx, leave := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var events atomic.Int64
	client := &http.Client{Transport: &http.Transport{}}
	for range viewers {
		all.Go(func() {
			for ctx.Err() == nil {
				follow(ctx, client, o.page, &events)
			}
		})
	}
	defer func() {
		leave()
		all.Wait()
		client.CloseIdleConnections()
	}()
	testenv.Eventually(o.t, limit, "the viewers are there", func() bool { return o.metrics().sum("dlock_page_viewers") >= float64(viewers) && events.Load() > 0 })
	began, before, seen, commands := time.Now(), o.metrics(), events.Load(), o.commands()
	time.Sleep(within)
	grown := func(after metrics, name string) float64 { return after.sum(name) - before.sum(name) }
	var after metrics // of one answer, so that the calls are those of the readings
	testenv.Eventually(o.t, limit, "some readings", func() bool {
		after = o.metrics()
		return grown(after, "dlock_page_readings_total") >= 10
	})
	return sample{
		viewers: viewers, took: time.Since(began), calls: grown(after, "dlock_page_backend_calls_total"), readings: grown(after, "dlock_page_readings_total"),
		events: events.Load() - seen, commands: o.commands() - commands, memory: o.memory(),
	}
}

// follow counts the updates of one stream until it ends.
func follow(ctx context.Context, client *http.Client, page string, events *atomic.Int64) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, page+"api/v1/stream", http.NoBody)
	if err != nil {
		return
	}
	answer, err := client.Do(r)
	if err != nil {
		return
	}
	defer answer.Body.Close()
	for lines := bufio.NewReader(answer.Body); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		if line == "event: update\n" {
			events.Add(1)
		}
	}
}

// metrics are those of the page at one moment, by their names with labels.
type metrics map[string]float64

func (o *observer) metrics() metrics {
	o.t.Helper()
	answer, err := http.Get(o.page + "metrics")
	if err != nil {
		o.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		o.t.Fatal(err)
	}
	all := metrics{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+(?:\{.*\})?) (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		all[m[1]], err = strconv.ParseFloat(m[2], 64)
		if err != nil {
			o.t.Fatal(err)
		}
	}
	return all
}

// sum returns the sum of a metric over its labels.
func (m metrics) sum(name string) (sum float64) {
	for series, v := range m {
		if series == name || strings.HasPrefix(series, name+"{") {
			sum += v
		}
	}
	return sum
}

// commands returns how many commands Redis has carried out, with those of churn.
func (o *observer) commands() float64 {
	o.t.Helper()
	text, err := o.conn.Info(o.t.Context(), "stats").Result()
	if err != nil {
		o.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(text, "total_commands_processed:")
	n, err := strconv.ParseFloat(strings.Fields(rest + " -")[0], 64)
	if err != nil {
		o.t.Fatal(err)
	}
	return n
}

// memory returns the resident memory of the server of the page in KiB; 0 where there is no /proc.
func (o *observer) memory() int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.server.Pid()))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	n, _ := strconv.ParseInt(strings.Fields(rest + " 0")[0], 10, 64)
	return n
}
