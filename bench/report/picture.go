package report

import (
	_ "embed"
	"fmt"
	"html"
	"time"

	"github.com/ceyewan/genesis/bench/workload"
)

//go:embed picture.css
var pictureStyle string

// pictures are the charts that documents show, by file.
var pictures = map[string]struct{ section, of, metric string }{
	"pairs.svg": {"pair", workload.PairCase(1), workload.Pairs},
	"hot.svg":   {"hot", workload.HotCase(64, time.Millisecond), workload.Rate},
	"waits.svg": {"hot", workload.HotCase(64, time.Millisecond), workload.WaitP99},
}

// caption is how much room the title of a picture takes.
const caption = 22.0

// Pictures are charts that stand alone, by the names of their files. What was not
// measured is not there.
func (r *Report) Pictures() map[string]string {
	all := map[string]string{}
	for file, want := range pictures {
		c := r.caseOf(want.section, want.of)
		if c == nil {
			continue
		}
		d := r.draw(c, want.metric)
		if d.rows == 0 {
			continue
		}
		title := capital(metric(want.metric).Title) + ", " + c.Name
		all[file] = fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" role="img" aria-labelledby="title">`+
			`<style>%s</style><title id="title">%s</title><rect class="paper" width="100%%" height="100%%"/>`+
			`<text class="title" x="8" y="15">%s <tspan class="hint">%s</tspan></text><g transform="translate(0 %g)">%s</g></svg>`+"\n",
			chartWidth, d.height+caption, 2*chartWidth, pictureStyle, html.EscapeString(title), html.EscapeString(title), d.hint, caption, d.bars)
	}
	return all
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
