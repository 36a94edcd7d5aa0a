package cli

import (
	"math"
	"strings"
	"testing"
)

// Lines break between words, keep their indent, and fit, unless one word does not.
func TestWrap(t *testing.T) {
	const text = "a server that restarts forgets its locks"
	for columns, want := range map[int]string{
		math.MaxInt: text,
		20:          "a server that\n    restarts forgets\n    its locks",
		8:           "a\n    server\n    that\n    restarts\n    forgets\n    its\n    locks",
	} {
		if got := wrap(text, 4, columns); got != want {
			t.Errorf("%d columns:\n%s", columns, got)
		}
	}
	for columns := 12; columns < 60; columns++ {
		for line := range strings.SplitSeq(strings.Repeat(" ", 4)+wrap(text, 4, columns), "\n") {
			if columnsOf(line) > columns {
				t.Errorf("%d columns: %q", columns, line)
			}
		}
	}
	if wrap("", 2, 10) != "" {
		t.Error("nothing has become something")
	}
}
