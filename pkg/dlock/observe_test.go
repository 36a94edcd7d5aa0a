package dlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); elapse(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// An observatory collects everything that Clients report.
type observatory struct {
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	mu     sync.Mutex
	log    bytes.Buffer
	opts   []dlock.Option
}

func (o *observatory) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.log.Write(p)
}

func (o *observatory) lines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Split(strings.TrimSpace(o.log.String()), "\n")
}

func observe(t *testing.T) *observatory {
	t.Helper()
	o := &observatory{reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(o.reader))
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(o.spans))
	t.Cleanup(func() {
		_ = meters.Shutdown(context.Background())
		_ = tracers.Shutdown(context.Background())
	})
	o.opts = []dlock.Option{
		dlock.WithLogger(clog.FromSlog(slog.New(slog.NewTextHandler(o, nil))).WithNamespace("app")),
		dlock.WithMeter(meters.Meter("test")), dlock.WithTracer(tracers.Tracer("test")),
	}
	return o
}

func (o *observatory) client(t *testing.T, backend driver.Opener, cfg dlock.Config) *dlock.Client {
	t.Helper()
	c, err := dlock.New(&cfg, append(o.opts, dlock.WithBackend(backend))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// read returns the value of a metric with one attribute in addition to the backend, or the count of
// a histogram. ok is false if there is none.
func (o *observatory) read(t *testing.T, name, attr, value string) (n int64, ok bool) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := o.reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	matches := func(set attribute.Set) bool {
		b, _ := set.Value("backend")
		v, _ := set.Value(attribute.Key(attr))
		return b.AsString() == "memory" && v.AsString() == value
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					if matches(p.Attributes) {
						n, ok = n+p.Value, true
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					if matches(p.Attributes) {
						n, ok = n+int64(p.Count), true
					}
				}
			default:
				t.Fatalf("%s is a %T", name, m.Data)
			}
		}
	}
	return n, ok
}

func (o *observatory) want(t *testing.T, name, attr, value string, want int64) {
	t.Helper()
	if got, ok := o.read(t, name, attr, value); got != want || !ok {
		t.Errorf("%s{%s=%q} = %d, %v; want %d", name, attr, value, got, ok, want)
	}
}

// Metrics start at zero, and then show what has happened.
func TestMetrics(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o, store := observe(t), memlock.New()
		c, other := o.client(t, store, dlock.Config{}), o.client(t, store, dlock.Config{})
		for _, name := range []string{"acquired", "lock_held_by_other", "canceled", "unknown_outcome", "error"} {
			o.want(t, "dlock.acquisitions", "result", name, 0)
		}
		o.want(t, "dlock.losses", "reason", "not_renewed", 0)
		o.want(t, "dlock.renewals", "result", "failed", 0)
		o.want(t, "dlock.handoffs", "", "", 0)
		o.want(t, "dlock.held", "", "", 0)

		ctx := context.Background()
		g := acquire(t, c, "k")
		if _, err := other.TryAcquire(ctx, "k"); !errors.Is(err, dlock.ErrLockHeldByOther) {
			t.Fatal(err)
		}
		brief, cancel := context.WithCancel(ctx)
		done := make(chan error)
		go func() {
			_, err := other.Acquire(brief, "k")
			done <- err
		}()
		eventually(t, "it waits", func() bool { n, _ := o.read(t, "dlock.waiting", "", ""); return n == 1 })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		go func() {
			g, err := other.Acquire(ctx, "k")
			if err == nil {
				err = g.Unlock(ctx)
			}
			done <- err
		}()
		eventually(t, "it waits", func() bool { n, _ := o.read(t, "dlock.waiting", "", ""); return n == 1 })
		o.want(t, "dlock.held", "", "", 1)
		if err := errors.Join(g.Unlock(ctx), <-done); err != nil {
			t.Fatal(err)
		}
		lost := acquire(t, c, "lost", dlock.WithMaxHold(time.Millisecond))
		<-lost.Done()

		eventually(t, "the loss is counted", func() bool { n, _ := o.read(t, "dlock.losses", "reason", "max_hold"); return n == 1 })
		o.want(t, "dlock.acquisitions", "result", "acquired", 3)
		o.want(t, "dlock.acquisitions", "result", "lock_held_by_other", 1)
		o.want(t, "dlock.acquisitions", "result", "canceled", 1)
		o.want(t, "dlock.wait.duration", "result", "acquired", 3)
		o.want(t, "dlock.handoffs", "", "", 1)
		o.want(t, "dlock.releases", "result", "released", 2)
		o.want(t, "dlock.hold.duration", "end", "released", 2)
		o.want(t, "dlock.hold.duration", "end", "ownership_lost", 1)
		o.want(t, "dlock.held", "", "", 0)
		o.want(t, "dlock.waiting", "", "", 0)
	})
}

