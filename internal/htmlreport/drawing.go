package htmlreport

import (
	"fmt"
	"html"
	"html/template"
	"strings"
)

// A Drawing is the inside of an SVG. Colors are classes of a style sheet, so that they
// follow light and dark. Hints are shown under a mouse.
type Drawing struct{ b strings.Builder }

// Draw returns the SVG that paint makes, with a title for people who do not see it.
func Draw(title string, width, height float64, paint func(*Drawing)) template.HTML {
	var d Drawing
	d.put(`<svg viewBox="0 0 %g %g" role="img" aria-label="%s"><title>%s</title>`, width, height, title, title)
	paint(&d)
	d.put("</svg>")
	return d.HTML()
}

// HTML is what was drawn so far.
func (d *Drawing) HTML() template.HTML { return template.HTML(d.b.String()) }

// put escapes every argument that is a string.
func (d *Drawing) put(format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = html.EscapeString(s)
		}
	}
	fmt.Fprintf(&d.b, format, args...)
}

// Line draws a line. An empty hint is none.
func (d *Drawing) Line(class string, x1, y1, x2, y2 float64, hint string) {
	d.put(`<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f">`, class, x1, y1, x2, y2)
	d.hint(hint)
	d.put("</line>")
}

// Rect draws a rectangle. A negative height is none.
func (d *Drawing) Rect(class string, x, y, width, height float64, hint string) {
	d.put(`<rect class="%s" x="%.2f" y="%.2f" width="%.2f" height="%.2f">`, class, x, y, max(width, 0), max(height, 0))
	d.hint(hint)
	d.put("</rect>")
}

// Path draws a path whose origin is at x and y.
func (d *Drawing) Path(class, path string, x, y float64, hint string) {
	d.put(`<path class="%s" transform="translate(%.1f %.1f)" d="%s">`, class, x, y, path)
	d.hint(hint)
	d.put("</path>")
}

func (d *Drawing) hint(text string) {
	if text != "" {
		d.put("<title>%s</title>", text)
	}
}

// An Anchor is the part of a text that is at its x.
type Anchor string

// The anchors.
const (
	Start  Anchor = "start"
	Middle Anchor = "middle"
	End    Anchor = "end"
)

// Text writes a text whose baseline is at y.
func (d *Drawing) Text(class string, anchor Anchor, x, y float64, text string) {
	d.put(`<text class="%s" text-anchor="%s" x="%.1f" y="%.1f">%s</text>`, class, string(anchor), x, y, text)
}
