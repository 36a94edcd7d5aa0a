package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// series are what the chart of waits shows, from the least to the most.
var series = []struct {
	class, name string
	of          func(*Result) *Spread
}{
	{"mean", "mean", func(r *Result) *Spread { return r.Mean }},
	{"p70", "P70", func(r *Result) *Spread { return r.P70 }},
	{"p90", "P90", func(r *Result) *Spread { return r.P90 }},
	{"p99", "P99", func(r *Result) *Spread { return r.P99 }},
	{"longest", "longest", func(r *Result) *Spread { return r.Max }},
}

const captionHeight = 34.0 // below the plot

// columns calls f with the middle of each experiment's column, and names it below.
func (d *drawing) columns(results []Result, f func(x, width float64, r *Result)) {
	width := (plotRight - plotLeft) / float64(len(results))
	for i := range results {
		x := plotLeft + width*(float64(i)+0.5)
		f(x, width, &results[i])
		d.text("tick", "middle", x, plotBottom+15, strconv.Itoa(results[i].Clients))
	}
	d.line("axis", plotLeft, plotBottom, plotRight, plotBottom)
	d.text("tick", "middle", (plotLeft+plotRight)/2, plotBottom+29, "clients")
}

// waitChart has the waits on a scale of powers of ten: what matters spans several.
func waitChart(id string, results []Result) string {
	least, most := math.Inf(1), 0.0
	for i := range results {
		for _, s := range series {
			least, most = math.Min(least, s.of(&results[i]).Min), math.Max(most, s.of(&results[i]).Max)
		}
	}
	axis := decades(least, most)
	return draw(id, "Wait by number of clients", plotBottom+captionHeight, func(d *drawing) {
		d.axis(&axis, decade)
		d.columns(results, func(x, width float64, r *Result) {
			gap := math.Min(width/float64(len(series)+1), 16)
			for i, s := range series {
				at, v := x+gap*(float64(i)-float64(len(series)-1)/2), s.of(r)
				d.line("range "+s.class, at, axis.place(v.Min), at, axis.place(v.Max))
				d.mark(s.class, at, axis.place(v.Median), fmt.Sprintf("%s, %s: %s (%s to %s)",
					ClientsName(r.Clients), s.name, Seconds(v.Median), Seconds(v.Min), Seconds(v.Max)))
			}
		})
	})
}

// decade is a power of ten of a second, for an axis.
func decade(v float64) string {
	_, size := unit(v * 1.001) // powers of ten are not exact
	return strconv.FormatFloat(v/size, 'g', 3, 64) + unitOf(v*1.001)
}

// legend names the shapes of the chart of waits.
func legend() string {
	var b strings.Builder
	b.WriteString(`<p class="legend" aria-hidden="true">`)
	for _, s := range series {
		d := &drawing{}
		d.mark(s.class, 7, 7, s.name)
		fmt.Fprintf(&b, `<span><svg class="key" viewBox="0 0 14 14">%s</svg>%s</span> `, d.String(), s.name)
	}
	b.WriteString("</p>")
	return b.String()
}

func rateChart(id string, results []Result) string {
	most := 0.0
	for i := range results {
		most = math.Max(most, results[i].Rate.Max)
	}
	axis := linear(most * 1.1) // room for the number above the bar
	return draw(id, "Acquisitions per second by number of clients", plotBottom+captionHeight, func(d *drawing) {
		d.axis(&axis, short)
		d.columns(results, func(x, width float64, r *Result) {
			w := math.Min(width*0.6, 48)
			d.bar("fill", x-w/2, w, axis.place(r.Rate.Median), fmt.Sprintf("%s: %s/s (%s to %s)",
				ClientsName(r.Clients), Count(r.Rate.Median), Count(r.Rate.Min), Count(r.Rate.Max)))
			d.line("whisker", x, axis.place(r.Rate.Min), x, axis.place(r.Rate.Max))
			d.text("value", "middle", x, axis.place(r.Rate.Max)-5, Count(math.Round(r.Rate.Median)))
		})
	})
}

// short is a number for an axis: 12k.
func short(v float64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"M", 1e6}, {"k", 1e3}} {
		if v >= u.size {
			return strconv.FormatFloat(v/u.size, 'g', 3, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// shareChart has a bar for each client, and a line where all would be if it were even.
func shareChart(id string, r *Result) string {
	total := math.Max(float64(r.Acquisitions), 1)
	percent := func(n int) float64 { return 100 * float64(n) / total }
	even := 100 / float64(r.Clients)
	axis := linear(math.Max(percent(slices.Max(r.Shares)), even))
	title := fmt.Sprintf("Share of each of %s", ClientsName(r.Clients))
	return draw(id, title, plotBottom+captionHeight, func(d *drawing) {
		d.axis(&axis, func(v float64) string { return short(math.Round(v*1000)/1000) + " %" })
		slot := (plotRight - plotLeft) / float64(r.Clients)
		w := math.Min(slot*0.8, 48)
		for i, n := range r.Shares {
			x := plotLeft + slot*(float64(i)+0.5)
			d.bar("fill", x-w/2, w, axis.place(percent(n)), fmt.Sprintf("client %d: %s (%.2f %%)", i+1, Count(float64(n)), percent(n)))
			if r.Clients <= 16 || (i+1)%(r.Clients/8) == 0 {
				d.text("tick", "middle", x, plotBottom+15, strconv.Itoa(i+1))
			}
		}
		d.line("axis", plotLeft, plotBottom, plotRight, plotBottom)
		d.line("even", plotLeft, axis.place(even), plotRight, axis.place(even))
		d.text("tick", "middle", (plotLeft+plotRight)/2, plotBottom+29, fmt.Sprintf("client; dashed: an even share, %.3g %%", even))
	})
}
