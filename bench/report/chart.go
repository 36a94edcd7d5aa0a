package report

import (
	"math"
	"slices"

	"github.com/ceyewan/genesis/bench/workload"
	"github.com/ceyewan/genesis/internal/htmlreport"
	"github.com/ceyewan/genesis/internal/humanize"
)

// The frame of a chart, in pixels of a phone.
const (
	chartWidth = 340.0
	barLeft    = 118.0
	barRight   = chartWidth - 62
	rowHeight  = 18.0
	topMargin  = 6.0
)

// A chart has a bar for each peer that has the metric, with a line from the smallest
// round to the largest.
type chart struct {
	report *Report
	key    string // of the metric
	title  string
	rows   []*Row
	scale  htmlreport.Scale
}

// chartOf has no rows if no peer has the metric.
func (r *Report) chartOf(c *Case, key string) chart {
	ch := chart{report: r, key: key, title: humanize.Capitalize(metric(key).Title)}
	for i := range c.Rows {
		if c.Rows[i].Values[key].N > 0 {
			ch.rows = append(ch.rows, &c.Rows[i])
		}
	}
	ch.scale = ch.scaleOf()
	return ch
}

func (c *chart) height() float64 { return topMargin*2 + rowHeight*float64(len(c.rows)) }

// hint says how to read it.
func (c *chart) hint() string {
	hint := "more is better"
	if metric(c.key).Lower {
		hint = "less is better"
	}
	if c.scale.Log {
		hint += ", log scale"
	}
	return hint
}

func (c *chart) draw(d *htmlreport.Drawing) {
	for i, row := range c.rows {
		c.bar(d, row, topMargin+rowHeight*float64(i))
	}
}

func (c *chart) bar(d *htmlreport.Drawing, row *Row, y float64) {
	v, m, kind, middle := row.Values[c.key], metric(c.key), c.report.kind(row.Peer), y+rowHeight/2
	d.Text("label "+kind, htmlreport.End, barLeft-5, middle+3.5, row.Peer)
	d.Rect(kind, barLeft, y+2, c.place(v.Median)-barLeft, rowHeight-5, row.Peer+": "+cell(v, m))
	d.Line("whisker", c.place(v.Min), middle, c.place(v.Max), middle, "")
	d.Text("value", htmlreport.Start, barRight+5, middle+3.5, row.atLeast(c.key)+unitOf(m).Format(v.Median))
}

// atLeast is "≥ " for a wait that ended with the round: it would have been longer.
func (r *Row) atLeast(key string) string {
	isWait := slices.Contains([]string{workload.WaitP50, workload.WaitP70, workload.WaitP90, workload.WaitP99, workload.WaitMax}, key)
	if isWait && r.Seconds > 0 && r.Values[key].Median >= 0.98*r.Seconds {
		return "≥ "
	}
	return ""
}

func (c *chart) place(v float64) float64 { return barLeft + (barRight-barLeft)*c.scale.Part(v) }

// scaleOf is of powers of ten where a linear one would show the smallest as nothing.
func (c *chart) scaleOf() htmlreport.Scale {
	least, most := math.Inf(1), 0.0
	for _, row := range c.rows {
		v := row.Values[c.key]
		most = math.Max(most, v.Max)
		if v.Min > 0 {
			least = math.Min(least, v.Min)
		}
	}
	if most <= 0 {
		return htmlreport.Scale{High: 1}
	}
	if most/least > 30 {
		return htmlreport.Scale{Low: math.Pow(10, math.Floor(math.Log10(least))), High: most, Log: true}
	}
	return htmlreport.Scale{High: most}
}

// kind of a peer is the class of its bar.
func (r *Report) kind(name string) string {
	for i := range r.Peers {
		switch p := &r.Peers[i]; {
		case p.Name != name:
		case p.Ours:
			return "ours"
		case p.Floor:
			return "floor"
		}
	}
	return "other"
}

// figure is the chart of a case on the page.
func (c *chart) figure(of string) htmlreport.Figure {
	svg := htmlreport.Draw(metric(c.key).Title+", "+of, chartWidth, c.height(), c.draw)
	return htmlreport.Figure{Caption: c.title, Hint: c.hint(), Chart: svg}
}
