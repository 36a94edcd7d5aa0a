// Package report shows what trials did, in pages that need nothing else.
package report

import (
	"bytes"
	_ "embed" // the templates and the style sheet
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ceyewan/genesis/internal/htmlreport"
	"github.com/ceyewan/genesis/lab/internal/mutant"
	"github.com/ceyewan/genesis/lab/internal/oracle"
	"github.com/ceyewan/genesis/lab/internal/result"
	"github.com/ceyewan/genesis/lab/internal/trial"
)

var (
	//go:embed page.html
	pageBody string
	//go:embed parts.html
	partTexts string
	//go:embed page.css
	pageStyle string
)

// parts are templates for pieces of a page.
func parts() *template.Template { return template.Must(template.New("parts").Parse(partTexts)) }

// pageData is what the template shows. Nil tables are left out.
type pageData struct {
	Title                    string
	Date                     time.Time
	Column                   string
	Figures, Trials, Mutants *htmlreport.Table
	Failed                   []trialData
}

func (p *pageData) write() ([]byte, error) {
	var b bytes.Buffer
	err := htmlreport.New(pageBody+partTexts, pageStyle).Write(&b, p.Title, p)
	return b.Bytes(), err
}

// Page is the report of one trial.
func Page(r result.Result) ([]byte, error) {
	p := &pageData{Title: "Fault lab: " + r.String(), Failed: []trialData{trialOf(r)}}
	return p.write()
}

// Write puts the report of all results next to them.
func Write(folder result.Folder, s result.Summary) error {
	trials, mutants, err := folder.Load()
	if err != nil {
		return err
	}
	p := &pageData{
		Title: "Genesis DLock: fault lab", Date: s.Date, Column: s.Column,
		Figures: figureTable(s.Figures), Trials: trialTable(trials),
	}
	for _, r := range trials {
		if r.Status() == "failed" {
			p.Failed = append(p.Failed, trialOf(r))
		}
	}
	if len(mutants) > 0 {
		p.Mutants = mutantTable(mutants)
	}
	page, err := p.write()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(string(folder), "report.html"), page, 0o644)
}

func figureTable(figures []result.Figure) *htmlreport.Table {
	t := &htmlreport.Table{Caption: "Goals", Columns: []string{"figure", "value", "goal", ""}}
	for _, f := range figures {
		verdict := htmlreport.Cell{Text: "ok", Class: "good"}
		if !f.OK {
			verdict = htmlreport.Cell{Text: "missed", Class: "bad"}
		}
		t.Rows = append(t.Rows, append(htmlreport.Cells(f.Name, fmt.Sprintf("%.6g", f.Value), f.Goal), verdict))
	}
	return t
}

// trialData is what the template of a trial shows.
type trialData struct {
	Name, Status, Replay string
	Violations           []oracle.Violation
	More                 int // violations that are not shown
	Timeline             template.HTML
}

const maxViolations = 20

func trialOf(r result.Result) trialData {
	shown := r.Verdict.Violations[:min(len(r.Verdict.Violations), maxViolations)]
	return trialData{r.String(), r.Status(), Replay(r), shown, len(r.Verdict.Violations) - len(shown), r.Timeline}
}

// Replay is the command that runs a trial again.
func Replay(r result.Result) string {
	text := fmt.Sprintf("go run -C lab . replay -topology %s -mode %s -seed %d -duration %s", r.Topology, r.Mode, r.Seed, r.Length)
	if r.Rest != 0 && r.Rest != trial.DefaultRest {
		text += " -rest " + r.Rest.String()
	}
	if r.Mutant != "" {
		text += " -mutant " + r.Mutant
	}
	return text
}

func trialTable(trials []result.Result) *htmlreport.Table {
	t := &htmlreport.Table{
		Caption: "All trials",
		Columns: []string{"trial", "verdict", "operations", "faults", "overlaps", "losses", "refused", "unfenced lost"},
	}
	for _, r := range trials {
		faults := 0
		for _, k := range r.Faults {
			faults += k
		}
		row := []string{r.Name(), r.Status()}
		for _, n := range []int{r.Verdict.Operations, faults, r.Verdict.Overlaps, r.Verdict.Losses, r.Verdict.Rejected, r.Verdict.Corrupted} {
			row = append(row, strconv.Itoa(n))
		}
		t.Rows = append(t.Rows, htmlreport.Cells(row...))
	}
	return t
}

func mutantTable(all []result.Result) *htmlreport.Table {
	t := &htmlreport.Table{Caption: "Broken variants of the library", Columns: []string{"mutant", "what is wrong", "seed", "caught by"}}
	for _, r := range all {
		m, _ := mutant.Find(r.Mutant)
		row := htmlreport.Cells(r.Mutant, m.Wrong, strconv.FormatUint(r.Seed, 10), strings.Join(Oracles(r), ", "))
		row[1].Class, row[3].Class = "text", "text"
		t.Rows = append(t.Rows, row)
	}
	return t
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
