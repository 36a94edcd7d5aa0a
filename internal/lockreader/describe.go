package lockreader

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// Escape returns s with everything that cannot be seen as an escape sequence. Keys and owners come
// from a store in which others may write too, and could otherwise control a terminal.
func Escape(s string) string {
	if !strings.ContainsFunc(s, Hidden) {
		return s
	}
	quoted := strconv.Quote(s)
	return quoted[1 : len(quoted)-1]
}

// Hidden reports whether r cannot be seen.
func Hidden(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }

// Describe returns a holder or a waiter for people, not escaped: ann@web-1 pid 311 (make).
func Describe(i dlock.Info) string {
	who := i.Owner
	if i.Host != "" {
		who = strings.TrimPrefix(who+"@"+i.Host, "@")
	}
	if i.PID != 0 {
		who += fmt.Sprintf(" pid %d", i.PID)
	}
	if i.Purpose != "" {
		who += " (" + i.Purpose + ")"
	}
	if who == "" {
		return "an unnamed owner"
	}
	return who
}
