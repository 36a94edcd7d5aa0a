package bench

import (
	"fmt"
	"html/template"
	"math"
	"slices"

	"github.com/ceyewan/genesis/internal/htmlreport"
	"github.com/ceyewan/genesis/internal/humanize"
	"github.com/ceyewan/genesis/internal/stats"
)

// series are what the chart of waits shows, from the least to the most. Each has a shape
// of its own, since not all readers can distinguish the colors.
var series = []struct {
	class, name, shape string
	of                 func(*Result) *stats.Range
}{
	{"mean", "mean", "M-4-4h8v8h-8z", func(r *Result) *stats.Range { return r.Mean }},
	{"p70", "P70", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", func(r *Result) *stats.Range { return r.P70 }},
	{"p90", "P90", "M0-5L5 0L0 5L-5 0z", func(r *Result) *stats.Range { return r.P90 }},
	{"p99", "P99", "M-5 4L0-5L5 4z", func(r *Result) *stats.Range { return r.P99 }},
	{"longest", "longest", "M-5-4L0 5L5-4z", func(r *Result) *stats.Range { return r.Max }},
}

// waitChart has the waits on a scale of powers of ten: what matters spans several.
func waitChart(results []Result) template.HTML {
	least, most := math.Inf(1), 0.0
	for i := range results {
		for _, s := range series {
			least, most = math.Min(least, s.of(&results[i]).Min), math.Max(most, s.of(&results[i]).Max)
		}
	}
	return drawPlot("Wait by number of clients", htmlreport.Decades(least, most), humanize.TimeTick, func(p *plot) {
		p.columns(results, func(x, width float64, r *Result) {
			gap := math.Min(width/float64(len(series)+1), 16)
			for i, s := range series {
				at, v := x+gap*(float64(i)-float64(len(series)-1)/2), s.of(r)
				p.Line("range "+s.class, at, p.height(v.Min), at, p.height(v.Max), "")
				p.Path("mark "+s.class, s.shape, at, p.height(v.Median), fmt.Sprintf("%s, %s: %s%s (%s to %s)",
					ClientsName(r.Clients), s.name, r.atLeast(v.Median), humanize.Seconds(v.Median), humanize.Seconds(v.Min), humanize.Seconds(v.Max)))
			}
		})
	})
}

// legend names the shapes of the chart of waits.
func legend() []htmlreport.LegendKey {
	var keys []htmlreport.LegendKey
	for _, s := range series {
		var d htmlreport.Drawing
		d.Path("mark "+s.class, s.shape, 7, 7, s.name)
		keys = append(keys, htmlreport.LegendKey{Name: s.name, Shape: d.HTML()})
	}
	return keys
}

func rateChart(results []Result) template.HTML {
	most := 0.0
	for i := range results {
		most = math.Max(most, results[i].Rate.Max)
	}
	axis := htmlreport.Linear(most * 1.1) // room for the number above the bar
	return drawPlot("Acquisitions per second by number of clients", axis, humanize.CountTick, func(p *plot) {
		p.columns(results, func(x, width float64, r *Result) {
			p.bar(x, math.Min(width*0.6, 48), r.Rate.Median, fmt.Sprintf("%s: %s/s (%s to %s)",
				ClientsName(r.Clients), humanize.Count(r.Rate.Median), humanize.Count(r.Rate.Min), humanize.Count(r.Rate.Max)))
			p.Line("whisker", x, p.height(r.Rate.Min), x, p.height(r.Rate.Max), "")
			p.Text("value", htmlreport.Middle, x, p.height(r.Rate.Max)-5, humanize.Count(math.Round(r.Rate.Median)))
		})
	})
}

// shareChart has a bar for each client, and a line where all would be if it were even.
func shareChart(r *Result) template.HTML {
	total := math.Max(float64(r.Acquisitions), 1)
	percent := func(n int) float64 { return 100 * float64(n) / total }
	even := 100 / float64(r.Clients)
	axis := htmlreport.Linear(math.Max(percent(slices.Max(r.Shares)), even))
	label := func(v float64) string { return humanize.CountTick(math.Round(v*1000)/1000) + " %" }
	return drawPlot("Share of each of "+ClientsName(r.Clients), axis, label, func(p *plot) {
		slot := (plotRight - plotLeft) / float64(r.Clients)
		for i, n := range r.Shares {
			x := plotLeft + slot*(float64(i)+0.5)
			p.bar(x, math.Min(slot*0.8, 48), percent(n), fmt.Sprintf("client %d: %s (%.2f %%)", i+1, humanize.Count(float64(n)), percent(n)))
			if r.Clients <= 16 || (i+1)%(r.Clients/8) == 0 {
				p.number(x, i+1)
			}
		}
		p.caption(fmt.Sprintf("client; dashed: an even share, %.3g %%", even))
		p.Line("even", plotLeft, p.height(even), plotRight, p.height(even), "")
	})
}
