package cli

import "os"

// A style is how something is shown on a terminal: parameters of its SGR.
type style string

const (
	plain  style = ""
	strong style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// A palette paints, or does not.
type palette bool

// palette is that of an output: colours are for terminals, and for those who have not
// asked for none, as https://no-color.org has it.
func (w *app) palette(out *os.File) palette {
	return palette(w.drawable(out) && w.getenv("NO_COLOR") == "")
}

// drawable reports whether an output is a terminal that can do more than scroll.
func (w *app) drawable(out *os.File) bool {
	return isTerminal(out) && w.getenv("TERM") != "dumb" && w.getenv("TERM") != ""
}

func (p palette) paint(s style, text string) string {
	if !p || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}
