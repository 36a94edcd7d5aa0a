// Package stats has the statistics of all benchmarks, reports and tests, so that a
// percentile means the same in each of them.
package stats

import (
	"cmp"
	"math"
	"slices"
)

// Percentile is the smallest value that at least p percent of all values do not exceed:
// the nearest-rank definition, which never invents a value between two others. The
// values are sorted. It is the first value for p = 0 and zero if there are none.
func Percentile[T cmp.Ordered](sorted []T, p float64) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	// The product comes first: it is exact for whole percents, so that p99 of 100
	// values is the 99th and not, by a rounding error, the 100th.
	rank := int(math.Ceil(p * float64(len(sorted)) / 100))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// A Number is a value that can be added up, time.Duration included.
type Number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// PercentileByTime weighs each time by its own length: it is the smallest value for
// which the values up to it make up p percent of the sum. Counting waits instead would
// favor a lock that serves a few clients often and starves the others. The values are
// sorted and not negative. It is zero if there are none.
func PercentileByTime[T Number](sorted []T, p float64) T {
	total := 0.0
	for _, v := range sorted {
		total += float64(v)
	}
	sum := 0.0
	for _, v := range sorted {
		sum += float64(v)
		if sum*100 >= p*total {
			return v
		}
	}
	return Percentile(sorted, 100) // nothing, or a rounding error at p = 100
}

// A Range is the median of some values, with the smallest, the largest and how many
// there are. The values are those of rounds.
type Range struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"rounds"`
}

// RangeOf is the zero Range for no values. The median of an even number of values is the
// mean of the two in the middle. The order of values does not matter and is kept.
func RangeOf(values []float64) Range {
	n := len(values)
	if n == 0 {
		return Range{}
	}
	v := slices.Sorted(slices.Values(values))
	return Range{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1], N: n}
}

// Fairness is the smallest share to the largest, of all rounds together; each round has
// the shares of the same clients. It is 1 if all shares are equal, and 0 if one client
// got nothing or if there are no shares.
func Fairness(rounds ...[]int) float64 {
	var sums []int
	for _, shares := range rounds {
		sums = append(sums, make([]int, max(len(shares)-len(sums), 0))...)
		for i, n := range shares {
			sums[i] += n
		}
	}
	if len(sums) == 0 {
		return 0
	}
	return float64(slices.Min(sums)) / float64(max(slices.Max(sums), 1))
}