// Renewals are counted, with the validity that was left.
func TestRenewalMetrics(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		c := o.client(t, memlock.New(), dlock.Config{DefaultTTL: 60 * time.Millisecond})
		acquire(t, c, "k")
		eventually(t, "it is renewed", func() bool { n, _ := o.read(t, "dlock.renewals", "result", "ok"); return n >= 3 })
		if n, _ := o.read(t, "dlock.renewal.slack", "", ""); n < 3 {
			t.Errorf("the slack of %d renewals was recorded", n)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		o.want(t, "dlock.hold.duration", "end", "closed", 1)
		o.want(t, "dlock.held", "", "", 0)
	})
}

func (o *observatory) span(t *testing.T, name string, nth int) sdktrace.ReadOnlySpan {
	t.Helper()
	for _, s := range o.spans.Ended() {
		if s.Name() == name {
			if nth == 0 {
				return s
			}
			nth--
		}
	}
	t.Fatalf("there is no span %s", name)
	return nil
}

func attrs(s sdktrace.ReadOnlySpan) map[attribute.Key]string {
	m := map[attribute.Key]string{}
	for _, kv := range s.Attributes() {
		m[kv.Key] = kv.Value.String()
	}
	return m
}

// A waiter's span is linked to the acquisition that it waited for, in any process. The hold has its
// own span, which shows how it ended.
func TestSpans(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o, store := observe(t), memlock.New()
		c, other := o.client(t, store, dlock.Config{}), o.client(t, store, dlock.Config{})
		ctx := context.Background()
		g := acquire(t, c, "k")
		done := make(chan *dlock.Guard)
		go func() {
			g, err := other.Acquire(ctx, "k")
			if err != nil {
				t.Error(err)
			}
			done <- g
		}()
		elapse(time.Millisecond) // it waits, and has looked who holds the lock
		if err := g.Unlock(ctx); err != nil {
			t.Fatal(err)
		}
		waiter := <-done
		first, second := o.span(t, "dlock.acquire", 0), o.span(t, "dlock.acquire", 1)
		links := second.Links()
		if len(links) != 1 || links[0].SpanContext.SpanID() != first.SpanContext().SpanID() || links[0].SpanContext.TraceID() != first.SpanContext().TraceID() {
			t.Errorf("the waiter has the links %v", links)
		}
		if a := attrs(first); a["dlock.key"] != "k" || a["dlock.backend"] != "memory" {
			t.Errorf("acquire has %v", a)
		}
		hold := o.span(t, "dlock.hold", 0)
		if a := attrs(hold); a["dlock.token"] != fmt.Sprint(g.Token()) || len(hold.Links()) != 1 {
			t.Errorf("hold has %v, links %v", a, hold.Links())
		}
		if a := attrs(o.span(t, "dlock.release", 0)); a["dlock.token"] != fmt.Sprint(g.Token()) {
			t.Errorf("release has %v", a)
		}
		if _, err := c.TryAcquire(ctx, "k"); !errors.Is(err, dlock.ErrLockHeldByOther) {
			t.Fatal(err)
		}
		if busy := o.span(t, "dlock.acquire", 2); attrs(busy)["dlock.result"] != "lock_held_by_other" || busy.Status().Code == codes.Error {
			t.Errorf("a busy key is %v %v", attrs(busy), busy.Status())
		}
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		<-waiter.Done()
		if end := o.span(t, "dlock.hold", 1); attrs(end)["dlock.result"] != "closed" || end.Status().Code != codes.Error {
			t.Errorf("a hold that ended with its Client is %v %v", attrs(end), end.Status())
		}
	})
}

