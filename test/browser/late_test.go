package browser

import (
	"fmt"
	"testing"
)

// A source that is read seldom, because a reading takes long, is not late.
func TestLateSources(t *testing.T) {
	p := openTab(t, light, inMemory(t).server.URL)
	p.await("an empty list", noLocks) // and the interval, which is half a second
	for _, c := range []struct {
		round, age int
		late       bool
	}{{10, 4000, false}, {10, 6000, true}, {3000, 15000, false}, {3000, 19000, true}} {
		got := eval[bool](p, fmt.Sprintf(`import("./health.js").then((m) => m.isLate({ at: 1, round_ms: %d }, 1 + %d))`, c.round, c.age))
		if got != c.late {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
