package report

import (
	_ "embed" // the template and the style sheet
	"fmt"

	"github.com/ceyewan/genesis/internal/htmlreport"
	"github.com/ceyewan/genesis/internal/humanize"
)

var (
	//go:embed page.html
	pageBody string
	//go:embed page.css
	pageStyle string
)

// Page is the report as a page of HTML that needs nothing else.
func (r *Report) Page() (string, error) {
	p := pageData{Facts: r.facts(), Rounds: r.Rounds, Ended: r.Ended, Goals: r.goalTable(), Peers: r.peerTable()}
	if len(r.Troubles) > 0 {
		p.Troubles = r.troubleTable()
	}
	for i := range r.Sections {
		p.add(r, &r.Sections[i])
	}
	return htmlreport.New(pageBody, pageStyle).String("Genesis DLock: benchmark", &p)
}

// pageData is what the template shows.
type pageData struct {
	Facts    string
	Rounds   int
	Ended    string
	Goals    *htmlreport.Table
	Troubles *htmlreport.Table // nil if there were none
	Sections []pageSection
	Peers    *htmlreport.Table
}

type pageSection struct {
	Name, Title, About string
	Cases              []pageCase
}

type pageCase struct {
	Title  string
	Charts []htmlreport.Figure
	Table  *htmlreport.Table
}

func (p *pageData) add(r *Report, s *Section) {
	section := pageSection{Name: s.Name, Title: humanize.Capitalize(s.Title), About: s.About}
	for i := range s.Cases {
		c := &s.Cases[i]
		shown := pageCase{Title: humanize.Capitalize(c.Name), Table: caseTable(s, c)}
		for _, key := range s.Charts {
			if ch := r.chartOf(c, key); len(ch.rows) > 0 {
				shown.Charts = append(shown.Charts, ch.figure(c.Name))
			}
		}
		section.Cases = append(section.Cases, shown)
	}
	p.Sections = append(p.Sections, section)
}

func (r *Report) goalTable() *htmlreport.Table {
	t := &htmlreport.Table{Caption: "Goals", Columns: []string{"Figure", "measured", "smallest–largest", "goal", ""}}
	for _, f := range r.Figures {
		verdict := htmlreport.Cell{Text: "✓ met", Class: "good"}
		if !f.OK {
			verdict = htmlreport.Cell{Text: "✗ missed", Class: "bad"}
		}
		row := htmlreport.Cells(f.Name, fmt.Sprintf("%g", f.Value), fmt.Sprintf("%g–%g", f.Min, f.Max), f.Goal)
		t.Rows = append(t.Rows, append(row, verdict))
	}
	for _, name := range r.Missing {
		t.Rows = append(t.Rows, []htmlreport.Cell{{Text: name}, {Text: "not measured in this run", Span: 4}})
	}
	return t
}

func (r *Report) troubleTable() *htmlreport.Table {
	t := &htmlreport.Table{Caption: "Trouble", Columns: []string{"Peer", "workload", "case", "what"}}
	for i := range r.Troubles {
		tr := &r.Troubles[i]
		what := htmlreport.Cell{Text: describe(&tr.Trouble), Class: "bad"}
		t.Rows = append(t.Rows, append(htmlreport.Cells(tr.Peer, tr.Workload, tr.Case), what))
	}
	return t
}

func caseTable(s *Section, c *Case) *htmlreport.Table {
	metrics, floor := metricsOf(c), hasFloor(c)
	t := &htmlreport.Table{Caption: humanize.Capitalize(s.Title) + ": " + c.Name, Columns: []string{"Peer"}}
	if floor {
		t.Columns = append(t.Columns, metric(s.Charts[0]).Title+" to the floor")
	}
	for _, m := range metrics {
		t.Columns = append(t.Columns, m.Title)
	}
	for i := range c.Rows {
		row := &c.Rows[i]
		texts := []string{row.Peer}
		if floor {
			texts = append(texts, times(row.ToFloor))
		}
		for _, m := range metrics {
			texts = append(texts, cell(row.Values[m.Key], m))
		}
		t.Rows = append(t.Rows, htmlreport.Cells(texts...))
	}
	return t
}

func (r *Report) peerTable() *htmlreport.Table {
	t := &htmlreport.Table{Caption: "Peers and their configuration", Columns: []string{"Peer", "version", "configuration", "changed"}}
	for i := range r.Peers {
		p := &r.Peers[i]
		row := htmlreport.Cells(p.Name, p.Version, p.Title+": "+p.Setup, changed(p.Changed))
		for j := 1; j < len(row); j++ {
			row[j].Class = "text"
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
