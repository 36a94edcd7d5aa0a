package bench

import (
	"strings"
	"testing"

	"github.com/ceyewan/genesis/internal/stats"
)

// A wait that lasted as long as the round would have been longer: the figure says so.
func TestWaitThatEndsWithTheRound(t *testing.T) {
	of := func(v float64) *stats.Range { return &stats.Range{Median: v, Min: v, Max: v, N: 1} }
	r := &Result{Clients: 2, Section: 0, Rounds: []Round{{Seconds: 2}}, Mean: of(0.1), P70: of(0.1), P90: of(0.2), P99: of(1.5), Max: of(1.999), Rate: of(2)}
	for i := range figures {
		f := &figures[i]
		if got, want := strings.HasPrefix(f.cell(r), "≥ "), f.name == "wait, longest"; got != want {
			t.Errorf("%s: %s", f.name, f.cell(r))
		}
	}
	if chart := string(waitChart([]Result{*r})); strings.Count(chart, "≥ ") != 1 {
		t.Errorf("%s", chart)
	}
}
