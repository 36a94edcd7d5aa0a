package soak

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// warmUp is the part of a half that is not judged.
const warmUp = 0.1

// Verdicts on a series.
const (
	flat     = "flat"
	shrinks  = "shrinks"
	grows    = "GROWS"
	byDesign = "by design"
	tooFew   = "too few samples"
	noted    = "-" // not judged
)

// A Line is one series of one half, and what it says.
type Line struct {
	Backend string `json:"backend"`
	Half    int    `json:"half"` // 1: no faults; 2: rare ones
	Rest    bool   `json:"rest"`
	Series  string `json:"series"`
	Fit
	Bound   float64 `json:"bound"` // of growth that is none
	Verdict string  `json:"verdict"`
}

// A Summary is what a backend had done at the end, and what was left.
type Summary struct {
	Backend    string           `json:"backend"`
	Seconds    float64          `json:"seconds"`
	Samples    int              `json:"samples"`
	Faults     map[string]int   `json:"faults"`
	Operations map[string]int64 `json:"operations"`
	Names      float64          `json:"names"`       // that were used once
	CPU        float64          `json:"cpu_seconds"` // of the child
	FenceKeys  float64          `json:"fence_keys"`  // kept for a day for each name, by design
	FenceBytes float64          `json:"fence_bytes"` // of each
	Closed     bool             `json:"closed"`      // the child has ended in good order
	// Left is how many goroutines were left when the Clients were closed, and Stacks where.
	Left   float64 `json:"left"`
	Stacks string  `json:"stacks,omitempty"`
}

// Total is how many calls were made.
func (t Summary) Total() (n int64) {
	for _, c := range t.Operations {
		n += c
	}
	return n
}

// A Report is what a run has shown.
type Report struct {
	Plan     Plan      `json:"plan"`
	Lines    []Line    `json:"lines"`
	Backends []Summary `json:"backends"`
}

// OK says whether nothing grows that must not.
func (r Report) OK() bool {
	leak := slices.ContainsFunc(r.Lines, func(l Line) bool { return l.Verdict == grows })
	left := slices.ContainsFunc(r.Backends, func(t Summary) bool { return t.Left > 0 })
	return !leak && !left
}

// NewReport judges samples.
func NewReport(plan Plan, all []Sample) Report {
	r := Report{Plan: plan}
	for _, backend := range plan.Backends {
		mine := slices.DeleteFunc(slices.Clone(all), func(s Sample) bool { return s.Backend != backend })
		r.Backends = append(r.Backends, summarize(backend, mine))
		for half := 1; half <= 2; half++ {
			for _, rest := range []bool{true, false} {
				r.Lines = append(r.Lines, judge(plan, backend, half, rest, mine)...)
			}
		}
	}
	return r
}

func summarize(backend string, samples []Sample) Summary {
	t := Summary{Backend: backend, Faults: map[string]int{}}
	for _, s := range samples {
		t.Samples++
		t.Seconds = s.At
		if s.Fault != "" {
			t.Faults[s.Fault]++
		}
		if s.Operations != nil {
			t.Operations = s.Operations
		}
		t.Names, t.CPU = max(t.Names, s.Figures[names]), max(t.CPU, s.Figures[cpu])
		if n, ok := s.Figures[fenceKeys]; ok {
			t.FenceKeys, t.FenceBytes = n, s.Figures[fenceBytes]
		}
		if s.Last {
			t.Closed, t.Left, t.Stacks = true, s.Figures[goroutines], s.Missing
		}
	}
	return t
}

// judge fits all series of one half.
func judge(plan Plan, backend string, half int, rest bool, samples []Sample) (lines []Line) {
	series := map[string][]point{}
	length := plan.Half().Seconds()
	begin, end := (float64(half-1)+warmUp)*length, float64(half)*length
	for _, s := range samples {
		if s.Last || s.Rest != rest || s.At < begin || s.At > end {
			continue
		}
		for name, value := range s.Figures {
			series[name] = append(series[name], point{s.At / 3600, value})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(series)) {
		points := series[name]
		if !rest {
			points = blocks(points)
		}
		l := Line{Backend: backend, Half: half, Rest: rest, Series: name}
		var ok bool
		l.Fit, ok = fit(points)
		l.Bound = bound(name, rest, l.Mean)
		l.Verdict = verdict(l, ok)
		lines = append(lines, l)
	}
	return lines
}

// Series that are shown and not judged: counts of work, and what others of them contain.
var notJudged = []string{names, cpu, rss, allKeys, allBytes, fenceBytes}

// bound is the growth within a half that does not count. What is counted in pieces must not
// grow at all by the end of the half, to the nearest piece; while users are at work it varies
// with what they do, and only their rests are so exact.
func bound(series string, rest bool, mean float64) float64 {
	switch series {
	case heap, otherBytes, fileBytes:
		return mean/100 + 64<<10
	}
	if rest {
		return 0.5
	}
	return 1 + mean/20
}

func verdict(l Line, ok bool) string {
	switch {
	case slices.Contains(notJudged, l.Series):
		return noted
	case l.Series == fenceKeys:
		return byDesign
	case !ok:
		return tooFew
	case l.High < 0 && -l.Growth > l.Bound:
		return shrinks
	case l.Low <= 0 || l.Growth <= l.Bound:
		return flat
	}
	return grows
}

// Write prints tables.
func (r Report) Write(w io.Writer) {
	for _, t := range r.Backends {
		fmt.Fprintf(w, "\n%s: %.0f s, %d samples, %d calls, %.0f names used once, %.0f s of CPU in the child\n", t.Backend, t.Seconds, t.Samples, t.Total(), t.Names, t.CPU)
		if t.FenceKeys > 0 {
			fmt.Fprintf(w, "  fences: %.0f keys of %.0f bytes, one for each name and server, kept for a day by design\n", t.FenceKeys, t.FenceBytes)
		}
		fmt.Fprintf(w, "  calls: %s\n  faults: %s\n", count(t.Operations), count(t.Faults))
		switch {
		case !t.Closed:
			fmt.Fprintln(w, "  the child did not end in good order")
		default:
			fmt.Fprintf(w, "  goroutines left after Close: %.0f\n", t.Left)
		}
		fmt.Fprintf(w, "  %-4s %-4s %-36s %14s %14s %32s %12s %10s  %s\n", "half", "when", "series", "mean", "per hour", "95 %", "growth", "bound", "verdict")
		for _, l := range r.Lines {
			if l.Backend != t.Backend {
				continue
			}
			when := "work"
			if l.Rest {
				when = "rest"
			}
			interval := fmt.Sprintf("%.5g .. %.5g", l.Low, l.High)
			fmt.Fprintf(w, "  %-4d %-4s %-36s %14.8g %14.5g %32s %12.5g %10.5g  %s\n", l.Half, when, l.Series, l.Mean, l.PerHour, interval, l.Growth, l.Bound, l.Verdict)
		}
	}
}

func count[N int | int64](all map[string]N) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, all[name]))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
