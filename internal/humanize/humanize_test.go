package humanize_test

import (
	"testing"

	"github.com/ceyewan/genesis/internal/humanize"
	"github.com/ceyewan/genesis/internal/stats"
)

func TestFormat(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{humanize.Seconds(0.00000123), "1.23 µs"},
		{humanize.Seconds(0.0123), "12.3 ms"},
		{humanize.Seconds(123), "123 s"},
		{humanize.Seconds(0), "0.00 µs"},
		{humanize.Count(1234567), "1,234,567"},
		{humanize.Count(12), "12"},
		{humanize.Count(1.234), "1.23"},
		{humanize.Count(0), "0"},
		{humanize.Count(-123), "-123"},
		{humanize.Count(-1234), "-1,234"},
		{humanize.Ratio.Format(0.987), "0.99"},
		{humanize.Factor.Format(1.5), "1.50 ×"},
		{humanize.Percent.Format(12.3), "12.30 %"},
		{humanize.Bytes.Format(12345), "12,345 B"},
		{humanize.TimeTick(1e-5), "10 µs"},
		{humanize.TimeTick(1e-3), "1 ms"},
		{humanize.TimeTick(10), "10 s"},
		{humanize.CountTick(12000), "12k"},
		{humanize.CountTick(2500000), "2.5M"},
		{humanize.CountTick(0.5), "0.5"},
		{humanize.Capitalize("hot key"), "Hot key"},
		{humanize.Capitalize(""), ""},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func TestFormatRange(t *testing.T) {
	for _, c := range []struct {
		unit humanize.Unit
		of   stats.Range
		want string
	}{
		{humanize.Time, stats.Range{}, "none"},
		{humanize.Time, stats.RangeOf([]float64{0.0012}), "1.20 ms"},
		{humanize.Time, stats.Range{Median: 0.0012, Min: 0.0011, Max: 0.00135, N: 3}, "1.20 ms (1.10–1.35)"},
		{humanize.Time, stats.Range{Median: 0.0012, Min: 0.000012, Max: 0.00135, N: 3}, "1.20 ms (12.0 µs–1.35 ms)"},
		{humanize.Time, stats.Range{Median: 0.00469, Min: 0.00312, Max: 0.14062, N: 3}, "4.69 ms (3.12–141)"},
		{humanize.Number, stats.Range{Median: 1.5, Min: 1, Max: 23.45, N: 3}, "1.50 (1.00–23.4)"},
		{humanize.Number, stats.Range{Median: 12345, Min: 9876, Max: 23456, N: 3}, "12,345 (9,876–23,456)"},
		{humanize.Factor, stats.Range{Median: 1.5, Min: 1, Max: 2, N: 3}, "1.50 × (1.00–2.00)"},
		{humanize.Percent, stats.Range{Median: 1.5, Min: 1, Max: 2, N: 3}, "1.50 % (1.00–2.00)"},
		{humanize.Bytes, stats.Range{Median: 512, Min: 500, Max: 1500, N: 3}, "512 B (500–1,500)"},
	} {
		if got := c.unit.FormatRange(c.of, "none"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
