// Package recipes is how package election and package once store what they publish: as the purposes of
// locks, which every backend can list and inspect. The lock page reads them.
package recipes

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

const (
	// Candidate is the purpose of the lock of an election. Its holder leads, and its waiters are candidates.
	Candidate = "leader election"
	// ValueSuffix follows the name of an election in the key of the lock that carries the leader's value.
	ValueSuffix = ":value"
	// RunsSuffix follows the key of a job in the key of the lock whose shared holders are its records.
	RunsSuffix = ":runs"
)

// IsTemporary reports whether another attempt may succeed after err, which is of a Client.
func IsTemporary(err error) bool {
	class := driver.ClassOf(err)
	if class == driver.Fatal || errors.Is(err, driver.ErrClosed) || errors.Is(err, driver.ErrDenied) {
		return false
	}
	return class == driver.Transient ||
		errors.Is(err, driver.ErrUnknownOutcome) || errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrNotReady)
}

// Value returns the purpose of the lock that carries the value of a leader.
func Value(term int64, value string) string { return strconv.FormatInt(term, 10) + " " + value }

// ParseValue reads what Value has written.
func ParseValue(purpose string) (term int64, value string, ok bool) {
	digits, value, found := strings.Cut(purpose, " ")
	term, err := strconv.ParseInt(digits, 10, 64)
	return term, value, found && err == nil && term >= 0
}

// A Result is what became of a run of a job.
type Result struct {
	OK    bool
	Lost  bool // it lost its lock, and so has failed
	Took  time.Duration
	Error string // of a run that failed
}

const (
	okPrefix     = "ok in "
	failedPrefix = "failed in "
	lostPrefix   = "lost in "
)

// String is the purpose of a record: "ok in 3.2s", "failed in 1s: exit status 1" or "lost in 1s: " and why.
func (r Result) String() string {
	switch {
	case r.OK:
		return okPrefix + short(r.Took)
	case r.Lost:
		return lostPrefix + short(r.Took) + ": " + r.Error
	}
	return failedPrefix + short(r.Took) + ": " + r.Error
}

// ParseResult reads what String has written.
func ParseResult(purpose string) (r Result, ok bool) {
	took, ok := strings.CutPrefix(purpose, okPrefix)
	if ok {
		r.OK = true
	} else if took, ok = strings.CutPrefix(purpose, failedPrefix); ok {
		took, r.Error, ok = strings.Cut(took, ": ")
	} else if took, r.Lost = strings.CutPrefix(purpose, lostPrefix); r.Lost {
		took, r.Error, ok = strings.Cut(took, ": ")
	}
	d, err := time.ParseDuration(took)
	r.Took = d
	return r, ok && err == nil
}

// Newest returns runs, which are given in the order of the tokens of their records, the newest first. A run that lost its lock is older
// than those that began later, although it may have ended later. The hosts' clocks decide that, and nothing else: Took is
// rounded, so a second is not enough to tell.
func Newest[R any](byToken []R, isLost func(R) bool, began func(R) time.Time) []R {
	var runs []R
	for _, r := range byToken {
		at := 0
		for isLost(r) && at < len(runs) && began(runs[at]).Sub(began(r)) > time.Second {
			at++
		}
		runs = slices.Insert(runs, at, r)
	}
	return runs
}

// short rounds a duration for people.
func short(d time.Duration) string {
	switch {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(100 * time.Microsecond)
	}
	return d.String()
}
