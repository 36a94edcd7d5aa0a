package report

import (
	_ "embed" // the style
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"

	"github.com/ceyewan/genesis/lab/internal/mutant"
	"github.com/ceyewan/genesis/lab/internal/result"
	"github.com/ceyewan/genesis/lab/internal/trial"
)

//go:embed page.css
var style string

// Page is the report of one trial.
func Page(r result.Result) string {
	return page("Fault lab: "+r.String(), trialPart(r))
}

// Write puts the report of all results beside them.
func Write(folder result.Folder, s result.Summary) error {
	trials, mutants, err := folder.Load()
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(figuresPart(s))
	for _, r := range trials {
		if r.Status() == "failed" {
			b.WriteString(trialPart(r))
		}
	}
	b.WriteString(trialsPart(trials))
	b.WriteString(mutantsPart(mutants))
	path := filepath.Join(string(folder), "report.html")
	return os.WriteFile(path, []byte(page("Genesis DLock: fault lab", b.String())), 0o644)
}

func page(title, body string) string {
	return fmt.Sprintf("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>%s</title>\n<style>%s</style></head>\n<body><h1>%s</h1>\n%s</body></html>\n",
		html.EscapeString(title), style, html.EscapeString(title), body)
}

func figuresPart(s result.Summary) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<p>%s, goals of the column %s.</p>\n<table><tr><th>figure</th><th>value</th><th>goal</th><th></th></tr>\n", s.Date.Format("2006-01-02 15:04 MST"), s.Column)
	for _, f := range s.Figures {
		mark, class := "ok", "ok"
		if !f.OK {
			mark, class = "missed", "miss"
		}
		fmt.Fprintf(&b, "<tr class=%q><td>%s</td><td class=\"n\">%.6g</td><td>%s</td><td>%s</td></tr>\n", class, html.EscapeString(f.Name), f.Value, html.EscapeString(f.Goal), mark)
	}
	b.WriteString("</table>\n")
	return b.String()
}

func trialPart(r result.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<h2>%s: %s</h2>\n<p>Replay: <code>%s</code></p>\n<ul>\n", html.EscapeString(r.String()), r.Status(), html.EscapeString(Replay(r)))
	for i, x := range r.Verdict.Violations {
		if i == 20 {
			fmt.Fprintf(&b, "<li>and %d more</li>\n", len(r.Verdict.Violations)-i)
			break
		}
		fmt.Fprintf(&b, "<li><b>%s</b>%s: %s</li>\n", x.Oracle, key(x.Key), html.EscapeString(x.Detail))
	}
	b.WriteString("</ul>\n" + r.Timeline)
	return b.String()
}

// Replay is the command that runs a trial again.
func Replay(r result.Result) string {
	text := fmt.Sprintf("go run ./lab replay -topology %s -mode %s -seed %d -duration %s", r.Topology, r.Mode, r.Seed, r.Length)
	if r.Rest != 0 && r.Rest != trial.DefaultRest {
		text += " -rest " + r.Rest.String()
	}
	if r.Mutant != "" {
		text += " -mutant " + r.Mutant
	}
	return text
}

func trialsPart(trials []result.Result) string {
	var b strings.Builder
	b.WriteString("<h2>Trials</h2>\n<table><tr><th>trial</th><th>verdict</th><th>operations</th><th>faults</th><th>overlaps</th><th>losses</th><th>refused</th><th>unfenced lost</th></tr>\n")
	for _, r := range trials {
		n := 0
		for _, k := range r.Faults {
			n += k
		}
		v := r.Verdict
		fmt.Fprintf(&b, "<tr><td><code>%s</code></td><td>%s</td><td class=\"n\">%d</td><td class=\"n\">%d</td><td class=\"n\">%d</td><td class=\"n\">%d</td><td class=\"n\">%d</td><td class=\"n\">%d</td></tr>\n",
			r.Name(), r.Status(), v.Operations, n, v.Overlaps, v.Losses, v.Rejected, v.Corrupted)
	}
	b.WriteString("</table>\n")
	return b.String()
}

func mutantsPart(all []result.Result) string {
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("<h2>Mutants</h2>\n<table><tr><th>mutant</th><th>what is wrong</th><th>seed</th><th>caught by</th></tr>\n")
	for _, r := range all {
		m, _ := mutant.Find(r.Mutant)
		fmt.Fprintf(&b, "<tr><td>%s</td><td>%s</td><td class=\"n\">%d</td><td>%s</td></tr>\n", r.Mutant, html.EscapeString(m.Wrong), r.Seed, strings.Join(Oracles(r), ", "))
	}
	b.WriteString("</table>\n")
	return b.String()
}

// Oracles are those that caught something, and that the machine does not explain.
func Oracles(r result.Result) (names []string) {
	seen := map[string]bool{}
	for _, x := range r.Verdict.Violations {
		if !x.Stalled && !seen[x.Oracle] {
			seen[x.Oracle] = true
			names = append(names, x.Oracle)
		}
	}
	return names
}
