package dlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ceyewan/genesis/pkg/xerrors"
)

// meters are the instruments of a Client. Their attributes have few values, and none of
// them is a key.
type meters struct {
	acquisitions, releases, renewals, losses, handoffs metric.Int64Counter
	held, waiting                                      metric.Int64UpDownCounter
	wait, hold, slack                                  metric.Float64Histogram

	backend attribute.KeyValue
	counts  map[label]metric.MeasurementOption // the attributes, created once
}

// A label is the name and a value of the one attribute that an instrument has.
type label struct{ name, value string }

// Results that are not error codes.
const (
	resultAcquired = "acquired"
	resultReleased = "released"
	resultLeft     = "left"
	resultOK       = "ok"
	resultFailed   = "failed"
	resultError    = "error"
)

// The reasons of a loss.
const (
	lossExpired  = "not_renewed"
	lossTaken    = "taken_away"
	lossMaxHold  = "max_hold"
	lossUnlocked = "unlocked_late"
)

// The results that a call can have, how a hold can end, and the reasons of a loss.
var (
	lossReasons    = []string{lossExpired, lossTaken, lossMaxHold, lossUnlocked}
	acquireResults = []string{
		resultAcquired, resultError, "canceled", "deadline_exceeded", "lock_held_by_other", "lock_already_held", "ownership_lost",
		"unknown_outcome", "unavailable", "denied", "not_ready", "closed", "unsupported", "invalid_config", "invalid_key", "invalid_ttl",
	}
	releaseResults = []string{resultReleased, resultError, "ownership_lost", "unknown_outcome"}
	holdEnds       = []string{resultReleased, resultError, "ownership_lost", "closed", resultLeft}
)

// resultOf returns the result of a call, by the code of its error.
func resultOf(err error, success string) string {
	if err == nil {
		return success
	}
	code := xerrors.CodeOf(err)
	switch {
	case errors.Is(err, ErrUnknownOutcome):
		return "unknown_outcome"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline_exceeded"
	case code == "":
		return resultError
	}
	return code
}

// seconds are the buckets for times from below a millisecond to a day.
var seconds = metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4*3600, 24*3600)

func newMeters(m metric.Meter, backend string) (*meters, error) {
	ms := &meters{backend: attribute.String("backend", backend), counts: map[label]metric.MeasurementOption{}}
	var errs []error
	counter := func(to *metric.Int64Counter, name, unit, text string) {
		var err error
		*to, err = m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(text))
		errs = append(errs, err)
	}
	gauge := func(to *metric.Int64UpDownCounter, name, unit, text string) {
		var err error
		*to, err = m.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(text))
		errs = append(errs, err)
	}
	histogram := func(to *metric.Float64Histogram, name, text string) {
		var err error
		*to, err = m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(text), seconds)
		errs = append(errs, err)
	}
	counter(&ms.acquisitions, "dlock.acquisitions", "{call}", "Calls to acquire a lock, by result.")
	counter(&ms.releases, "dlock.releases", "{call}", "Calls that released a lock, by result.")
	counter(&ms.renewals, "dlock.renewals", "{renewal}", "Renewals of held and waiting claims, by result.")
	counter(&ms.losses, "dlock.losses", "{lock}", "Locks whose ownership was lost, by reason.")
	counter(&ms.handoffs, "dlock.handoffs", "{lock}", "Locks that were granted to a waiter.")
	histogram(&ms.wait, "dlock.wait.duration", "Time from the call to its end, by result.")
	histogram(&ms.hold, "dlock.hold.duration", "Time from the acquisition to the end of ownership, by how it ended.")
	histogram(&ms.slack, "dlock.renewal.slack", "Validity that was left when a renewal was answered.")
	gauge(&ms.held, "dlock.held", "{lock}", "Locks that are held now.")
	gauge(&ms.waiting, "dlock.waiting", "{call}", "Calls that wait for a lock now.")
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%w: meter: %w", ErrInvalidConfig, err)
	}
	ms.zero()
	return ms, nil
}