func TestLogLines(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		c := o.client(t, memlock.New(), dlock.Config{})
		g := acquire(t, c, "order:123", dlock.WithInfo(dlock.Info{Owner: "api-7"}))
		if err := g.Unlock(context.Background()); err != nil {
			t.Fatal(err)
		}
		<-acquire(t, c, "lost", dlock.WithMaxHold(2*time.Second)).Done()
		eventually(t, "the loss is logged", func() bool { return len(o.lines()) >= 4 })
		for i, want := range []string{
			`level=INFO msg="lock acquired" .*namespace=app\.dlock .*key=order:123 owner=api-7 token=1 wait=\S+$`,
			`level=INFO msg="lock released" .*key=order:123 owner=api-7 token=1 hold=\S+$`,
			`level=INFO msg="lock acquired" .*component=dlock .*key=lost `,
			`level=ERROR msg="ownership lost" .*key=lost owner=\S+ token=2 hold=\S+ reason="it reached its maximum hold of 2s"$`,
		} {
			if line := o.lines()[i]; !regexp.MustCompile(want).MatchString(line) {
				t.Errorf("line %d is\n%s\nand should match\n%s", i, line, want)
			}
		}
	})
}

// A call that keeps trying logs the reason, less and less often.
func TestTroubleIsLogged(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		_, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Fail, Times: 9})
		c := o.client(t, faults, dlock.Config{RetryInterval: time.Millisecond})
		if err := acquire(t, c, "k").Unlock(context.Background()); err != nil {
			t.Fatal(err)
		}
		var told []string
		for _, line := range o.lines() {
			if m := regexp.MustCompile(`level=WARN msg="backend fails" .*key=k attempts=(\d+) error=\S`).FindStringSubmatch(line); m != nil {
				told = append(told, m[1])
			}
		}
		if got := strings.Join(told, " "); got != "1 2 4 8" {
			t.Errorf("told at the attempts %s, in %q", got, o.lines())
		}
	})
}

// Many callers whose attempts fail for one cause log some lines a second, and how many they have left out.
func TestManyFailuresAreLoggedOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		_, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Fail, Times: 1000})
		c := o.client(t, faults, dlock.Config{RetryInterval: time.Second})
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		var callers sync.WaitGroup
		for i := range 1000 {
			callers.Go(func() {
				if g, err := c.Acquire(ctx, fmt.Sprint("k", i)); err == nil {
					t.Errorf("%v was acquired", g.Key())
				}
			})
		}
		callers.Wait()
		elapse(time.Second)
		faults.Add(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Fail, Times: 1})
		wantErr(t, acquire(t, c, "next").Unlock(context.Background()))
		var lines []string
		for _, line := range o.lines() {
			if strings.Contains(line, "backend fails") {
				lines = append(lines, line)
			}
		}
		if len(lines) != 17 {
			t.Fatalf("%d lines, want 16 and one more", len(lines))
		}
		if last := lines[16]; !strings.Contains(last, "key=next ") || !strings.Contains(last, " skipped=984") {
			t.Error(last)
		}
	})
}

// Without a logger, warnings and errors go to slog.Default, and nothing else does. A zero Logger is silent.
func TestDefaultLogger(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := &observatory{}
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(o, &slog.HandlerOptions{Level: slog.LevelDebug})))
		t.Cleanup(func() { slog.SetDefault(before) })
		run := func(key string, opts ...dlock.Option) {
			t.Helper()
			_, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Fail, Times: 2})
			c := client(t, faults, dlock.Config{RetryInterval: time.Millisecond}, opts...)
			if err := acquire(t, c, key).Unlock(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		run("loud")
		eventually(t, "the failures are logged", func() bool { return len(o.lines()) == 2 })
		run("silent", dlock.WithLogger(clog.Logger{}))
		run("loud")
		eventually(t, "the failures are logged", func() bool { return len(o.lines()) == 4 })
		for _, line := range o.lines() {
			if !strings.Contains(line, `level=WARN msg="backend fails"`) || !strings.Contains(line, "key=loud") || !strings.Contains(line, "namespace=dlock") {
				t.Errorf("logged: %s", line)
			}
		}
	})
}

// logDefault makes slog.Default write to an observatory.
func logDefault(t *testing.T) *observatory {
	t.Helper()
	o, before := &observatory{}, slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(o, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(func() { slog.SetDefault(before) })
	return o
}

// wantLogged waits for a line of the default logger.
func (o *observatory) wantLogged(t *testing.T, line string) {
	t.Helper()
	eventually(t, line, func() bool {
		return strings.Contains(strings.Join(o.lines(), "\n"), line+" namespace=dlock component=dlock key=k")
	})
}

// A loss that a call finds is logged without a logger, too.
func TestDefaultLoggerOfACall(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := logDefault(t)
		c := client(t, &scripted{
			Opener: memlock.New(),
			release: func(context.Context, driver.Driver, driver.Ref) (driver.State, error) {
				return driver.State{Phase: driver.Gone}, nil // it was evicted
			},
		}, dlock.Config{})
		if err := acquire(t, c, "k").Unlock(ctx); !errors.Is(err, dlock.ErrOwnershipLost) {
			t.Error(err)
		}
		o.wantLogged(t, `level=ERROR msg="ownership lost"`)
	})
}

