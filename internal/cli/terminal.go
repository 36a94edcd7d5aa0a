package cli

import (
	"io"
	"math"
	"os"
	"strings"

	"golang.org/x/term"
)

// isTerminal reports whether what is written there goes to a screen.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// room is how many columns a line may have: any number where there is no terminal.
func room(out io.Writer) int {
	if !isTerminal(out) {
		return math.MaxInt
	}
	return width(out)
}

// wrap breaks a text between words, so that it fits into so many columns behind an indent, which the lines after the
// first get. A word that is too long stays whole.
func wrap(text string, indent, columns int) string {
	var b strings.Builder
	at := indent
	for i, word := range strings.Fields(text) {
		n := columnsOf(word)
		switch {
		case i == 0:
		case at+1+n > columns:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteString(" ")
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// width is how many columns there are.
func width(out io.Writer) int {
	if f, ok := out.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}
