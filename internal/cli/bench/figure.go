package bench

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ceyewan/genesis/internal/humanize"
	"github.com/ceyewan/genesis/internal/stats"
)

// A figure is one line of a table.
type figure struct {
	name string
	of   func(*Result) *stats.Range
	unit humanize.Unit
}

var figures = []figure{
	{"acquisitions/s", func(r *Result) *stats.Range { return r.Rate }, humanize.Number},
	{"wait, mean", func(r *Result) *stats.Range { return r.Mean }, humanize.Time},
	{"wait, P70", func(r *Result) *stats.Range { return r.P70 }, humanize.Time},
	{"wait, P90", func(r *Result) *stats.Range { return r.P90 }, humanize.Time},
	{"wait, P99", func(r *Result) *stats.Range { return r.P99 }, humanize.Time},
	{"wait, longest", func(r *Result) *stats.Range { return r.Max }, humanize.Time},
	{"wait, P99 by time", func(r *Result) *stats.Range { return r.P99Time }, humanize.Time},
	{"fairness", func(r *Result) *stats.Range { return r.Fairness }, humanize.Ratio},
	{"commands/acquisition", func(r *Result) *stats.Range { return r.Commands }, humanize.Ratio},
	{"client CPU/acquisition", func(r *Result) *stats.Range { return r.CPU }, humanize.Time},
}

// cell is a median with its range.
func (f *figure) cell(r *Result) string {
	of := f.of(r)
	if of == nil {
		of = &stats.Range{}
	}
	text := f.unit.FormatRange(*of, "n/a")
	if strings.HasPrefix(f.name, "wait") {
		text = r.atLeast(of.Median) + text
	}
	return text
}

// atLeast is "≥ " for a wait that ended with the round: it would have been longer.
func (r *Result) atLeast(wait float64) string {
	for i := range r.Rounds {
		if wait >= 0.98*r.Rounds[i].Seconds {
			return "≥ "
		}
	}
	return ""
}

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
		return fmt.Sprintf("Mutual exclusion held: %s acquisitions, no overlap, every token above the last.", humanize.Count(float64(e.Acquisitions)))
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
	return humanize.Count(float64(n)) + " times"
}

// Method says how it was measured, for whoever reads the figures.
var Method = []string{
	"Some clients compete for one key. Each asks for it, waits, holds it for the length of the section, gives it back and asks again at once. " +
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
	"During the whole run every holder checks whether another is inside, and whether its fencing token is above the last.",
}
