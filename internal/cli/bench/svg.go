package bench

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// A drawing is an SVG inside of a page. Its colours are classes of the style sheet,
// so that they follow light and dark. It is narrow enough for a phone, and is put
// beside others where there is room.
type drawing struct {
	strings.Builder
	height float64
}

// The frame of a chart, in units that are pixels on a phone.
const (
	drawingWidth = 340.0
	plotLeft     = 46.0
	plotRight    = drawingWidth - 6
	plotTop      = 12.0
	plotHeight   = 150.0
	plotBottom   = plotTop + plotHeight
)

// draw returns the SVG that paint makes, with a name for those who do not see it.
func draw(id, title string, height float64, paint func(*drawing)) string {
	d := &drawing{height: height}
	fmt.Fprintf(d, `<svg viewBox="0 0 %g %g" role="img" aria-labelledby="%s"><title id="%s">%s</title>`,
		drawingWidth, height, id, id, html.EscapeString(title))
	paint(d)
	d.WriteString("</svg>")
	return d.String()
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(d, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, class, x1, y1, x2, y2)
}

// text is anchored at start, middle or end.
func (d *drawing) text(class, anchor string, x, y float64, s string) {
	fmt.Fprintf(d, `<text class="%s" text-anchor="%s" x="%.1f" y="%.1f">%s</text>`, class, anchor, x, y, html.EscapeString(s))
}

// bar is a rectangle that stands on the bottom of the plot, with a hint for a mouse.
func (d *drawing) bar(class string, x, width, top float64, hint string) {
	fmt.Fprintf(d, `<rect class="%s" x="%.2f" y="%.2f" width="%.2f" height="%.2f"><title>%s</title></rect>`,
		class, x, top, width, math.Max(plotBottom-top, 0), html.EscapeString(hint))
}

// mark is the shape of a series: not by its colour alone can it be told.
func (d *drawing) mark(shape string, x, y float64, hint string) {
	path := map[string]string{
		"mean":    "M-4-4h8v8h-8z",
		"p70":     "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
		"p90":     "M0-5L5 0L0 5L-5 0z",
		"p99":     "M-5 4L0-5L5 4z",
		"longest": "M-5-4L0 5L5-4z",
	}[shape]
	fmt.Fprintf(d, `<path class="mark %s" transform="translate(%.1f %.1f)" d="%s"><title>%s</title></path>`, shape, x, y, path, html.EscapeString(hint))
}

// A scale places values between the bottom and the top of the plot.
type scale struct {
	low, high float64
	log       bool
	ticks     []float64
}

// place is the height of a value.
func (s *scale) place(v float64) float64 {
	part := (v - s.low) / (s.high - s.low)
	if s.log {
		part = math.Log(math.Max(v, s.low)/s.low) / math.Log(s.high/s.low)
	}
	return plotBottom - plotHeight*math.Min(math.Max(part, 0), 1)
}

// linear begins at zero, since bars stand on it, and ends above most.
func linear(most float64) scale {
	if most <= 0 {
		most = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, part := range []float64{0.2, 0.25, 0.5, 1} {
		if most/(step*part) <= 5 {
			step *= part
			break
		}
	}
	if most/step > 5 {
		step *= 2
	}
	s := scale{high: step * math.Ceil(most/step)}
	for i := 0; float64(i)*step <= s.high*1.0001; i++ {
		s.ticks = append(s.ticks, float64(i)*step)
	}
	return s
}

// decades spans least and most in powers of ten.
func decades(least, most float64) scale {
	low := math.Floor(math.Log10(math.Max(least, 1e-7)) + 1e-9)
	high := math.Max(math.Ceil(math.Log10(math.Max(most, 1e-7))-1e-9), low+1)
	s := scale{low: math.Pow(10, low), high: math.Pow(10, high), log: true}
	for e := low; e <= high; e++ {
		s.ticks = append(s.ticks, math.Pow(10, e))
	}
	return s
}

// axis draws the ticks of a scale.
func (d *drawing) axis(s *scale, label func(float64) string) {
	for _, t := range s.ticks {
		d.line("grid", plotLeft, s.place(t), plotRight, s.place(t))
		d.text("tick", "end", plotLeft-5, s.place(t)+3.5, label(t))
	}
}
