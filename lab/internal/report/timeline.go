// Package report shows what trials did, in pages that need nothing else.
package report

import (
	"fmt"
	"html"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/lab/internal/oracle"
)

// The picture of one key: a row for each worker, time from left to right.
const (
	width     = 1100
	left      = 90
	rowHeight = 22
	top       = 34
	maxShown  = 6 // keys
)

// Timeline draws holders and faults around the violations of a trial.
func Timeline(e *oracle.Evidence, v *oracle.Verdict) string {
	var b strings.Builder
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
		view := view{e: e, key: x.Key, from: max(from-pad, e.From), to: min(to+pad, e.To+int64(2*time.Second))}
		fmt.Fprintf(&b, "<h3>%s%s</h3><p>%s</p>\n", html.EscapeString(x.Oracle), key(x.Key), html.EscapeString(x.Detail))
		b.WriteString(view.draw(sections, x))
	}
	return b.String()
}

func key(k string) string {
	if k == "" {
		return ""
	}
	return " on " + html.EscapeString(k)
}

type view struct {
	e        *oracle.Evidence
	key      string
	from, to int64
}

func (w view) x(at int64) float64 {
	at = min(max(at, w.from), w.to)
	return left + float64(at-w.from)/float64(max(w.to-w.from, 1))*(width-left-10)
}

func (w view) draw(sections []*oracle.Section, v oracle.Violation) string {
	rows, mine := w.rows(sections)
	height := top + len(rows)*rowHeight + 24
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="timeline of %s">`+"\n", width, height, html.EscapeString(w.key))
	w.faults(&b, height)
	for i, name := range rows {
		y := top + i*rowHeight
		fmt.Fprintf(&b, `<text x="4" y="%d">%s</text><line x1="%d" x2="%d" y1="%d" y2="%d" class="row"/>`+"\n", y+15, html.EscapeString(name), left, width-10, y+rowHeight-1, y+rowHeight-1)
		for _, s := range mine[name] {
			w.section(&b, s, y)
		}
	}
	if v.From != 0 {
		fmt.Fprintf(&b, `<rect class="bad" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`+"\n",
			w.x(v.From), top, max(w.x(v.To)-w.x(v.From), 2), height-top-20, html.EscapeString(v.Detail))
	}
	w.deaths(&b, height)
	fmt.Fprintf(&b, `<text x="%d" y="%d">%.3f s</text><text x="%d" y="%d" text-anchor="end">%.3f s</text></svg>`+"\n", left, height-6, w.seconds(w.from), width-10, height-6, w.seconds(w.to))
	return b.String()
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
func (w view) section(b *strings.Builder, s *oracle.Section, y int) {
	waited := s.Enter
	if waited == 0 {
		waited = s.Exit
	}
	box := func(class string, from, to int64, title string) {
		fmt.Fprintf(b, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`+"\n",
			class, w.x(from), y+4, max(w.x(to)-w.x(from), 1), rowHeight-8, html.EscapeString(title))
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
func (w view) faults(b *strings.Builder, height int) {
	for i, f := range w.e.Faults {
		if f.To < w.from || f.From > w.to {
			continue
		}
		x := w.x(f.From)
		name := string(f.Kind)
		if f.Worker != "" {
			name += " " + f.Worker
		}
		fmt.Fprintf(b, `<rect class="fault" x="%.1f" y="0" width="%.1f" height="%d"><title>%s from %.3f s to %.3f s</title></rect><text class="name" x="%.1f" y="%d">%s</text>`+"\n",
			x, max(w.x(f.To)-x, 2), height-20, name, w.seconds(f.From), w.seconds(f.To), x+2, 12+i%2*13, name)
	}
}

// deaths are when the server dropped the key.
func (w view) deaths(b *strings.Builder, height int) {
	for _, d := range w.e.Deaths {
		if d.Key == w.key && d.At >= w.from && d.At <= w.to && d.Cause != "del" {
			fmt.Fprintf(b, `<line class="death" x1="%.1f" x2="%.1f" y1="%d" y2="%d"><title>the server dropped fence %d: %s</title></line>`+"\n", w.x(d.At), w.x(d.At), top, height-20, d.Fence, d.Cause)
		}
	}
}
