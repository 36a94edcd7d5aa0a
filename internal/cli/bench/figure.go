package bench

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A figure is one line of a table.
type figure struct {
	name   string
	of     func(*Result) *Spread
	format func(v, like float64) string // like chooses the unit and the decimals
	unit   func(like float64) string
}

var figures = []figure{
	{"acquisitions/s", func(r *Result) *Spread { return r.Rate }, count, none},
	{"wait, mean", func(r *Result) *Spread { return r.Mean }, inUnit, unitOf},
	{"wait, P70", func(r *Result) *Spread { return r.P70 }, inUnit, unitOf},
	{"wait, P90", func(r *Result) *Spread { return r.P90 }, inUnit, unitOf},
	{"wait, P99", func(r *Result) *Spread { return r.P99 }, inUnit, unitOf},
	{"wait, longest", func(r *Result) *Spread { return r.Max }, inUnit, unitOf},
	{"wait, P99 by time", func(r *Result) *Spread { return r.P99Time }, inUnit, unitOf},
	{"fairness", func(r *Result) *Spread { return r.Fairness }, ratio, none},
	{"commands/acquisition", func(r *Result) *Spread { return r.Commands }, ratio, none},
	{"client CPU/acquisition", func(r *Result) *Spread { return r.CPU }, inUnit, unitOf},
}

// cell is a median with its spread: 1.20 ms (1.10–1.35), or 5.05 µs (3.88 µs–1.10 ms)
// where one unit does not fit all.
func (f *figure) cell(r *Result) string {
	s := f.of(r)
	if s == nil {
		return "n/a"
	}
	show := func(v float64) string { return f.format(v, s.Median) }
	if f.unit(s.Min) != f.unit(s.Max) {
		show = func(v float64) string { return f.format(v, v) + f.unit(v) }
	}
	return fmt.Sprintf("%s%s (%s–%s)", f.format(s.Median, s.Median), f.unit(s.Median), show(s.Min), show(s.Max))
}

func none(float64) string { return "" }

func ratio(v, _ float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// count is a number in groups of three: 12,345.
func count(v, like float64) string {
	if like < 100 && like != math.Trunc(like) {
		return digits(v, like)
	}
	text := strconv.FormatInt(int64(math.Round(v)), 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// digits shows v with the decimals that give like three figures.
func digits(v, like float64) string {
	decimals := 2
	if like >= 10 {
		decimals = 1
	}
	if like >= 100 {
		decimals = 0
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

var timeUnits = []struct {
	name string
	size float64
}{{"s", 1}, {"ms", 1e-3}, {"µs", 1e-6}}

func unit(seconds float64) (name string, size float64) {
	for _, u := range timeUnits {
		if name, size = u.name, u.size; seconds >= u.size {
			break
		}
	}
	return name, size
}

func unitOf(like float64) string {
	name, _ := unit(like)
	return " " + name
}

func inUnit(v, like float64) string {
	_, size := unit(like)
	return digits(v/size, like/size)
}

// Seconds is a time for people: 1.20 ms.
func Seconds(v float64) string { return inUnit(v, v) + unitOf(v) }

// Count is a number for people: 12,345.
func Count(v float64) string { return count(v, v) }

// SectionName is a section for people.
func SectionName(d time.Duration) string {
	if d == 0 {
		return "empty section"
	}
	return "section of " + d.String()
}

func (r *Result) sectionName() string {
	return SectionName(time.Duration(math.Round(r.Section * float64(time.Second))))
}

// ClientsName is a number of clients for people.
func ClientsName(n int) string {
	if n == 1 {
		return "1 client"
	}
	return strconv.Itoa(n) + " clients"
}

// verdict says what became of mutual exclusion.
func (e *Exclusion) verdict() string {
	if e.Held {
		return fmt.Sprintf("Mutual exclusion held: %s acquisitions, no overlap, every token above the last.", Count(float64(e.Acquisitions)))
	}
	var found []string
	for _, f := range []struct {
		n    int64
		what string
	}{
		{e.Overlaps, "two clients were inside at once %s"},
		{e.OutOfOrder, "a token was not above the last %s"},
		{e.Losses, "a holder lost the lock %s"},
	} {
		if f.n > 0 {
			found = append(found, fmt.Sprintf(f.what, times(f.n)))
		}
	}
	return "Mutual exclusion FAILED: " + strings.Join(found, "; ") + "."
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return Count(float64(n)) + " times"
}

// Method says how it was measured, for whoever reads the figures.
var Method = []string{
	"Some clients fight for one key. Each asks for it, waits, holds it for the length of the section, gives it back and asks again at once. " +
		"They are separate clients with connections of their own, in one process. For the server they look like as many processes; " +
		"the CPU of this host is shared by all of them.",
	"A wait lasts from asking to holding. Percentiles count every acquisition once. Waits that are still open when a round ends are counted as well, " +
		"with their length so far, so that a client that starves is not hidden.",
	"Where a few clients go round fast and others starve, there are many short waits and few long ones, and percentiles look good. " +
		"P99 by time weighs each wait by its length: 99 % of all the time that was waited went into waits that were not longer. " +
		"The longest wait and the fairness tell the same story.",
	"Fairness is the smallest number of acquisitions of a client to the largest, in one round; 1 is even.",
	"Rounds of all experiments take turns. Shown is the median of the rounds (smallest–largest).",
	"Commands are those that the clients have sent to Redis, without what scripts do inside the server; n/a elsewhere. " +
		"Client CPU is what this process used, its own bookkeeping included; the server's is not in it.",
	"During the whole run every holder looks whether somebody else is inside, and whether its fencing token is above the last.",
}
