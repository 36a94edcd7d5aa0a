package dlock

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// linkBound is how long a waiter may take to find out whom it waits for.
const linkBound = time.Second

// Spans: dlock.acquire and dlock.release are the calls, dlock.hold is the ownership
// in between. What a waiter files carries its span, so that whoever waits for it
// can link to it, in any process.

func (c *Client) spanOptions(key string, more ...attribute.KeyValue) trace.SpanStartOption {
	return trace.WithAttributes(append(more, attribute.String("dlock.backend", c.caps.Name), attribute.String("dlock.key", key))...)
}

// traceAcquire begins the span of an acquisition, and puts it into what is filed.
func (c *Client) traceAcquire(ctx context.Context, key string, s *lockSettings) (context.Context, trace.Span) {
	if c.tracer == nil {
		return ctx, nil
	}
	ctx, span := c.tracer.Start(ctx, "dlock.acquire", trace.WithSpanKind(trace.SpanKindClient), c.spanOptions(key))
	if span.IsRecording() {
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		s.info.Trace = carrier["traceparent"]
	}
	return ctx, span
}

// endAcquire ends the span of an acquisition and begins that of the hold. It is a
// sibling: the hold is not part of the call.
func (c *Client) endAcquire(caller context.Context, span trace.Span, g *Guard, err error) {
	if span == nil {
		return
	}
	endSpan(span, err)
	if g == nil {
		return
	}
	_, hold := c.tracer.Start(caller, "dlock.hold", c.spanOptions(g.key, attribute.Int64("dlock.fence", g.token)),
		trace.WithLinks(trace.Link{SpanContext: span.SpanContext()}))
	c.mu.Lock()
	defer c.unlock()
	if g.phase == ended { // lost before the caller has it
		c.reports = append(c.reports, func() { endSpan(hold, g.cause()) })
		return
	}
	c.lifeOf(&g.claim).span = hold
}

// linkHolder links a waiter's span to the acquisition that holds the key, if the
// backend can show it.
func (c *Client) linkHolder(ctx context.Context, key string) {
	span := trace.SpanFromContext(ctx)
	admin, ok := c.store.(driver.Admin)
	if c.tracer == nil || !ok || !span.IsRecording() {
		return
	}
	cctx, cancel := c.callContext(ctx, linkBound)
	defer cancel()
	claims, err := admin.Inspect(cctx, key)
	if err != nil || len(claims) == 0 || claims[0].Phase != driver.Held {
		return
	}
	holder := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": claims[0].Info.Trace})
	if sc := trace.SpanContextFromContext(holder); sc.IsValid() && sc.SpanID() != span.SpanContext().SpanID() {
		span.AddLink(trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{attribute.String("dlock.link", "holder")}})
	}
}

func (c *Client) traceRelease(ctx context.Context, cl *claim) (context.Context, trace.Span) {
	if c.tracer == nil {
		return ctx, nil
	}
	return c.tracer.Start(ctx, "dlock.release", trace.WithSpanKind(trace.SpanKindClient),
		c.spanOptions(cl.key, attribute.Int64("dlock.fence", cl.token)))
}

// endSpan ends a span with the code of an error, if there is one.
func endSpan(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetAttributes(attribute.String("dlock.result", resultOf(err, "")))
		if !errors.Is(err, ErrLockHeldByOther) { // which is an answer
			span.SetStatus(codes.Error, err.Error())
		}
	}
	span.End()
}
