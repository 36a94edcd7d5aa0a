package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// A screen is a terminal that a watch draws on. It has a screen of its own: what was
// there before comes back when it ends.
type screen struct {
	*watch
	out     *os.File
	cooked  *term.State // nil without a keyboard
	palette palette
}

// What terminals understand: their second screen without a cursor and without wrapping
// of lines; and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearToEnd  = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// openScreen takes the terminal, and hears what is typed.
func openScreen(v *watch) (view, <-chan byte, error) {
	s := &screen{watch: v, out: v.stdout, palette: v.palette(v.stdout)}
	var keys chan byte
	if isTerminal(v.stdin) {
		cooked, err := term.MakeRaw(int(v.stdin.Fd()))
		if err != nil {
			return nil, nil, &exit{ExitOutput, err}
		}
		s.cooked, keys = cooked, make(chan byte)
		go hear(v.stdin, keys)
	}
	_, err := io.WriteString(s.out, enterScreen)
	if err != nil {
		s.close()
	}
	return s, keys, written(0, err)
}

// hear ends with the process: no read of a terminal can be called off.
func hear(from io.Reader, keys chan<- byte) {
	key := make([]byte, 1)
	for {
		if n, err := from.Read(key); err != nil || n == 0 {
			keys <- ctrlD // the terminal is gone
			return
		}
		keys <- key[0]
	}
}

const ctrlC, ctrlD = 3, 4

func quits(key byte) bool { return key == 'q' || key == 'Q' || key == ctrlC || key == ctrlD }

func (s *screen) close() {
	_, _ = io.WriteString(s.out, leaveScreen)
	if s.cooked != nil {
		_ = term.Restore(int(s.stdin.Fd()), s.cooked)
	}
}

// above and below are the lines around the table.
const above, below = 3, 1

func (s *screen) rows() int {
	_, height := s.size()
	return max(1, height-above-below)
}

func (s *screen) size() (columns, lines int) {
	columns, lines, err := term.GetSize(int(s.out.Fd()))
	if err != nil || columns < 1 || lines < 1 {
		return 80, 24
	}
	return columns, lines
}

// show draws over what was there, so that nothing flickers.
func (s *screen) show(now snapshot) error {
	var b strings.Builder
	columns, _ := s.size()
	b.WriteString(s.title(now, columns) + "\n\n")
	t := s.lockTable()
	t.hides = true // a screen breaks no lines
	shown := now.locks[:min(len(now.locks), s.rows())]
	if err := t.write(&b, rows(shown)); err != nil {
		return err
	}
	b.WriteString(s.palette.paint(dim, rest(now, len(shown))))
	// A line is cleared before it is written: after the last column, the cursor still
	// stands on it.
	frame := home + clearToEnd + strings.ReplaceAll(b.String(), "\n", "\r\n"+clearToEnd) + clearBelow
	return written(io.WriteString(s.out, frame))
}

// title says what is seen, and whether it is old.
func (s *screen) title(now snapshot, columns int) string {
	what := "all locks"
	if s.prefix != "" {
		what = safe(s.prefix) + "*"
	}
	head := fmt.Sprintf("%s on %s  %s  q ends", what, safe(s.Where), now.at.Format(time.TimeOnly))
	if now.err == nil {
		return s.palette.paint(strong, cutEnd(head, columns))
	}
	return s.palette.paint(red, cutEnd(fmt.Sprintf("%s: %s", now.at.Format(time.TimeOnly), safe(now.err.Error())), columns))
}

// rest is how many there are that are not shown.
func rest(now snapshot, shown int) string {
	left := now.of - shown
	switch {
	case now.more:
		return fmt.Sprintf("and more than %d others", left)
	case len(now.locks) == 0:
		return "nothing is locked"
	case left > 0 && len(now.locks) > shown, left > 0 && now.of > len(now.locks):
		return fmt.Sprintf("and %d more", left)
	}
	return ""
}