// Without a logger, slog.Default as it is when something is logged counts, not as it was when the Client was created. All
// warnings are logged.
func TestDefaultLoggerChanges(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := memlock.New()
		c := client(t, store, dlock.Config{})
		o := logDefault(t)
		acquire(t, client(t, store, dlock.Config{}), "k", dlock.WithPermits(5))
		waiting, cancel := context.WithCancel(ctx)
		got := async(func() error { _, err := c.Acquire(waiting, "k", dlock.WithPermits(3)); return err })
		o.wantLogged(t, `level=WARN msg="the number of permits differs from the holder's"`)
		cancel()
		wantErr(t, <-got, context.Canceled)
	})
}

// LockLogLevel moves the two lines of each lock to another level, and no others.
func TestLockLogLevel(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for level, want := range map[string]string{"": "INFO", "info": "INFO", "debug": "DEBUG"} {
			o := &observatory{}
			log := slog.New(slog.NewTextHandler(o, &slog.HandlerOptions{Level: slog.LevelDebug}))
			_, faults := faulty(faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Fail, Times: 1})
			c := client(t, faults, dlock.Config{RetryInterval: time.Millisecond, LockLogLevel: level}, dlock.WithSlog(log))
			if err := acquire(t, c, "k").Unlock(context.Background()); err != nil {
				t.Fatal(err)
			}
			eventually(t, "all is logged", func() bool { return len(o.lines()) == 3 })
			got := strings.Join(o.lines(), "")
			for _, line := range []string{"level=" + want + ` msg="lock acquired"`, "level=" + want + ` msg="lock released"`, `level=WARN msg="backend fails"`} {
				if !strings.Contains(got, line) {
					t.Errorf("with %q, %s is not in\n%s", level, line, got)
				}
			}
		}
		_, err := dlock.New(&dlock.Config{LockLogLevel: "loud"}, dlock.WithBackend(memlock.New()))
		if !errors.Is(err, dlock.ErrInvalidConfig) {
			t.Errorf("an unknown level: %v", err)
		}
	})
}

// A Lock that is refused because the Client has the key is counted. No series shows a result that its call cannot have.
func TestEverySeriesIsPossible(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := observe(t)
		c := o.client(t, memlock.New(), dlock.Config{})
		ctx := context.Background()
		if err := c.Lock(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		if err := c.Lock(ctx, "k"); !errors.Is(err, dlock.ErrLockAlreadyHeld) {
			t.Fatal(err)
		}
		if err := c.Unlock(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		o.want(t, "dlock.acquisitions", "result", "acquired", 1)
		o.want(t, "dlock.acquisitions", "result", "lock_already_held", 1)
		o.want(t, "dlock.releases", "result", "released", 1)
		o.want(t, "dlock.releases", "result", "unknown_outcome", 0)
		for _, c := range []struct{ name, result string }{
			{"dlock.acquisitions", "released"},
			{"dlock.acquisitions", "lock_not_held"},
			{"dlock.releases", "acquired"},
			{"dlock.releases", "lock_held_by_other"},
			{"dlock.releases", "invalid_key"},
		} {
			if _, ok := o.read(t, c.name, "result", c.result); ok {
				t.Errorf("%s has the result %s", c.name, c.result)
			}
		}
	})
}

// A witness records the IDs that it has seen.
type witness struct {
	driver.Opener
	driver.Driver
	mu  sync.Mutex
	ids []string
}

func (w *witness) Open(o driver.Options) (driver.Driver, error) {
	d, err := w.Opener.Open(o)
	w.Driver = d
	return w, err
}

func (w *witness) Acquire(ctx context.Context, r driver.Request) (driver.State, error) {
	w.mu.Lock()
	w.ids = append(w.ids, r.ID)
	w.mu.Unlock()
	return w.Driver.Acquire(ctx, r)
}

