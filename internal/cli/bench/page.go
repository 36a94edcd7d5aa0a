package bench

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"strings"
)

//go:embed page.css
var styleSheet string

// WritePage shows a report as a page of HTML that needs nothing else: no script, no
// font, no network. It is written by hand, since templates of the standard library
// keep the linker from leaving out what nobody calls. It is also well-formed XML.
func (r *Report) WritePage(out io.Writer) error {
	p := &page{report: r}
	p.head()
	p.verdict()
	for _, results := range r.sections() {
		if results = measuredOnly(results); len(results) > 0 {
			p.section(results)
		}
	}
	p.method()
	p.WriteString("</main></body></html>\n")
	_, err := io.WriteString(out, p.String())
	return err
}

type page struct {
	strings.Builder
	report *Report
	charts int
}

// put writes with every argument escaped.
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
`

func (p *page) head() {
	r := p.report
	p.WriteString(pageHead)
	p.put("<title>dlock bench: %s</title>\n<style>", r.Backend)
	p.WriteString(styleSheet) // ours; has nothing to escape
	p.put("</style></head><body><main>\n<h1>How %s shares a lock</h1>\n<dl class=\"facts\">", r.Backend)
	for _, f := range [][2]string{
		{"Backend", r.Where},
		{"Measured", r.Started.Format("2 January 2006, 15:04 MST")},
		{"Rounds", fmt.Sprintf("%d of %s for each experiment", r.Rounds, Seconds(r.Duration))},
		{"Client host", fmt.Sprintf("%s, %d CPUs", r.Platform, r.CPUs)},
		{"Program", "dlock " + r.Program},
	} {
		p.put("<div><dt>%s</dt><dd>%s</dd></div>", f[0], f[1])
	}
	p.WriteString("</dl>\n")
}

func (p *page) verdict() {
	class, sign := "good", "✓"
	if !p.report.Exclusion.Held {
		class, sign = "bad", "✗"
	}
	p.put(`<p class="verdict %s"><span aria-hidden="true">%s</span> %s</p>`+"\n", class, sign, p.report.Exclusion.verdict())
	if p.report.Ended != "" {
		p.put(`<p class="verdict early"><span aria-hidden="true">!</span> It ended early (%s). What follows is what was measured until then.</p>`+"\n", p.report.Ended)
	}
}

func (p *page) section(results []Result) {
	p.put("<section><h2>%s</h2>\n<div class=\"charts wide\">\n", capital(results[0].sectionName()))
	p.chart("Wait for the lock", legend(), func(id string) string { return waitChart(id, results) })
	p.chart("Acquisitions per second", "", func(id string) string { return rateChart(id, results) })
	p.WriteString("</div>\n<div class=\"charts\">\n")
	for i := range results {
		if r := &results[i]; r.Clients > 1 {
			p.chart("Share of each of "+ClientsName(r.Clients), "", func(id string) string { return shareChart(id, r) })
		}
	}
	p.WriteString("</div>\n")
	p.table(results)
	p.WriteString("</section>\n")
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// chart is a figure. The table has its numbers for those who do not see it.
func (p *page) chart(caption, legend string, draw func(id string) string) {
	p.charts++
	p.put("<figure><figcaption>%s</figcaption>", caption)
	p.WriteString(legend)
	p.WriteString(draw(fmt.Sprintf("chart-%d", p.charts)))
	p.WriteString("</figure>\n")
}

func (p *page) table(results []Result) {
	name := capital(results[0].sectionName())
	p.put(`<div class="scroll" tabindex="0" role="region" aria-label="%s, figures">`, name) // a keyboard can scroll it
	p.put(`<table><caption>%s: median (smallest–largest)</caption><thead><tr><th scope="col">Figure</th>`, name)
	for i := range results {
		p.put(`<th scope="col">%s</th>`, ClientsName(results[i].Clients))
	}
	p.WriteString("</tr></thead><tbody>\n")
	for f := range figures {
		p.put(`<tr><th scope="row">%s</th>`, figures[f].name)
		for i := range results {
			p.put("<td>%s</td>", figures[f].cell(&results[i]))
		}
		p.WriteString("</tr>\n")
	}
	p.sums("acquisitions, all rounds", results, func(r *Result) int { return r.Acquisitions })
	p.sums("waits open at the end", results, func(r *Result) int { return r.OpenWaits })
	p.WriteString("</tbody></table></div>\n")
}

func (p *page) sums(name string, results []Result, of func(*Result) int) {
	p.put(`<tr><th scope="row">%s</th>`, name)
	for i := range results {
		p.put("<td>%s</td>", Count(float64(of(&results[i]))))
	}
	p.WriteString("</tr>\n")
}

func (p *page) method() {
	p.WriteString("<section><h2>How it was measured</h2>\n<ul class=\"method\">")
	for _, m := range Method {
		p.put("<li>%s</li>\n", m)
	}
	p.put("</ul>\n<p class=\"quiet\">Key: <code>%s</code></p></section>\n", p.report.Key)
}
