package workload

import "slices"

// byTime is the wait at which the waits up to it make up this share of all the time
// that was waited. Counting waits instead would reward whoever lets a few clients go
// round and the others starve.
func byTime(sorted []float64, share float64) float64 {
	total, sum := 0.0, 0.0
	for _, w := range sorted {
		total += w
	}
	for _, w := range sorted {
		if sum += w; sum >= share*total {
			return w
		}
	}
	return 0
}

// percentile is the smallest value that is not below this share of all.
func percentile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

// A Range is the median of some rounds, with the smallest and the largest.
type Range struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"rounds"`
}

// RangeOf is the zero Range for no values.
func RangeOf(values []float64) Range {
	n := len(values)
	if n == 0 {
		return Range{}
	}
	v := slices.Sorted(slices.Values(values))
	return Range{(v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1], n}
}

// minToMax is how even shares are: 1 is quite.
func minToMax(shares []int) float64 {
	return float64(slices.Min(shares)) / float64(max(slices.Max(shares), 1))
}

// MinToMax is how evenly all rounds together were shared: one round is too short to
// give everybody the same number of turns.
func MinToMax(rounds [][]int) float64 {
	sum := make([]int, len(rounds[0]))
	for _, shares := range rounds {
		for i, n := range shares {
			sum[i] += n
		}
	}
	return minToMax(sum)
}
