package stats_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/stats"
)

func TestPercentile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, c := range []struct {
		name   string
		sorted []int
		p      float64
		want   int
	}{
		{"empty", nil, 50, 0},
		{"one, lowest", []int{7}, 0, 7},
		{"one", []int{7}, 50, 7},
		{"one, highest", []int{7}, 100, 7},
		{"even number, median", []int{1, 2, 3, 4}, 50, 2},
		{"even number, just above the median", []int{1, 2, 3, 4}, 50.1, 3},
		{"odd number, median", []int{1, 2, 3}, 50, 2},
		{"ties", []int{1, 5, 5, 5, 9}, 50, 5},
		{"ties at the end", []int{1, 5, 5}, 99, 5},
		{"p0", hundred, 0, 1},
		{"p1", hundred, 1, 1},
		{"p70", hundred, 70, 70},
		{"p99", hundred, 99, 99},
		{"p99.9", hundred, 99.9, 100},
		{"p100", hundred, 100, 100},
		{"below 0", hundred, -5, 1},
		{"above 100", hundred, 200, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := stats.Percentile(c.sorted, c.p); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
	if got := stats.Percentile([]time.Duration{time.Second, time.Minute}, 99); got != time.Minute {
		t.Error(got)
	}
	if got := stats.Percentile([]float64{0.5, 1.5}, 50); got != 0.5 {
		t.Error(got)
	}
}

// A whole percent of any number of values has the rank that integers give.
func TestPercentileHasNoRoundingErrors(t *testing.T) {
	var sorted []int
	for n := 1; n <= 1000; n++ {
		sorted = append(sorted, n)
		for p := 1; p <= 100; p++ {
			if got, want := stats.Percentile(sorted, float64(p)), (n*p+99)/100; got != want {
				t.Fatalf("p%d of %d values is the value %d, want %d", p, n, got, want)
			}
		}
	}
}

func TestPercentileByTime(t *testing.T) {
	starving := append(slices.Repeat([]time.Duration{time.Millisecond}, 999), time.Minute)
	for _, c := range []struct {
		name   string
		sorted []time.Duration
		p      float64
		want   time.Duration
	}{
		{"empty", nil, 99, 0},
		{"one", []time.Duration{5}, 99, 5},
		{"only zeros", []time.Duration{0, 0}, 99, 0},
		{"even number", []time.Duration{1, 2, 3, 4}, 50, 3},
		{"odd number", []time.Duration{1, 2, 3}, 50, 2},
		{"exactly the share", []time.Duration{1, 2, 3}, 100. / 6, 1},
		{"ties", []time.Duration{4, 4, 4, 4}, 50, 4},
		{"lowest", []time.Duration{1, 2}, 0, 1},
		{"highest", []time.Duration{1, 2}, 100, 2},
		{"one client starves", starving, 50, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := stats.PercentileByTime(c.sorted, c.p); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
	if got := stats.PercentileByTime([]float64{0.1, 0.2, 0.3}, 100); got != 0.3 {
		t.Error(got)
	}
}

func TestRangeOf(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		want   stats.Range
	}{
		{"empty", nil, stats.Range{}},
		{"one", []float64{3}, stats.Range{Median: 3, Min: 3, Max: 3, N: 1}},
		{"odd", []float64{3, 1, 2}, stats.Range{Median: 2, Min: 1, Max: 3, N: 3}},
		{"even", []float64{4, 1, 2, 3}, stats.Range{Median: 2.5, Min: 1, Max: 4, N: 4}},
		{"ties", []float64{2, 2, 1, 2}, stats.Range{Median: 2, Min: 1, Max: 2, N: 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.values)
			if got := stats.RangeOf(c.values); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if !slices.Equal(c.values, before) {
				t.Errorf("the caller's values are now %v", c.values)
			}
		})
	}
}

func TestFairness(t *testing.T) {
	for _, c := range []struct {
		name   string
		rounds [][]int
		want   float64
	}{
		{"no rounds", nil, 0},
		{"no clients", [][]int{{}}, 0},
		{"one client", [][]int{{4}}, 1},
		{"one client without a turn", [][]int{{0}}, 0},
		{"even", [][]int{{4, 4, 4}}, 1},
		{"uneven", [][]int{{1, 2, 4}}, 0.25},
		{"one client starves", [][]int{{0, 9}}, 0},
		{"two rounds that even out", [][]int{{1, 2}, {2, 1}}, 1},
		{"two rounds", [][]int{{1, 3}, {1, 1}}, 0.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := stats.Fairness(c.rounds...); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
