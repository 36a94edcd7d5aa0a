package report

import (
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/internal/htmlreport"
	"github.com/ceyewan/genesis/lab/internal/oracle"
)

// The picture of one key: a row for each worker, time from left to right.
const (
	width     = 1100.0
	left      = 90.0
	right     = width - 10
	rowHeight = 22.0
	top       = 34.0
	bottom    = 20.0 // below the rows, for the times
	maxShown  = 6    // keys
)

// Timeline draws holders and faults around the violations of a trial.
func Timeline(e *oracle.Evidence, v *oracle.Verdict) (template.HTML, error) {
	var pictures []picture
	sections := e.Sections()
	shown := map[string]bool{}
	for _, x := range v.Violations {
		if shown[x.Key] || len(shown) == maxShown {
			continue
		}
		shown[x.Key] = true
		from, to := x.From, x.To
		if from == 0 {
			from, to = e.From, e.To
		}
		pad := int64(e.TTL)
		w := view{e: e, key: x.Key, from: max(from-pad, e.From), to: min(to+pad, e.To+int64(2*time.Second))}
		pictures = append(pictures, picture{Violation: x, Chart: w.draw(sections, x)})
	}
	var b strings.Builder
	err := parts().ExecuteTemplate(&b, "timeline", pictures)
	return template.HTML(b.String()), err
}

// A picture is of one violation.
type picture struct {
	oracle.Violation
	Chart template.HTML
}

type view struct {
	e        *oracle.Evidence
	key      string
	from, to int64
}

func (w view) x(at int64) float64 {
	scale := htmlreport.Scale{High: float64(max(w.to-w.from, 1))}
	return left + (right-left)*scale.Part(float64(at-w.from))
}

func (w view) draw(sections []*oracle.Section, v oracle.Violation) template.HTML {
	rows, mine := w.rows(sections)
	height := top + float64(len(rows))*rowHeight + bottom + 4
	return htmlreport.Draw("timeline of "+w.key, width, height, func(d *htmlreport.Drawing) {
		w.faults(d, height-bottom)
		for i, name := range rows {
			y := top + float64(i)*rowHeight
			d.Text("", htmlreport.Start, 4, y+15, name)
			d.Line("row", left, y+rowHeight-1, right, y+rowHeight-1, "")
			for _, s := range mine[name] {
				w.section(d, s, y)
			}
		}
		if v.From != 0 {
			d.Rect("violation", w.x(v.From), top, max(w.x(v.To)-w.x(v.From), 2), height-top-bottom, v.Detail)
		}
		w.deaths(d, height-bottom)
		d.Text("", htmlreport.Start, left, height-6, fmt.Sprintf("%.3f s", w.seconds(w.from)))
		d.Text("", htmlreport.End, right, height-6, fmt.Sprintf("%.3f s", w.seconds(w.to)))
	})
}

func (w view) seconds(at int64) float64 { return time.Duration(at - w.e.From).Seconds() }

// rows are the workers that wanted the key in this time, and what they did.
func (w view) rows(sections []*oracle.Section) (names []string, of map[string][]*oracle.Section) {
	of = map[string][]*oracle.Section{}
	for _, s := range sections {
		end := max(s.Exit, s.Released, s.Enter)
		if (w.key != "" && s.Key != w.key) || end < w.from || s.Call > w.to {
			continue
		}
		if of[s.Worker] == nil {
			names = append(names, s.Worker)
		}
		of[s.Worker] = append(of[s.Worker], s)
	}
	slices.Sort(names)
	return names, of
}

// section draws the wait, the hold and the release of an attempt.
func (w view) section(d *htmlreport.Drawing, s *oracle.Section, y float64) {
	waited := s.Enter
	if waited == 0 {
		waited = s.Exit
	}
	box := func(class string, from, to int64, hint string) {
		d.Rect(class, w.x(from), y+4, max(w.x(to)-w.x(from), 1), rowHeight-8, hint)
	}
	box("wait", s.Call, waited, fmt.Sprintf("%s waits from %.3f s to %.3f s %s", s.Attempt, w.seconds(s.Call), w.seconds(waited), s.Failed))
	if s.Enter == 0 {
		return
	}
	class, end := "hold", "left"
	switch {
	case s.Killed:
		class, end = "killed", "killed"
	case s.Lost:
		class, end = "lost", "lost"
	}
	box(class, s.Enter, s.Exit, fmt.Sprintf("%s holds fence %d from %.3f s, %s at %.3f s", s.Attempt, s.Fence, w.seconds(s.Enter), end, w.seconds(s.Exit)))
}

// faults are bands behind everything.
func (w view) faults(d *htmlreport.Drawing, bottom float64) {
	for i, f := range w.e.Faults {
		if f.To < w.from || f.From > w.to {
			continue
		}
		x := w.x(f.From)
		name := string(f.Kind)
		if f.Worker != "" {
			name += " " + f.Worker
		}
		d.Rect("fault", x, 0, max(w.x(f.To)-x, 2), bottom, fmt.Sprintf("%s from %.3f s to %.3f s", name, w.seconds(f.From), w.seconds(f.To)))
		d.Text("name", htmlreport.Start, x+2, float64(12+i%2*13), name)
	}
}

// deaths are when the server dropped the key.
func (w view) deaths(d *htmlreport.Drawing, bottom float64) {
	for _, death := range w.e.Deaths {
		if death.Key == w.key && death.At >= w.from && death.At <= w.to && death.Cause != "del" {
			x := w.x(death.At)
			d.Line("death", x, top, x, bottom, fmt.Sprintf("the server dropped fence %d: %s", death.Fence, death.Cause))
		}
	}
}
