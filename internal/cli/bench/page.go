package bench

import (
	_ "embed" // the template and the style sheet
	"fmt"
	"io"

	"github.com/ceyewan/genesis/internal/htmlreport"
	"github.com/ceyewan/genesis/internal/humanize"
)

var (
	//go:embed page.html
	pageBody string
	//go:embed page.css
	pageStyle string
)

// WritePage shows a report as a page of HTML that needs nothing else.
func (r *Report) WritePage(out io.Writer) error {
	p := pageData{
		Backend: r.Backend, Key: r.Key, Held: r.Exclusion.Held, Verdict: r.Exclusion.verdict(), Ended: r.Ended,
		Method: Method, Facts: []fact{
			{"Backend", r.Where},
			{"Measured", r.Started.Format("2 January 2006, 15:04 MST")},
			{"Rounds", fmt.Sprintf("%d of %s for each experiment", r.Rounds, humanize.Seconds(r.Duration))},
			{"Client host", fmt.Sprintf("%s, %d CPUs", r.Platform, r.CPUs)},
			{"Program", "dlock " + r.Program},
		},
	}
	for _, results := range r.sections() {
		results = measuredOnly(results)
		if len(results) > 0 {
			p.add(results)
		}
	}
	return htmlreport.New(pageBody, pageStyle).Write(out, "dlock bench: "+r.Backend, &p)
}

// pageData is what the template shows.
type pageData struct {
	Backend, Key, Verdict, Ended string
	Held                         bool
	Facts                        []fact
	Sections                     []pageSection
	Method                       []string
}

type fact struct{ Name, Value string }

type pageSection struct {
	Title  string
	Waits  htmlreport.Figure
	Rate   htmlreport.Figure
	Shares []htmlreport.Figure
	Table  *htmlreport.Table
}

func (p *pageData) add(results []Result) {
	s := pageSection{Title: humanize.Capitalize(results[0].sectionName()), Table: pageTable(results)}
	s.Waits = htmlreport.Figure{Caption: "Wait for the lock", Legend: legend(), Chart: waitChart(results)}
	s.Rate = htmlreport.Figure{Caption: "Acquisitions per second", Chart: rateChart(results)}
	for i := range results {
		if r := &results[i]; r.Clients > 1 {
			name := "Share of each of " + ClientsName(r.Clients)
			s.Shares = append(s.Shares, htmlreport.Figure{Caption: name, Chart: shareChart(r)})
		}
	}
	p.Sections = append(p.Sections, s)
}

func pageTable(results []Result) *htmlreport.Table {
	name := humanize.Capitalize(results[0].sectionName())
	t := &htmlreport.Table{Label: name + ", figures", Caption: name + ": median (smallest–largest)", Columns: []string{"Figure"}}
	for i := range results {
		t.Columns = append(t.Columns, ClientsName(results[i].Clients))
	}
	row := func(name string, cell func(*Result) string) {
		texts := []string{name}
		for i := range results {
			texts = append(texts, cell(&results[i]))
		}
		t.Rows = append(t.Rows, htmlreport.Cells(texts...))
	}
	for i := range figures {
		row(figures[i].name, figures[i].cell)
	}
	row("acquisitions, all rounds", func(r *Result) string { return humanize.Count(float64(r.Acquisitions)) })
	row("waits open at the end", func(r *Result) string { return humanize.Count(float64(r.OpenWaits)) })
	return t
}
