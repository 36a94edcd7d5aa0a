package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"

	"github.com/ceyewan/genesis/internal/lockreader"
)

// Keys and owners come from a store in which others may write too. What is not to be
// seen could steer the terminal of whoever looks, so it is shown as an escape.

// safe is s for a terminal and for a line of a table.
func safe(s string) string { return lockreader.Escape(s) }

// writeJSON writes v as one line, which no terminal takes for more than text.
func writeJSON(out io.Writer, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, r := range string(raw) { // what is hidden can only be inside of a string
		if !lockreader.Hidden(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return written(io.WriteString(out, b.String()+"\n"))
}

// written gives an error of writing its code.
func written(_ int, err error) error {
	if err != nil {
		return &exit{ExitOutput, err}
	}
	return nil
}
