package sim

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/ceyewan/genesis/pkg/clog"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// observers are a logger and a tracer of which some calls panic or do not return for a
// long time. Locks must not depend on them.
type observers struct {
	mu   sync.Mutex
	rand *rand.Rand
}

// misbehave is part of every call of a logger or a tracer.
func (o *observers) misbehave() {
	o.mu.Lock()
	what, long := o.rand.IntN(20), time.Duration(o.rand.Int64N(int64(20*time.Second)))
	o.mu.Unlock()
	switch what {
	case 0:
		pause(long)
	case 1:
		panic("simulated: the logger or tracer panics")
	}
}

// hasObservers reports whether the Clients of this run have such a logger and tracer.
func (s *Simulation) hasObservers() bool { return s.Draw("observers").IntN(6) == 0 }

func (s *Simulation) observers(process string) []dlock.Option {
	if !s.hasObservers() {
		return nil
	}
	o := &observers{rand: s.Draw("observers of", process)}
	return []dlock.Option{dlock.WithLogger(clog.FromSlog(slog.New(handler{o}))), dlock.WithTracer(tracer{observers: o})}
}

type handler struct{ *observers }

func (handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(context.Context, slog.Record) error {
	h.misbehave()
	return nil
}

func (h handler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h handler) WithGroup(string) slog.Handler      { return h }

type tracer struct {
	embedded.Tracer
	*observers
}

func (t tracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.misbehave()
	return ctx, span{observers: t.observers}
}

type span struct {
	noop.Span
	*observers
}

func (s span) End(...trace.SpanEndOption) { s.misbehave() }
