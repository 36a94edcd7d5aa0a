package report

import (
	"fmt"
	"html"
	"math"
	"strings"

	"github.com/ceyewan/genesis/bench/workload"
)

// The frame of a chart, in pixels of a phone.
const (
	chartWidth = 340.0
	barLeft    = 118.0
	barRight   = chartWidth - 62
	rowHeight  = 18.0
	topMargin  = 6.0
)

// chart is a drawing with a caption. The table has the numbers for those who do not see
// it.
func (p *page) chart(c *Case, key string, r *Report) {
	d := r.draw(c, key)
	if d.rows == 0 {
		return
	}
	p.charts++
	id := fmt.Sprintf("chart-%d", p.charts)
	p.put(`<figure><figcaption>%s <span class="quiet">%s</span></figcaption>`, capital(metric(key).Title), d.hint)
	p.put(`<svg viewBox="0 0 %g %g" role="img" aria-labelledby="%s"><title id="%s">%s, %s</title>`,
		chartWidth, d.height, id, id, metric(key).Title, c.Name)
	p.WriteString(d.bars + "</svg></figure>\n")
}

// A drawing is the inside of a chart.
type drawing struct {
	rows   int
	height float64
	hint   string // how to read it
	bars   string
}

// draw makes a bar for each peer that has the metric, with a line from the smallest round
// to the largest.
func (r *Report) draw(c *Case, key string) drawing {
	m := metric(key)
	var rows []*Row
	for i := range c.Rows {
		if c.Rows[i].Values[key].N > 0 {
			rows = append(rows, &c.Rows[i])
		}
	}
	d := drawing{rows: len(rows), height: topMargin*2 + rowHeight*float64(len(rows)), hint: "more is better"}
	if m.Lower {
		d.hint = "less is better"
	}
	if d.rows == 0 {
		return d
	}
	s := scaleOf(rows, key)
	if s.log {
		d.hint += "; powers of ten"
	}
	for i, row := range rows {
		d.bars += bar(row, row.Values[key], m, &s, topMargin+rowHeight*float64(i), r.kind(row.Peer))
	}
	return d
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

func bar(row *Row, v workload.Range, m workload.Metric, s *scale, y float64, kind string) string {
	b := &strings.Builder{}
	middle := y + rowHeight/2
	fmt.Fprintf(b, `<text class="label %s" text-anchor="end" x="%.1f" y="%.1f">%s</text>`, kind, barLeft-5, middle+3.5, html.EscapeString(row.Peer))
	fmt.Fprintf(b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>`,
		kind, barLeft, y+2, s.place(v.Median)-barLeft, rowHeight-5, html.EscapeString(row.Peer+": "+cell(v, m.Unit)))
	fmt.Fprintf(b, `<line class="whisker" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, s.place(v.Min), middle, s.place(v.Max), middle)
	fmt.Fprintf(b, `<text class="value" x="%.1f" y="%.1f">%s</text>`, barRight+5, middle+3.5, html.EscapeString(show(v.Median, m.Unit)))
	return b.String()
}

// A scale places values between the left and the right of the bars.
type scale struct {
	low, high float64
	log       bool
}

// scaleOf is of powers of ten where a plain one would show the smallest as nothing.
func scaleOf(rows []*Row, key string) scale {
	least, most := math.Inf(1), 0.0
	for _, row := range rows {
		v := row.Values[key]
		most = math.Max(most, v.Max)
		if v.Min > 0 {
			least = math.Min(least, v.Min)
		}
	}
	if most <= 0 {
		return scale{0, 1, false}
	}
	if most/least > 30 {
		return scale{math.Pow(10, math.Floor(math.Log10(least))), most, true}
	}
	return scale{0, most, false}
}

func (s *scale) place(v float64) float64 {
	part := (v - s.low) / (s.high - s.low)
	if s.log {
		part = math.Log(math.Max(v, s.low)/s.low) / math.Log(s.high/s.low)
	}
	return barLeft + (barRight-barLeft)*math.Min(math.Max(part, 0), 1)
}
