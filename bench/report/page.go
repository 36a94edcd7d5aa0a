package report

import (
	_ "embed" // of the style sheet
	"fmt"
	"html"
	"strings"
)

//go:embed page.css
var styleSheet string

// Page is the report as a page of HTML that needs nothing else: no script, no font, no
// network. It is also well-formed XML.
func (r *Report) Page() string {
	p := &page{}
	p.head(r)
	p.figures(r)
	p.troubles(r)
	for i := range r.Sections {
		p.section(&r.Sections[i], r)
	}
	p.peers(r)
	p.WriteString("</main></body></html>\n")
	return p.String()
}

type page struct {
	strings.Builder
	charts int
}

// put writes with every string escaped.
func (p *page) put(format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = html.EscapeString(s)
		}
	}
	fmt.Fprintf(p, format, args...)
}

// The policy forbids whatever would need the network, should something slip in.
const pageHead = `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<meta name="color-scheme" content="light dark"/>
<title>Genesis DLock: benchmark</title>
<style>`

func (p *page) head(r *Report) {
	p.WriteString(pageHead)
	p.WriteString(styleSheet) // ours; has nothing to escape
	p.put("</style></head><body><main>\n<h1>Distributed locks, one run</h1>\n<p class=\"quiet\">%s. Median of %d rounds (smallest–largest).</p>\n", r.facts(), r.Rounds)
	if r.Ended != "" {
		p.put(`<p class="verdict early">It ended early: %s. What follows is what was measured until then.</p>`+"\n", r.Ended)
	}
	p.WriteString("<nav><ul>")
	for i := range r.Sections {
		p.put(`<li><a href="#%s">%s</a></li>`, r.Sections[i].Name, capital(r.Sections[i].Title))
	}
	p.WriteString("</ul></nav>\n")
}

func (p *page) figures(r *Report) {
	p.table("Goals", []string{"Figure", "measured", "smallest–largest", "goal", ""})
	for _, f := range r.Figures {
		class, word := "good", "✓ met"
		if !f.OK {
			class, word = "bad", "✗ missed"
		}
		p.put(`<tr><th scope="row">%s</th><td>%g</td><td>%g–%g</td><td>%s</td><td class="%s">%s</td></tr>`+"\n", f.Name, f.Value, f.Min, f.Max, f.Goal, class, word)
	}
	for _, name := range r.Missing {
		p.put(`<tr><th scope="row">%s</th><td colspan="4">not measured in this run</td></tr>`+"\n", name)
	}
	p.endTable()
}

func (p *page) table(caption string, columns []string) {
	p.put(`<div class="scroll" tabindex="0" role="region" aria-label="%s"><table><caption>%s</caption><thead><tr>`, caption, caption)
	for _, c := range columns {
		p.put(`<th scope="col">%s</th>`, c)
	}
	p.WriteString("</tr></thead><tbody>\n")
}

func (p *page) endTable() { p.WriteString("</tbody></table></div>\n") }

func (p *page) troubles(r *Report) {
	p.WriteString("<section><h2>Who overlapped, starved or failed</h2>\n")
	if len(r.Troubles) == 0 {
		p.WriteString(`<p class="verdict good">Nobody. Mutual exclusion was checked at every acquisition of a contended key.</p></section>` + "\n")
		return
	}
	p.table("Trouble", []string{"Peer", "workload", "case", "what"})
	for i := range r.Troubles {
		t := &r.Troubles[i]
		p.put(`<tr><th scope="row">%s</th><td>%s</td><td>%s</td><td class="bad">%s</td></tr>`+"\n", t.Peer, t.Workload, t.Case, told(&t.Trouble))
	}
	p.endTable()
	p.WriteString("</section>\n")
}

func (p *page) section(s *Section, r *Report) {
	p.put("<section id=\"%s\"><h2>%s</h2>\n<p>%s</p>\n", s.Name, capital(s.Title), s.About)
	for i := range s.Cases {
		c := &s.Cases[i]
		p.put("<h3>%s</h3>\n<div class=\"charts\">\n", capital(c.Name))
		for _, key := range s.Charts {
			p.chart(c, key, r)
		}
		p.WriteString("</div>\n")
		p.rows(s, c)
	}
	p.WriteString("</section>\n")
}

func (p *page) rows(s *Section, c *Case) {
	metrics, floor := metricsOf(c), hasFloor(c)
	columns := []string{"Peer"}
	if floor {
		columns = append(columns, metric(s.Charts[0]).Title+" to the floor")
	}
	for _, m := range metrics {
		columns = append(columns, m.Title)
	}
	p.table(capital(s.Title)+": "+c.Name, columns)
	for i := range c.Rows {
		row := &c.Rows[i]
		p.put(`<tr><th scope="row">%s</th>`, row.Peer)
		if floor {
			p.put("<td>%s</td>", times(row.ToFloor))
		}
		for _, m := range metrics {
			p.put("<td>%s</td>", cell(row.Values[m.Key], m.Unit))
		}
		p.WriteString("</tr>\n")
	}
	p.endTable()
}

func (p *page) peers(r *Report) {
	p.WriteString("<section><h2>Peers</h2>\n")
	p.table("Peers and their configuration", []string{"Peer", "version", "configuration", "changed"})
	for i := range r.Peers {
		q := &r.Peers[i]
		p.put(`<tr><th scope="row">%s</th><td class="text">%s</td><td class="text">%s</td><td class="text">%s</td></tr>`+"\n", q.Name, q.Version, q.Title+": "+q.Setup, changed(q.Changed))
	}
	p.endTable()
	p.WriteString("</section>\n")
}
