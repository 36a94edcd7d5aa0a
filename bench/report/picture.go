package report

import (
	_ "embed" // the template and the style sheet
	"fmt"
	"html/template"
	"strings"

	"github.com/ceyewan/genesis/bench/workload"
	"github.com/ceyewan/genesis/internal/htmlreport"
)

var (
	//go:embed picture.svg
	pictureText string
	//go:embed picture.css
	pictureStyle string
)

// pictures are the charts that documents show, by file.
var pictures = map[string]struct{ section, of, metric string }{
	"pairs.svg": {"pair", workload.PairCase(1), workload.Pairs},
	"hot.svg":   {"hot", workload.ShownCase, workload.Rate},
	"waits.svg": {"hot", workload.ShownCase, workload.WaitP99},
}

// caption is how much room the title of a picture takes.
const caption = 22.0

// Pictures are charts that stand alone, by the names of their files. What was not
// measured is not there.
func (r *Report) Pictures() (map[string]string, error) {
	picture, err := template.New("picture").Parse(pictureText)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for file, want := range pictures {
		c := r.caseOf(want.section, want.of)
		if c == nil {
			continue
		}
		ch := r.chartOf(c, want.metric)
		if len(ch.rows) == 0 {
			continue
		}
		var bars htmlreport.Drawing
		ch.draw(&bars)
		var b strings.Builder
		err := picture.Execute(&b, map[string]any{
			"Title": ch.title + ", " + c.Name, "Hint": ch.hint(), "Style": template.CSS(pictureStyle), "Bars": bars.HTML(),
			"Width": chartWidth, "Height": ch.height() + caption, "Shown": 2 * chartWidth, "Caption": caption,
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all[file] = b.String()
	}
	return all, nil
}

func (r *Report) caseOf(section, name string) *Case {
	for i := range r.Sections {
		for j := range r.Sections[i].Cases {
			if c := &r.Sections[i].Cases[j]; r.Sections[i].Name == section && c.Name == name {
				return c
			}
		}
	}
	return nil
}
