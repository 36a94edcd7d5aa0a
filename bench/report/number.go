package report

import (
	"fmt"
	"strconv"

	"github.com/ceyewan/genesis/bench/workload"
	"github.com/ceyewan/genesis/internal/cli/bench"
)

// show is a value for people.
func show(v float64, unit string) string {
	switch unit {
	case "s":
		return bench.Seconds(v)
	case "%":
		return strconv.FormatFloat(v, 'f', 2, 64) + " %"
	case "B":
		return bench.Count(v) + " B"
	}
	return bench.Count(v)
}

// cell is a median with its spread.
func cell(r workload.Range, unit string) string {
	switch r.N {
	case 0:
		return "–"
	case 1:
		return show(r.Median, unit)
	}
	return fmt.Sprintf("%s (%s–%s)", show(r.Median, unit), show(r.Min, unit), show(r.Max, unit))
}

func times(r *workload.Range) string {
	if r == nil {
		return "–"
	}
	if r.N == 1 {
		return fmt.Sprintf("%.2f ×", r.Median)
	}
	return fmt.Sprintf("%.2f × (%.2f–%.2f)", r.Median, r.Min, r.Max)
}

// told is trouble in words, "" if there was none.
func told(t *workload.Trouble) string {
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
