package bench

import (
	"html/template"
	"strconv"

	"github.com/ceyewan/genesis/internal/htmlreport"
)

// The frame of a chart, in units that are pixels on a phone. It is narrow enough for one,
// and charts are next to each other where there is room.
const (
	chartWidth    = 340.0
	plotLeft      = 46.0
	plotRight     = chartWidth - 6
	plotTop       = 12.0
	plotHeight    = 150.0
	plotBottom    = plotTop + plotHeight
	captionHeight = 34.0 // below the plot
)

// A plot is a chart with a vertical axis.
type plot struct {
	*htmlreport.Drawing
	axis htmlreport.Scale
}

// drawPlot draws the axis, and then what paint draws.
func drawPlot(title string, axis htmlreport.Scale, label func(float64) string, paint func(*plot)) template.HTML {
	return htmlreport.Draw(title, chartWidth, plotBottom+captionHeight, func(d *htmlreport.Drawing) {
		p := &plot{d, axis}
		for _, tick := range axis.Ticks {
			p.Line("grid", plotLeft, p.height(tick), plotRight, p.height(tick), "")
			p.Text("tick", htmlreport.End, plotLeft-5, p.height(tick)+3.5, label(tick))
		}
		paint(p)
	})
}

// height is where a value is.
func (p *plot) height(v float64) float64 { return plotBottom - plotHeight*p.axis.Part(v) }

// bar draws a value from the bottom of the plot, around x.
func (p *plot) bar(x, width, v float64, hint string) {
	p.Rect("fill", x-width/2, p.height(v), width, plotBottom-p.height(v), hint)
}

// caption draws the bottom of the plot, and a text below it.
func (p *plot) caption(text string) {
	p.Line("axis", plotLeft, plotBottom, plotRight, plotBottom, "")
	p.Text("tick", htmlreport.Middle, (plotLeft+plotRight)/2, plotBottom+29, text)
}

// number writes a number below the plot.
func (p *plot) number(x float64, n int) {
	p.Text("tick", htmlreport.Middle, x, plotBottom+15, strconv.Itoa(n))
}

// columns calls f with the middle of each experiment's column, and names it below.
func (p *plot) columns(results []Result, f func(x, width float64, r *Result)) {
	width := (plotRight - plotLeft) / float64(len(results))
	for i := range results {
		x := plotLeft + width*(float64(i)+0.5)
		f(x, width, &results[i])
		p.number(x, results[i].Clients)
	}
	p.caption("clients")
}
