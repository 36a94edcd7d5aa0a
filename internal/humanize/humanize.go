// Package humanize writes measured numbers for people, in the same way on terminals, in
// Markdown and in HTML.
package humanize

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/ceyewan/genesis/internal/stats"
)

// A Unit says how a value is written.
type Unit int

// The units.
const (
	Number  Unit = iota // 12,345 or 1.23
	Time                // of seconds: 1.20 ms
	Ratio               // 0.98
	Factor              // 0.98 ×
	Percent             // 12.30 %
	Bytes               // 12,345 B
)

// Format writes a value with its unit.
func (u Unit) Format(v float64) string { return u.digits(v, v) + u.suffix(v) }

// FormatRange writes a median with its range: 1.20 ms (1.10–1.35), or
// 5.05 µs (3.88 µs–1.10 ms) where one unit does not fit all. It is only the median if
// there is one value, and none if there is no value.
func (u Unit) FormatRange(r stats.Range, none string) string {
	switch r.N {
	case 0:
		return none
	case 1:
		return u.Format(r.Median)
	}
	show := func(v float64) string { return u.digits(v, r.Median) }
	if u.suffix(r.Min) != u.suffix(r.Max) {
		show = u.Format
	}
	return fmt.Sprintf("%s (%s–%s)", u.Format(r.Median), show(r.Min), show(r.Max))
}

// digits writes v without its unit, in the unit that suits like.
func (u Unit) digits(v, like float64) string {
	switch u {
	case Time:
		_, size := timeUnit(like)
		return threeFigures(v / size)
	case Ratio, Factor, Percent:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return grouped(v, like)
	}
}

func (u Unit) suffix(like float64) string {
	switch u {
	case Time:
		name, _ := timeUnit(like)
		return " " + name
	case Factor:
		return " ×"
	case Percent:
		return " %"
	case Bytes:
		return " B"
	default:
		return ""
	}
}

// Seconds writes a time: 1.20 ms.
func Seconds(v float64) string { return Time.Format(v) }

// Count writes a number: 12,345.
func Count(v float64) string { return Number.Format(v) }

// grouped writes a number in groups of three digits: 12,345.
func grouped(v, like float64) string {
	if like < 100 && like != math.Trunc(like) {
		return threeFigures(v)
	}
	text := strconv.FormatInt(int64(math.Round(v)), 10)
	first := 0
	if v < 0 {
		first = 1 // no comma follows the sign
	}
	for i := len(text) - 3; i > first; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// threeFigures writes v with at most two decimals.
func threeFigures(v float64) string {
	decimals := 2
	if v >= 10 {
		decimals = 1
	}
	if v >= 100 {
		decimals = 0
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

func timeUnit(seconds float64) (name string, size float64) {
	switch {
	case seconds >= 1:
		return "s", 1
	case seconds >= 1e-3:
		return "ms", 1e-3
	}
	return "µs", 1e-6
}

// TimeTick writes a power of ten of a second, for an axis: 10 µs.
func TimeTick(v float64) string {
	name, size := timeUnit(v * 1.001) // powers of ten are not exact
	return strconv.FormatFloat(v/size, 'g', 3, 64) + " " + name
}

// CountTick writes a number for an axis: 12k.
func CountTick(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 3, 64) + "M"
	case v >= 1e3:
		return strconv.FormatFloat(v/1e3, 'g', 3, 64) + "k"
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// Capitalize makes the first letter of an ASCII word a capital.
func Capitalize(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
