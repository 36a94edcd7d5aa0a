package bench

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/ceyewan/genesis/internal/humanize"
)

// WriteTable shows a report on a terminal of so many columns.
func (r *Report) WriteTable(out io.Writer, columns int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s at %s, %d rounds of %s, median (smallest–largest)\n", r.Backend, r.Where, r.Rounds, humanize.Seconds(r.Duration))
	for _, results := range r.sections() {
		writeSection(&b, measuredOnly(results), columns)
	}
	fmt.Fprintf(&b, "\n%s\n", r.Exclusion.verdict())
	_, err := io.WriteString(out, b.String())
	return err
}

func measuredOnly(results []Result) []Result {
	var some []Result
	for i := range results {
		if len(results[i].Rounds) > 0 {
			some = append(some, results[i])
		}
	}
	return some
}

// writeSection puts as many experiments next to each other as there is room for.
func writeSection(b *strings.Builder, results []Result, columns int) {
	for len(results) > 0 {
		n := len(results)
		lines := tableLines(results[:n])
		for ; n > 1 && utf8.RuneCountInString(lines[0]) > columns; lines = tableLines(results[:n]) {
			n--
		}
		b.WriteString("\n" + strings.Join(lines, "\n") + "\n")
		results = results[n:]
	}
}

// tableLines is a header and one line for each figure, all of one length.
func tableLines(results []Result) []string {
	first := []string{results[0].sectionName()}
	for i := range figures {
		first = append(first, "  "+figures[i].name)
	}
	lines := padded(first, false)
	for i := range results {
		column := []string{ClientsName(results[i].Clients)}
		for f := range figures {
			column = append(column, figures[f].cell(&results[i]))
		}
		for l, text := range padded(column, true) {
			lines[l] += "   " + text
		}
	}
	return lines
}

func padded(texts []string, right bool) []string {
	width := 0
	for _, t := range texts {
		width = max(width, utf8.RuneCountInString(t))
	}
	out := make([]string, len(texts))
	for i, t := range texts {
		gap := strings.Repeat(" ", width-utf8.RuneCountInString(t))
		if right {
			out[i] = gap + t
		} else {
			out[i] = t + gap
		}
	}
	return out
}
