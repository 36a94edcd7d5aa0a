package cli

import (
	"io"
	"strings"
	"unicode"

	unicodewidth "golang.org/x/text/width"
)

// A table is written a page at a time: what is wider on a later page widens the
// columns from there.
type table struct {
	palette palette
	columns []column
	width   int // of the terminal; 0: nothing is cut
	widths  []int
	headed  bool
	hides   bool // the last columns, if there is no room for them even so
	hidden  int  // how many
}

// A column may give up width if the terminal has too little of it.
type column struct {
	name   string
	right  bool                         // aligned
	shrink func(s string, n int) string // nil: never
}

type cell struct {
	text  string
	style style
}

const (
	gap        = 2
	leastWidth = 8 // of a column that gives up width
)

// write writes rows, after the names of the columns if they are the first.
func (t *table) write(out io.Writer, rows [][]cell) error {
	t.fit(rows)
	var b strings.Builder
	if !t.headed {
		t.headed = true
		t.line(&b, t.head())
	}
	for _, r := range rows {
		t.line(&b, r)
	}
	return written(io.WriteString(out, b.String()))
}

func (t *table) head() []cell {
	names := make([]cell, len(t.columns))
	for i, c := range t.columns {
		names[i] = cell{c.name, strong}
	}
	return names
}

// fit makes room for rows, and takes it from the widest that can give.
func (t *table) fit(rows [][]cell) {
	if t.widths == nil {
		t.widths = make([]int, len(t.columns))
	}
	for _, r := range append([][]cell{t.head()}, rows...) {
		for i, c := range r {
			t.widths[i] = max(t.widths[i], columnsOf(c.text))
		}
	}
	for t.width > 0 && t.total() > t.width {
		i := t.widest()
		if i < 0 && t.hides && t.shown() > 1 {
			t.hidden++
			t.widths = nil
			t.fit(rows)
			return
		}
		if i < 0 {
			return
		}
		t.widths[i] -= min(t.total()-t.width, t.widths[i]-leastWidth, max(1, t.widths[i]/8))
	}
}

func (t *table) total() int {
	n := -gap
	for _, w := range t.widths[:t.shown()] {
		n += w + gap
	}
	return n
}

// shown is how many columns are shown.
func (t *table) shown() int { return len(t.columns) - t.hidden }

func (t *table) widest() int {
	found := -1
	for i, c := range t.columns[:t.shown()] {
		if c.shrink != nil && t.widths[i] > leastWidth && (found < 0 || t.widths[i] > t.widths[found]) {
			found = i
		}
	}
	return found
}

func (t *table) line(b *strings.Builder, r []cell) {
	r = r[:t.shown()]
	for i, c := range r {
		text := c.text
		if shrink := t.columns[i].shrink; shrink != nil && columnsOf(text) > t.widths[i] {
			text = shrink(text, t.widths[i])
		}
		pad := strings.Repeat(" ", max(0, t.widths[i]-columnsOf(text)))
		text = t.palette.paint(c.style, text)
		switch last := i == len(r)-1; {
		case t.columns[i].right:
			text = pad + text
		case !last:
			text += pad
		}
		if i > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		b.WriteString(text)
	}
	b.WriteByte('\n')
}

const ellipsis = "…"

// cutEnd keeps the beginning of s, in n columns.
func cutEnd(s string, n int) string {
	if columnsOf(s) <= n {
		return s
	}
	return first(s, n-1) + ellipsis
}

// cutMiddle keeps both ends: keys often differ in the last part only.
func cutMiddle(s string, n int) string {
	if columnsOf(s) <= n {
		return s
	}
	tail := []rune(s)
	for columnsOf(string(tail)) > n/2 {
		tail = tail[1:]
	}
	return first(s, n-1-columnsOf(string(tail))) + ellipsis + string(tail)
}

// first is as much of s as fits into n columns.
func first(s string, n int) string {
	for i, r := range s {
		n -= columnsOf(string(r))
		if n < 0 {
			return s[:i]
		}
	}
	return s
}

// columnsOf is how wide a terminal shows s.
func columnsOf(s string) int {
	n := 0
	for _, r := range s {
		switch kind := unicodewidth.LookupRune(r).Kind(); {
		case unicode.In(r, unicode.Mn, unicode.Me): // drawn over the rune before
		case kind == unicodewidth.EastAsianWide || kind == unicodewidth.EastAsianFullwidth:
			n += 2
		default:
			n++
		}
	}
	return n
}
