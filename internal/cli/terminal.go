package cli

import (
	"io"
	"os"

	"golang.org/x/term"
)

// isTerminal reports whether what is written there goes to a screen.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
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