// zero creates all attributes and starts every counter at zero, so that dashboards also show
// results that have not occurred yet.
func (ms *meters) zero() {
	ctx := context.Background()
	for _, l := range acquireResults {
		ms.acquisitions.Add(ctx, 0, ms.with("result", l))
	}
	for _, l := range releaseResults {
		ms.releases.Add(ctx, 0, ms.with("result", l))
	}
	for _, l := range holdEnds {
		ms.with("end", l)
	}
	for _, l := range []string{resultOK, resultFailed} {
		ms.renewals.Add(ctx, 0, ms.with("result", l))
	}
	for _, l := range lossReasons {
		ms.losses.Add(ctx, 0, ms.with("reason", l))
	}
	ms.handoffs.Add(ctx, 0, ms.with("", ""))
	ms.held.Add(ctx, 0, ms.with("", ""))
	ms.waiting.Add(ctx, 0, ms.with("", ""))
}

// with returns attributes, and creates them if necessary. After zero it only reads.
func (ms *meters) with(name, value string) metric.MeasurementOption {
	l := label{name, value}
	if o, ok := ms.counts[l]; ok {
		return o
	}
	set := []attribute.KeyValue{ms.backend}
	if name != "" {
		set = append(set, attribute.String(name, value))
	}
	ms.counts[l] = metric.WithAttributeSet(attribute.NewSet(set...))
	return ms.counts[l]
}

// resultAttributes returns the attributes of a result; an unexpected result becomes "error".
func (ms *meters) resultAttributes(name, value string) metric.MeasurementOption {
	if o, ok := ms.counts[label{name, value}]; ok {
		return o
	}
	return ms.counts[label{name, resultError}]
}

// A measurement is made by the engine and recorded by the reporter.
type measurement struct {
	of    measured
	value time.Duration
	n     int
	label string
}

type measured uint8

const (
	measuredHold measured = iota
	measuredLoss
	measuredRenewals
	measuredSlack
	measuredHeld
	measuredHandOff
	measuredWaiting
)

// measure runs under mu.
func (c *Client) measure(m measurement) {
	if c.meters != nil {
		c.reports = append(c.reports, report{measured: m})
	}
}

// measureHold records how long a Guard held the lock, and how the hold ended. It runs
// under mu.
func (c *Client) measureHold(g *Guard, cause error) {
	if c.meters != nil {
		c.measure(measurement{of: measuredHold, value: time.Duration(c.now() - g.since), label: resultOf(cause, resultReleased)})
	}
}

func (ms *meters) record(m measurement) {
	ctx := context.Background()
	switch m.of {
	case measuredHold:
		ms.hold.Record(ctx, m.value.Seconds(), ms.resultAttributes("end", m.label))
	case measuredLoss:
		ms.losses.Add(ctx, 1, ms.with("reason", m.label))
	case measuredRenewals:
		ms.renewals.Add(ctx, int64(m.n), ms.with("result", m.label))
	case measuredHeld:
		ms.held.Add(ctx, int64(m.n), ms.with("", ""))
	case measuredHandOff:
		ms.handoffs.Add(ctx, 1, ms.with("", ""))
	case measuredWaiting:
		ms.waiting.Add(ctx, int64(m.n), ms.with("", ""))
	case measuredSlack:
		ms.slack.Record(ctx, m.value.Seconds(), ms.with("", ""))
	}
}

// measureAcquire counts an acquisition. Like measureRelease, it runs on the goroutine of the
// call, with the call's context.
func (c *Client) measureAcquire(ctx context.Context, started int64, err error) {
	ms := c.meters
	if ms == nil {
		return
	}
	safely(func() {
		o := ms.resultAttributes("result", resultOf(err, resultAcquired))
		ms.acquisitions.Add(ctx, 1, o)
		ms.wait.Record(ctx, time.Duration(c.now()-started).Seconds(), o)
	})
}

func (c *Client) measureRelease(ctx context.Context, err error) {
	if ms := c.meters; ms != nil {
		safely(func() { ms.releases.Add(ctx, 1, ms.resultAttributes("result", resultOf(err, resultReleased))) })
	}
}

// measureHandOff and measureWaiting run inside a call that Close waits for, so the reporter
// calls the user's meter. It does so at once, so that the gauge shows calls while they wait.
func (c *Client) measureHandOff() { c.measureInside(measurement{of: measuredHandOff}) }

func (c *Client) measureWaiting(n int) {
	c.measureInside(measurement{of: measuredWaiting, n: n})
}

func (c *Client) measureInside(m measurement) {
	if c.meters != nil {
		c.reporter.add([]report{{measured: m}})
	}
}
