package report

import (
	"fmt"

	"github.com/ceyewan/genesis/bench/workload"
	"github.com/ceyewan/genesis/internal/humanize"
	"github.com/ceyewan/genesis/internal/stats"
)

// unitOf is how the values of a metric are written.
func unitOf(m workload.Metric) humanize.Unit {
	switch m.Unit {
	case "s":
		return humanize.Time
	case "%":
		return humanize.Percent
	case "B":
		return humanize.Bytes
	}
	return humanize.Number
}

const notMeasured = "–"

// cell is a median with its range.
func cell(r stats.Range, m workload.Metric) string { return unitOf(m).FormatRange(r, notMeasured) }

func times(r *stats.Range) string {
	if r == nil {
		return notMeasured
	}
	return humanize.Factor.FormatRange(*r, notMeasured)
}

// describe is trouble in words, "" if there was none.
func describe(t *workload.Trouble) string {
	text := ""
	for _, part := range []struct {
		n    int
		what string
	}{{t.Overlaps, "overlaps"}, {t.Errors, "errors"}, {t.Starved, "clients starved"}, {t.GaveUp, "waits given up by the library"}} {
		if part.n > 0 {
			if text != "" {
				text += ", "
			}
			text += fmt.Sprintf("%d %s", part.n, part.what)
		}
	}
	if t.First != "" {
		text += ": " + t.First
	}
	return text
}

// metricsOf are the metrics that a case has.
func metricsOf(c *Case) []workload.Metric {
	var some []workload.Metric
	for _, m := range workload.Metrics {
		for i := range c.Rows {
			if c.Rows[i].Values[m.Key].N > 0 {
				some = append(some, m)
				break
			}
		}
	}
	return some
}

// hasFloor reports whether a case is compared with a floor.
func hasFloor(c *Case) bool {
	for i := range c.Rows {
		if c.Rows[i].ToFloor != nil {
			return true
		}
	}
	return false
}

func metric(key string) workload.Metric {
	for _, m := range workload.Metrics {
		if m.Key == key {
			return m
		}
	}
	return workload.Metric{Key: key, Title: key}
}
