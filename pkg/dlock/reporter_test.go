package dlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// userCode is a logger, a meter and a tracer that run a function of the test whenever the Client
// calls them.
type userCode struct {
	armed atomic.Bool
	calls atomic.Int64
	do    func()
}

func (u *userCode) run() {
	if u.armed.Load() {
		u.calls.Add(1)
		u.do()
	}
}

func (u *userCode) options() map[string]dlock.Option {
	return map[string]dlock.Option{
		"logger": dlock.WithLogger(clog.FromSlog(slog.New(userHandler{u}))),
		"meter":  dlock.WithMeter(userMeter{metricnoop.NewMeterProvider().Meter(""), u}),
		"tracer": dlock.WithTracer(&userTracer{code: u}),
	}
}

type userHandler struct{ code *userCode }

func (userHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h userHandler) Handle(context.Context, slog.Record) error {
	h.code.run()
	return nil
}
func (h userHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h userHandler) WithGroup(string) slog.Handler      { return h }

type userMeter struct {
	metric.Meter
	code *userCode
}

type userCounter struct {
	metric.Int64Counter
	code *userCode
}
type userLevel struct {
	metric.Int64UpDownCounter
	code *userCode
}
type userHistogram struct {
	metric.Float64Histogram
	code *userCode
}

func (m userMeter) Int64Counter(name string, o ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	c, err := m.Meter.Int64Counter(name, o...)
	return userCounter{c, m.code}, err
}

func (m userMeter) Int64UpDownCounter(name string, o ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	c, err := m.Meter.Int64UpDownCounter(name, o...)
	return userLevel{c, m.code}, err
}

func (m userMeter) Float64Histogram(name string, o ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	h, err := m.Meter.Float64Histogram(name, o...)
	return userHistogram{h, m.code}, err
}

func (c userCounter) Add(context.Context, int64, ...metric.AddOption)           { c.code.run() }
func (c userLevel) Add(context.Context, int64, ...metric.AddOption)             { c.code.run() }
func (c userHistogram) Record(context.Context, float64, ...metric.RecordOption) { c.code.run() }

type userTracer struct {
	embedded.Tracer
	code *userCode
	on   string // if set, panics only at the start of this span
}

func (u *userTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if u.on == "" || u.on == name {
		u.code.run()
	}
	_, span := tracenoop.NewTracerProvider().Tracer("").Start(ctx, name, opts...)
	s := userSpan{span, u.code}
	return trace.ContextWithSpan(ctx, s), s
}

type userSpan struct {
	trace.Span
	code *userCode
}

func (userSpan) IsRecording() bool                     { return true }
func (s userSpan) End(...trace.SpanEndOption)          { s.code.run() }
func (s userSpan) SetAttributes(...attribute.KeyValue) { s.code.run() }
func (s userSpan) SetStatus(codes.Code, string)        { s.code.run() }
func (s userSpan) AddLink(trace.Link)                  { s.code.run() }

// A logger, a meter or a tracer that blocks for ten TTLs delays no renewal and no loss: renewed
// locks stay held, and others end before another caller gets them.
func TestUserCodeThatBlocks(t *testing.T) {
	for name := range (&userCode{}).options() {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				const ttl = 3 * second
				var code userCode
				code.do = func() { elapse(10 * ttl) }
				store := memlock.New()
				var renewals atomic.Int64
				renew := func(ctx context.Context, d driver.Driver, r []driver.Ref) ([]driver.State, error) {
					renewals.Add(1)
					return d.Renew(ctx, r)
				}
				c := client(t, &scripted{Opener: store, renew: renew, remote: true}, dlock.Config{DefaultTTL: ttl}, code.options()[name])
				other := client(t, store, dlock.Config{})
				lost := acquire(t, c, "lost", dlock.WithoutRenewal())
				kept := acquire(t, c, "kept")
				keptCtx, lostCtx := kept.Context(), lost.Context()
				code.armed.Store(true)

				next := acquire(t, other, "lost")
				if lostCtx.Err() == nil {
					t.Errorf("token %d is held, and the context of token %d lives", next.Token(), lost.Token())
				}
				elapse(8 * ttl)
				if keptCtx.Err() != nil || kept.Remaining() < ttl/2 {
					t.Errorf("the renewed lock: %v, %v left", context.Cause(keptCtx), kept.Remaining())
				}
				if n := renewals.Load(); n < 8*3-2 {
					t.Errorf("%d renewals in 8 TTLs", n)
				}
				if code.calls.Load() == 0 {
					t.Error("it was never called: the test shows nothing")
				}
				began := time.Now()
				if err := c.Close(); err != nil || time.Since(began) > 3*second {
					t.Errorf("Close: %v after %v", err, time.Since(began))
				}
				if keptCtx.Err() == nil {
					t.Error("a context outlives Close")
				}
				free(t, other, "kept")
				code.armed.Store(false)
				elapse(1000 * ttl) // code that still blocks returns
			})
		})
	}
}

