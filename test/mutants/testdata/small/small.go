// Package small is what the tests of the command mutate.
package small

import "time"

// Limit is the greatest sum.
const Limit = 100

// Add is tested, except at the limit.
func Add(a, b int) int {
	sum := a + b
	if sum > Limit {
		sum = Limit
	}
	return sum
}

// Count hangs if its step is removed, without keeping a processor busy.
func Count(n int) int {
	i := 0
	for i < n {
		step(&i)
		time.Sleep(time.Millisecond)
	}
	return i
}

func step(i *int) { *i++ }

// Untested is called by no test.
func Untested(ok bool) int {
	if ok {
		return 1
	}
	return 2
}

// Double is called by a test that does not look at the result.
func Double(n int) int { return n + n }