// The ID of a claim is the right to release it, and is reported nowhere.
func TestIDsAreNotReported(t *testing.T) {
	operations := times(2_000, 10_000)
	o, w := observe(t), &witness{Opener: memlock.New()}
	c := o.client(t, w, dlock.Config{})
	ctx := context.Background()
	for i := range operations {
		key := fmt.Sprintf("k%d", i%7)
		if i%100 == 0 {
			key = "kept" // once it is held, all other calls fail
		}
		g, err := c.TryAcquire(ctx, key)
		if err != nil {
			fmt.Fprintln(o, err)
			continue
		}
		if key != "kept" {
			unlock(t, g)
		}
	}
	var all metricdata.ResourceMetrics
	if err := o.reader.Collect(ctx, &all); err != nil {
		t.Fatal(err)
	}
	var reported strings.Builder
	fmt.Fprintf(&reported, "%s\n%+v", strings.Join(o.lines(), "\n"), all)
	for _, s := range o.spans.Ended() {
		fmt.Fprint(&reported, s.Name(), s.Attributes(), s.Status(), s.Events())
	}
	seen := map[string]bool{}
	for _, word := range strings.FieldsFunc(reported.String(), func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) }) {
		for i := range max(len(word)-31, 0) {
			seen[word[i:i+32]] = true
		}
	}
	for _, id := range w.ids {
		if seen[id] {
			t.Fatalf("the ID %s is reported", id)
		}
	}
	if len(w.ids) < operations || !strings.Contains(reported.String(), "lock acquired") {
		t.Errorf("%d IDs, %d bytes: the test does not bite", len(w.ids), reported.Len())
	}
}

// The trace that another process has stored may be any text.
func TestForeignTraceParent(t *testing.T) {
	good := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if sc := dlock.SpanOf(good); !sc.IsValid() || !sc.IsRemote() || !sc.IsSampled() || dlock.TraceParent(sc) != good {
		t.Errorf("%s: %+v", good, sc)
	}
	for _, bad := range []string{
		"", "-", "---", "00-00-00-00", strings.Replace(good, "00-", "01-", 1), good + "-x", strings.ToUpper(good),
		strings.Replace(good, "b7ad6b7169203331", "0000000000000000", 1), good[:len(good)-2] + "zz", good[:len(good)-1],
	} {
		if sc := dlock.SpanOf(bad); sc.IsValid() {
			t.Errorf("%q: %+v", bad, sc)
		}
	}
}

// onEnd is a span processor that runs when a span ends.
type onEnd func()

func (onEnd) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (f onEnd) OnEnd(sdktrace.ReadOnlySpan)                   { f() }
func (onEnd) Shutdown(context.Context) error                  { return nil }
func (onEnd) ForceFlush(context.Context) error                { return nil }

// The Client is closed after a call has found the key locked, and before it looks up the holder.
func TestCloseBeforeTheHolderIsLookedFor(t *testing.T) {
	store := memlock.New()
	acquire(t, client(t, store, dlock.Config{}), "k")
	var c *dlock.Client
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(onEnd(func() { _ = c.Close() })))
	defer func() { _ = tracers.Shutdown(context.Background()) }()
	c = client(t, store, dlock.Config{}, dlock.WithTracer(tracers.Tracer("test")))
	_, err := c.TryAcquire(context.Background(), "k")
	wantErr(t, err, dlock.ErrLockHeldByOther)
	var e *dlock.Error
	if !errors.As(err, &e) || e.Holder != nil {
		t.Errorf("a closed Client has looked: %v", err)
	}
}

// A wait is measured from the start of the call.
func TestWaitIsMeasured(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o, store := observe(t), memlock.New()
		o.opts = o.opts[1:2] // a meter is enough
		c := o.client(t, store, dlock.Config{})
		elapse(time.Second)
		holder := acquire(t, client(t, store, dlock.Config{}), "k")
		time.AfterFunc(3*time.Second, func() { unlock(t, holder) })
		unlock(t, acquire(t, c, "k"))
		var all metricdata.ResourceMetrics
		if err := o.reader.Collect(context.Background(), &all); err != nil {
			t.Fatal(err)
		}
		waited := 0.0
		for _, m := range all.ScopeMetrics[0].Metrics {
			if h, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "dlock.wait.duration" {
				for _, p := range h.DataPoints {
					waited += p.Sum
				}
			}
		}
		if waited != 3 {
			t.Errorf("%v seconds were measured", waited)
		}
	})
}
