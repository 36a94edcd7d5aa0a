package soak

import (
	"fmt"
	"io"
	"slices"
)

// WriteTable prints the samples at rest as the table of docs/reliability.md.
func (r Report) WriteTable(w io.Writer) {
	fmt.Fprintln(w, "\n| backend | series at rest | mean | no faults: slope per hour (95 %) | rare faults: slope per hour (95 %) | verdicts |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	for _, l := range r.Lines {
		if l.Half != 1 || !l.Rest || (l.Verdict == noted && l.Series != rss) {
			continue
		}
		second := Line{Verdict: tooFew}
		i := slices.IndexFunc(r.Lines, func(o Line) bool {
			return o.Backend == l.Backend && o.Series == l.Series && o.Rest && o.Half == 2
		})
		if i >= 0 {
			second = r.Lines[i]
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s, %s |\n", l.Backend, l.Series, amount(l.Mean), l.slope(), second.slope(), l.Verdict, second.Verdict)
	}
}

func (l Line) slope() string {
	if l.N < minPoints {
		return "-"
	}
	return fmt.Sprintf("%s (%s to %s)", amount(l.PerHour), amount(l.Low), amount(l.High))
}

// amount is a number with three digits that matter, and none of the rounding errors of a
// fit.
func amount(x float64) string {
	switch {
	case x > -1e-6 && x < 1e-6:
		return "0"
	case x <= -1e5 || x >= 1e5:
		return fmt.Sprintf("%.0f Ki", x/1024)
	case x <= -100 || x >= 100:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}
