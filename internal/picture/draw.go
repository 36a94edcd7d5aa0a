//go:build unix

package main

import (
	"fmt"
	"html"
	"strings"
)

const (
	lineHeight = 22
	charWidth  = 8.43 // of a monospaced font at 14 px
	margin     = 20
	bar        = 34 // the title
)

const head = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-label="dlock run in a terminal">
<style>
  .back { fill: #f6f8fa; stroke: #d0d7de; }
  .dot { fill: #d0d7de; }
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328; white-space: pre; }
  .prompt { fill: #1a7f37; font-weight: 600; }
  .typed, .b { font-weight: 600; }
  .d { fill: #656d76; }
  @media (prefers-color-scheme: dark) {
    .back { fill: #161b22; stroke: #30363d; }
    .dot { fill: #30363d; }
    text { fill: #e6edf3; }
    .prompt { fill: #3fb950; }
    .d { fill: #8d96a0; }
  }
</style>
<rect class="back" x="0.5" y="0.5" width="%[3]d" height="%[4]d" rx="8"/>
<circle class="dot" cx="22" cy="18" r="6"/><circle class="dot" cx="42" cy="18" r="6"/><circle class="dot" cx="62" cy="18" r="6"/>
`

// classes are the SGR parameters that dlock writes.
var classes = map[string]string{"1": "b", "2": "d"}

// draw makes an SVG of the text of a terminal. It follows the reader's choice of light or dark.
func draw(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	columns := 0
	for _, l := range lines {
		columns = max(columns, visible(l))
	}
	width, height := int(float64(columns)*charWidth)+2*margin, bar+len(lines)*lineHeight+margin
	var b strings.Builder
	fmt.Fprintf(&b, head, width, height, width-1, height-1)
	for i, l := range lines {
		fmt.Fprintf(&b, `<text x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", margin, bar+(i+1)*lineHeight-4, spans(l))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// spans is a line with its styles.
func spans(line string) string {
	if typed, ok := strings.CutPrefix(line, "$ "); ok {
		return span("prompt", "$ ") + span("typed", typed)
	}
	var b strings.Builder
	class := ""
	for line != "" {
		at := sgr.FindStringSubmatchIndex(line)
		if at == nil {
			b.WriteString(span(class, line))
			break
		}
		b.WriteString(span(class, line[:at[0]]))
		class = classes[line[at[2]:at[3]]]
		line = line[at[1]:]
	}
	return b.String()
}

func span(class, text string) string {
	switch {
	case text == "":
		return ""
	case class == "":
		return html.EscapeString(text)
	}
	return fmt.Sprintf(`<tspan class="%s">%s</tspan>`, class, html.EscapeString(text))
}
