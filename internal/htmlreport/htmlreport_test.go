package htmlreport_test

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/htmlreport"
)

const hostile = `</title><script>alert("1")</script>&'`

// Whatever the data is, a page is well-formed, and nothing in it becomes markup.
func TestDataIsEscaped(t *testing.T) {
	chart := htmlreport.Draw(hostile, 10, 10, func(d *htmlreport.Drawing) {
		d.Line(hostile, 1, 2, 3, 4, hostile)
		d.Rect(hostile, 1, 2, 3, -4, hostile)
		d.Path(hostile, hostile, 1, 2, hostile)
		d.Text(hostile, htmlreport.Middle, 1, 2, hostile)
	})
	data := struct {
		Table  *htmlreport.Table
		Figure htmlreport.Figure
	}{
		&htmlreport.Table{
			Label: hostile, Caption: hostile, Columns: []string{hostile, "b"},
			Rows: [][]htmlreport.Cell{htmlreport.Cells(hostile, hostile), {{Text: "a", Class: hostile}, {Text: hostile, Class: hostile, Span: 2}}},
		},
		htmlreport.Figure{Caption: hostile, Hint: hostile, Chart: chart, Legend: []htmlreport.LegendKey{{Name: hostile, Shape: "<b/>"}}},
	}
	page, err := htmlreport.New(`{{template "table" .Table}}{{template "figure" .Figure}}`, "b { color: red; }").String(hostile, data)
	if err != nil {
		t.Fatal(err)
	}
	seen := elements(t, page)
	for _, name := range []string{"html", "table", "caption", "figure", "b", "line", "rect", "path", "text"} {
		if seen[name] != 1 {
			t.Errorf("%d elements %q in %s", seen[name], name, page)
		}
	}
	if seen["script"] != 0 || seen["svg"] != 2 || seen["tr"] != 3 || !strings.Contains(page, "b { color: red; }") {
		t.Errorf("%v in %s", seen, page)
	}
}

func elements(t *testing.T, page string) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(page)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return seen
		}
		if err != nil {
			t.Fatalf("not well-formed: %v in %s", err, page)
		}
		if e, ok := token.(xml.StartElement); ok {
			seen[e.Name.Local]++
		}
	}
}

func TestWriteReportsErrors(t *testing.T) {
	if _, err := htmlreport.New("{{.Missing}}", "").String("title", struct{}{}); err == nil {
		t.Error("a field that does not exist")
	}
}

// Every value is inside of the axis, and there are a few ticks.
func TestScales(t *testing.T) {
	for _, most := range []float64{0, 1e-9, 0.3, 1, 1.5625, 12.6, 50, 99, 100, 101, 123456, 1e9} {
		s := htmlreport.Linear(most)
		if n := len(s.Ticks); n < 3 || n > 7 || s.High < most || s.Part(0) != 0 || s.Part(s.High) != 1 || s.Part(2*s.High) != 1 {
			t.Errorf("%v: %+v", most, s)
		}
	}
	for _, c := range [][2]float64{{0, 0}, {0, 5}, {1e-6, 1e-6}, {2e-6, 0.3}, {1e-3, 1}} {
		s := htmlreport.Decades(c[0], c[1])
		part := s.Part(c[1])
		if n := len(s.Ticks); n < 2 || n > 10 || math.IsNaN(part) || part < 0 || part > 1 || s.High < c[1] {
			t.Errorf("%v: %+v", c, s)
		}
	}
}
