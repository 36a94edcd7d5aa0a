// Package event is the log of a trial: what workers and the lab did, and when, on
// the clock that they share.
package event

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/ceyewan/genesis/lab/internal/mono"
)

// A Kind says what happened.
type Kind string

// What workers log. An attempt is one call for a lock and all that follows from it.
const (
	Start    Kind = "start"    // the process is ready
	Call     Kind = "call"     // Verb is about to be called, with Dur of patience, as Plan says
	Granted  Kind = "granted"  // a call of the backend, sent Dur before, returned with the lock
	Enter    Kind = "enter"    // the call returned with the lock; the section begins
	Failed   Kind = "failed"   // it returned an error, in Note
	Exit     Kind = "exit"     // the section is over; Note is Done or Lost, which was learned Dur before
	Released Kind = "released" // Unlock, or Do, returned, Dur after the lock was to be released; Note is its error
	Again    Kind = "again"    // a call inside the section for the same key returned after Dur; Note is its error
	Extended Kind = "extended" // Extend was called at At for a lease of Dur; Note is its error
	Leased   Kind = "leased"   // the ID of the lock's own lease was asked for; Note is the error
	Stall    Kind = "stall"    // the process was not scheduled for Dur, until At
	Stop     Kind = "stop"     // the last Client was closed, which took Dur; Note is the error of Close
	// Ending: the process has been told to end, and is still run; logged every EndingEvery.
	Ending Kind = "ending"
	// Closed: a Client that another has replaced was closed, which took Dur until At; Note
	// is the error of Close.
	Closed Kind = "closed"
	Logged Kind = "logged" // the library logged a warning or an error, in Note
	// Ambiguous: a call of the backend, in Note, ended without an answer.
	Ambiguous Kind = "ambiguous"
)

// What the lab logs.
const (
	Fault Kind = "fault" // Note says which; Worker is set if it struck a process
	Heal  Kind = "heal"
)

// The notes of Exit.
const (
	Done   = "done"
	Lost   = "lost"
	Parted = "parted" // the process itself closed the Client meanwhile
)

// Withdrawn is the note of Failed for a key of several that its call gave up because it did not get
// another one of them.
const Withdrawn = "withdrawn"

// A Plan is what a call for a lock asks for besides the key: how the lock may end, and who
// may hold it at the same time.
type Plan struct {
	Lease   int64  `json:"lease"`
	MinHold int64  `json:"min_hold,omitempty"`
	MaxHold int64  `json:"max_hold,omitempty"`
	Fixed   bool   `json:"fixed,omitempty"`    // WithoutRenewal
	Leave   bool   `json:"leave,omitempty"`    // left to its lease, and not released
	Async   bool   `json:"async,omitempty"`    // WithAsyncUnlock
	Margin  int64  `json:"margin,omitempty"`   // WithMargin
	Mode    string `json:"mode,omitempty"`     // "": exclusive
	Limit   int    `json:"limit,omitempty"`    // of permits
	HasWait bool   `json:"has_wait,omitempty"` // WithWait
	Wait    int64  `json:"wait,omitempty"`
	// Together is the call, and the purpose of its claims, if the key is one of several that one call asks
	// for. Each of them is an attempt of its own.
	Together string `json:"together,omitempty"`
}

// An Event is one line of the log.
type Event struct {
	At      int64  `json:"at"`
	Kind    Kind   `json:"kind"`
	Worker  string `json:"worker,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Key     string `json:"key,omitempty"`
	Attempt string `json:"attempt,omitempty"`
	Fence   int64  `json:"fence,omitempty"`
	Dur     int64  `json:"dur,omitempty"`
	Note    string `json:"note,omitempty"`
	Verb    string `json:"verb,omitempty"`
	Plan    *Plan  `json:"plan,omitempty"`
}

// A Log is a file to which several processes append.
type Log struct {
	file   *os.File
	worker string
	pid    int
}

// Open opens the log for appending on behalf of worker.
func Open(path, worker string) (*Log, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &Log{file: f, worker: worker, pid: os.Getpid()}, nil
}

// Add writes one event, stamped now if it has no time. One write is one line, which
// the kernel does not mix with those of others.
func (l *Log) Add(e Event) {
	if e.At == 0 {
		e.At = mono.Now()
	}
	if e.Worker == "" {
		e.Worker = l.worker
	}
	if e.PID == 0 {
		e.PID = l.pid
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("lab: the log of events: %v", err)) // a trial without its log proves nothing
	}
}

// Write adds a line that the library has logged.
func (l *Log) Write(line []byte) (int, error) {
	l.Add(Event{Kind: Logged, Note: string(bytes.TrimSpace(line))})
	return len(line), nil
}

// Close closes the file.
func (l *Log) Close() error { return l.file.Close() }

// Read returns all events of a log in the order of their times. The last line of
// a process that was killed may be torn; only such a line may be.
func Read(path string) ([]Event, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []Event
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 1<<20)
	torn := 0
	for lines.Scan() {
		var e Event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			torn++
			continue
		}
		all = append(all, e)
	}
	if torn > 16 {
		return nil, fmt.Errorf("%d torn lines in the log of events", torn)
	}
	slices.SortStableFunc(all, func(a, b Event) int { return int(min(max(a.At-b.At, -1), 1)) })
	return all, lines.Err()
}
