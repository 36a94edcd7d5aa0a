package dlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// linkTimeout limits how long a waiter looks up the holder.
const linkTimeout = time.Second

// Spans: dlock.acquire and dlock.release are the calls, dlock.hold is the ownership in
// between. A claim carries the span of its acquisition, so that a waiter in any process can
// link to the holder.

func (c *Client) spanOptions(key string, more ...attribute.KeyValue) trace.SpanStartOption {
	return trace.WithAttributes(append(more, attribute.String("dlock.backend", c.caps.Name), attribute.String("dlock.key", key))...)
}

// startSpan begins a span on the goroutine of a call. It returns nil if the tracer panics.
func (c *Client) startSpan(ctx context.Context, name string, opts ...trace.SpanStartOption) (in context.Context, span trace.Span) {
	in = ctx
	safely(func() { in, span = c.tracer.Start(ctx, name, opts...) })
	if in == nil || span == nil {
		return ctx, nil
	}
	return in, span
}

// traceAcquire begins the span of an acquisition, and stores it in the claim's Info.
func (c *Client) traceAcquire(ctx context.Context, key string, s *lockSettings) (context.Context, trace.Span) {
	if c.tracer == nil {
		return ctx, nil
	}
	ctx, span := c.startSpan(ctx, "dlock.acquire", trace.WithSpanKind(trace.SpanKindClient), c.spanOptions(key))
	if span != nil {
		safely(func() {
			if span.IsRecording() {
				s.info.Trace = traceParent(span.SpanContext())
			}
		})
	}
	return ctx, span
}

// endAcquire ends the span of an acquisition and begins that of the hold. The hold is a
// sibling, because it is not part of the call.
func (c *Client) endAcquire(caller context.Context, span trace.Span, g *Guard, err error) {
	if span == nil {
		return
	}
	safely(func() { endSpan(span, err) })
	if g == nil {
		return
	}
	var links trace.SpanStartOption
	safely(func() { links = trace.WithLinks(trace.Link{SpanContext: span.SpanContext()}) })
	if links == nil {
		return
	}
	_, hold := c.startSpan(caller, "dlock.hold", c.spanOptions(g.claim.key, attribute.Int64("dlock.token", g.token)), links)
	if hold == nil {
		return
	}
	c.mu.Lock()
	defer c.unlockCall()
	if !g.holds() { // lost before it was returned to the caller
		cause := g.cause()
		c.report(func() { endSpan(hold, cause) })
		return
	}
	g.ownership().span = hold
}

// linkHolder links a waiter's span to the acquisition that holds the key.
func (c *Client) linkHolder(span trace.Span, holder driver.Claim) {
	sc := spanOf(holder.Info.Trace)
	if !sc.IsValid() {
		return
	}
	c.reporter.add([]report{{run: func() {
		span.AddLink(trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{attribute.String("dlock.link", "holder")}})
	}}})
}

// traceParent and spanOf write and read a W3C traceparent. OpenTelemetry's own functions import
// net/http, which a program without HTTP does not need.
func traceParent(sc trace.SpanContext) string {
	return fmt.Sprintf("00-%s-%s-%s", sc.TraceID(), sc.SpanID(), sc.TraceFlags()&trace.FlagsSampled)
}

// spanOf returns an invalid SpanContext if parent is not a traceparent.
func spanOf(parent string) trace.SpanContext {
	parts := strings.Split(parent, "-")
	if len(parts) != 4 || parts[0] != "00" || len(parts[3]) != 2 {
		return trace.SpanContext{}
	}
	traceID, errTrace := trace.TraceIDFromHex(parts[1])
	spanID, errSpan := trace.SpanIDFromHex(parts[2])
	flags, errFlags := strconv.ParseUint(parts[3], 16, 8)
	if errors.Join(errTrace, errSpan, errFlags) != nil {
		return trace.SpanContext{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: trace.TraceFlags(flags), Remote: true,
	})
}

func (c *Client) traceRelease(ctx context.Context, g *Guard, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if c.tracer == nil {
		return ctx, nil
	}
	return c.startSpan(ctx, "dlock.release", append(opts, trace.WithSpanKind(trace.SpanKindClient),
		c.spanOptions(g.claim.key, attribute.Int64("dlock.token", g.token)))...)
}

// endSpan ends a span, with the code of err if there is one.
func endSpan(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetAttributes(attribute.String("dlock.result", resultOf(err, "")))
		if !errors.Is(err, ErrLockHeldByOther) { // a regular answer, not a failure
			span.SetStatus(codes.Error, err.Error())
		}
	}
	span.End()
}
