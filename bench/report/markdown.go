package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/ceyewan/genesis/internal/humanize"
)

// Markdown is the whole report.
func (r *Report) Markdown() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "# Benchmark results\n\n%s. Median of %d rounds (smallest–largest). [How it was measured](../../docs/benchmark.md).\n", r.facts(), r.Rounds)
	if r.Ended != "" {
		fmt.Fprintf(b, "\n**It ended early: %s.** What follows is what was measured until then.\n", r.Ended)
	}
	r.writeFigures(b)
	r.writeTroubles(b)
	for i := range r.Sections {
		writeSection(b, &r.Sections[i])
	}
	r.writePeers(b)
	return b.String()
}

// facts are when and where, in a line.
func (r *Report) facts() string {
	text := fmt.Sprintf("%s, plan %q, %v; %s, %d CPUs shared by clients and servers",
		r.Started.Format("2006-01-02 15:04 MST"), r.Plan, time.Duration(r.Seconds*float64(time.Second)).Round(time.Second), r.Platform, r.CPUs)
	for _, server := range []string{"redis", "etcd"} {
		if v := r.Servers[server]; v != "" {
			text += ", " + server + " " + v
		}
	}
	if r.Load != "" {
		text += "; load before it began " + r.Load
	}
	return text
}

func (r *Report) writeFigures(b *strings.Builder) {
	b.WriteString("\n## Goals\n\n| figure | measured (smallest – largest) | goal | |\n|---|---|---|---|\n")
	for _, f := range r.Figures {
		fmt.Fprintf(b, "| %s | %g (%g – %g) | %s | %s |\n", f.Name, f.Value, f.Min, f.Max, f.Goal, verdict(f.OK))
	}
	for _, name := range r.Missing {
		fmt.Fprintf(b, "| %s | not measured in this run | | |\n", name)
	}
}

func verdict(ok bool) string {
	if ok {
		return "met"
	}
	return "**missed**"
}

func (r *Report) writeTroubles(b *strings.Builder) {
	b.WriteString("\n## Libraries that overlapped, starved or failed\n\n")
	if len(r.Troubles) == 0 {
		b.WriteString("No library. Mutual exclusion was checked at every acquisition of a contended key.\n")
		return
	}
	b.WriteString("| peer | workload | case | |\n|---|---|---|---|\n")
	for i := range r.Troubles {
		t := &r.Troubles[i]
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", t.Peer, t.Workload, t.Case, escapeCell(describe(&t.Trouble)))
	}
}

func escapeCell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
}

func writeSection(b *strings.Builder, s *Section) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n", humanize.Capitalize(s.Title), s.About)
	for i := range s.Cases {
		c := &s.Cases[i]
		metrics, floor := metricsOf(c), hasFloor(c)
		fmt.Fprintf(b, "\n### %s: %s\n\n| peer |", humanize.Capitalize(s.Title), c.Name)
		if floor {
			fmt.Fprintf(b, " %s to the floor |", metric(s.Charts[0]).Title)
		}
		for _, m := range metrics {
			fmt.Fprintf(b, " %s |", m.Title)
		}
		fmt.Fprintf(b, "\n|---|%s\n", strings.Repeat("---|", len(metrics)+btoi(floor)))
		for j := range c.Rows {
			row := &c.Rows[j]
			fmt.Fprintf(b, "| %s |", row.Peer)
			if floor {
				fmt.Fprintf(b, " %s |", times(row.ToFloor))
			}
			for _, m := range metrics {
				fmt.Fprintf(b, " %s |", cell(row.Values[m.Key], m))
			}
			b.WriteString("\n")
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (r *Report) writePeers(b *strings.Builder) {
	b.WriteString("\n## Peers\n\n| peer | version | configuration | changed |\n|---|---|---|---|\n")
	for i := range r.Peers {
		p := &r.Peers[i]
		fmt.Fprintf(b, "| `%s`, %s | %s | %s | %s |\n", p.Name, p.Title, p.Version, p.Setup, changed(p.Changed))
	}
}

func changed(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}
