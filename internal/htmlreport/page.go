// Package htmlreport makes pages with tables and charts that need nothing else: no
// script, no font, no network. Pages are well-formed XML. Text is escaped by
// html/template, and by the methods of a Drawing.
package htmlreport

import (
	_ "embed" // the layout and the style sheet
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed page.html
var layout string

//go:embed page.css
var styleSheet string

// A Page is a kind of page: it has a body and a style sheet of its own, inside of the
// head and after the style sheet that all pages share.
type Page struct {
	body  *template.Template
	style string
}

// New parses the template of a body. It may use the templates "table" for a Table and
// "figure" for a Figure. Templates and style sheets are parts of the program, so that New
// panics if one is wrong. Parsing takes time: call it when a page is needed.
func New(body, style string) *Page {
	t := template.Must(template.New("page").Parse(layout))
	return &Page{template.Must(t.New("body").Parse(body)), style}
}

// Write writes a page. The body is executed with data.
func (p *Page) Write(out io.Writer, title string, data any) error {
	err := p.body.ExecuteTemplate(out, "page", struct {
		Title string
		Style template.CSS
		Data  any
	}{title, template.CSS(styleSheet + p.style), data})
	if err != nil {
		return fmt.Errorf("write the page %q: %w", title, err)
	}
	return nil
}

// String returns a page.
func (p *Page) String(title string, data any) (string, error) {
	var b strings.Builder
	err := p.Write(&b, title, data)
	return b.String(), err
}

// A Table has a name in the first cell of each row.
type Table struct {
	Label   string // for people who do not see it; Caption if empty
	Caption string
	Columns []string
	Rows    [][]Cell
}

// A Cell is one of a Table. Class is of the style sheet and may be empty.
type Cell struct {
	Text  string
	Class string
	Span  int // over so many columns; 0 is one
}

// Cells are plain ones.
func Cells(texts ...string) []Cell {
	row := make([]Cell, len(texts))
	for i, text := range texts {
		row[i].Text = text
	}
	return row
}

// Name is the text for a screen reader.
func (t *Table) Name() string {
	if t.Label != "" {
		return t.Label
	}
	return t.Caption
}

// A Figure is a chart with a caption. A table next to it has the numbers for people who
// do not see it.
type Figure struct {
	Caption string
	Hint    string // how to read it; may be empty
	Legend  []LegendKey
	Chart   template.HTML
}

// A LegendKey names a shape of a chart, which is drawn around 7, 7.
type LegendKey struct {
	Name  string
	Shape template.HTML
}