// The same during calls that report before they return: Close does not wait for user code.
func TestCloseDoesNotWaitForUserCode(t *testing.T) {
	for name := range (&userCode{}).options() {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var code userCode
				code.do = func() { elapse(time.Hour) }
				store := memlock.New()
				c := client(t, store, dlock.Config{LocalBatch: 4}, code.options()[name])
				acquire(t, client(t, store, dlock.Config{}), "k", dlock.WithTTL(24*time.Hour))
				held := acquire(t, c, "held")
				code.armed.Store(true)
				var waiting []<-chan error
				for range 3 {
					waiting = append(waiting, async(func() error {
						_, err := c.Acquire(ctx, "k")
						return err
					}))
				}
				unlocked := async(func() error { return held.Unlock(ctx) })
				synctest.Wait()
				began := time.Now()
				if err := c.Close(); err != nil || time.Since(began) > 3*second {
					t.Errorf("Close: %v after %v", err, time.Since(began))
				}
				for _, w := range waiting {
					wantErr(t, <-w, dlock.ErrClosed)
				}
				<-unlocked
				code.armed.Store(false)
				elapse(100 * time.Hour)
			})
		})
	}
}

// User code that panics changes nothing: every call behaves as it does without it.
func TestUserCodeThatPanics(t *testing.T) {
	for name := range (&userCode{}).options() {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var code userCode
				code.do = func() { panic("user code") }
				store := memlock.New()
				c, other := client(t, store, dlock.Config{}, code.options()[name]), client(t, store, dlock.Config{})
				code.armed.Store(true)
				g := acquire(t, c, "k")
				lock(t, c, ctx, "keyed")
				elapse(time.Minute)
				alive(t, g)
				unlock(t, g)
				if err := c.Unlock(ctx, "keyed"); err != nil {
					t.Error(err)
				}
				free(t, other, "k")
				free(t, other, "keyed")
				if code.calls.Load() == 0 {
					t.Error("it was never called: the test shows nothing")
				}
			})
		})
	}
}

// A tracer that panics when the hold begins does not keep the Guard from its caller.
func TestTracerPanicsAtHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, on := range []string{"dlock.acquire", "dlock.hold", "dlock.release"} {
			var code userCode
			code.do = func() { panic(on) }
			tracer := &userTracer{code: &code, on: on}
			store := memlock.New()
			c := client(t, store, dlock.Config{}, dlock.WithTracer(tracer))
			code.armed.Store(true)
			g := acquire(t, c, "k")
			alive(t, g)
			unlock(t, g)
			free(t, client(t, store, dlock.Config{}), "k")
		}
	})
}

// The effects of a call are reported when it returns, and in order.
func TestReportsComeInOrder(t *testing.T) {
	o := observe(t)
	c := o.client(t, memlock.New(), dlock.Config{})
	for range 200 {
		g := acquire(t, c, "k")
		if n, _ := o.read(t, "dlock.held", "", ""); n != 1 {
			t.Fatalf("%d are held after Acquire", n)
		}
		unlock(t, g)
		if n, _ := o.read(t, "dlock.held", "", ""); n != 0 {
			t.Fatalf("%d are held after Unlock", n)
		}
	}
	if n, _ := o.read(t, "dlock.hold.duration", "end", "released"); n != 200 {
		t.Errorf("%d holds", n)
	}
}

// A slowHandler delays one message.
type slowHandler struct {
	userHandler
	at   string
	told atomic.Bool
}

func (h *slowHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.at {
		elapse(50 * time.Millisecond)
		h.told.Store(true)
	}
	return nil
}
func (h *slowHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *slowHandler) WithGroup(string) slog.Handler      { return h }

// A call waits for a report that is being delivered, if that does not take long: its own reports
// follow in order, and are delivered when it returns.
func TestCallWaitsForASlowReport(t *testing.T) {
	virtual(t, func(t *testing.T) {
		slow := &slowHandler{at: "ownership lost"}
		c := client(t, memlock.New(), dlock.Config{}, dlock.WithLogger(clog.FromSlog(slog.New(slow))))
		<-acquire(t, c, "lost", dlock.WithMaxHold(second)).Done()
		synctest.Wait()
		if slow.told.Load() {
			t.Fatal("the test does not bite: the loss is told already")
		}
		acquire(t, c, "k")
		if !slow.told.Load() {
			t.Error("the call did not wait for the report before its own")
		}
	})
}

// Of the calls that meet blocked user code, the first waits 100 ms for it, and the next ones do not
// wait.
func TestOnlyOneCallWaitsForABlockedReport(t *testing.T) {
	virtual(t, func(t *testing.T) {
		gate := make(chan struct{})
		c := client(t, memlock.New(), dlock.Config{}, dlock.WithLogger(clog.FromSlog(slog.New(blockingHandler{"ownership lost", gate}))))
		<-acquire(t, c, "lost", dlock.WithMaxHold(second)).Done()
		synctest.Wait()
		for i, want := range []time.Duration{100 * time.Millisecond, 0, 0} {
			began := time.Now()
			acquire(t, c, fmt.Sprint("k", i))
			if took := time.Since(began); took != want {
				t.Errorf("call %d took %v, want %v", i, took, want)
			}
		}
		close(gate)
	})
}
