package driver

import (
	"fmt"
	"log/slog"
	"time"
)

// A Phase is a stage in the lifetime of a claim.
type Phase uint8

// The phases, in order. Unknown is not a stage: it means that the backend did not answer.
const (
	Unknown Phase = iota
	Queued
	Held
	Gone
)

var phaseNames = [...]string{"unknown", "queued", "held", "gone"}

func (p Phase) String() string { return name(phaseNames[:], uint8(p), "Phase") }

// A Mode says which claims may hold a key together. One strict first-in-first-out rule covers all
// modes: no claim passes the head of the queue, and the head is granted as soon as it fits.
type Mode uint8

// The modes.
const (
	// Exclusive fits when there is no holder.
	Exclusive Mode = iota
	// Shared fits when every holder is Shared.
	Shared
	// Permit fits when every holder is a Permit of the same Limit and there
	// are fewer than Limit of them.
	Permit
)

var modeNames = [...]string{"exclusive", "shared", "permit"}

func (m Mode) String() string { return name(modeNames[:], uint8(m), "Mode") }

func name(names []string, i uint8, kind string) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}

// Info describes a holder or a waiter to people.
type Info struct {
	Owner   string `json:"owner,omitempty"`
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Purpose string `json:"purpose,omitempty"`
	// Trace is the W3C traceparent of the acquisition, if it is traced.
	Trace string `json:"trace,omitempty"`
	// Both: the claim is one of two, on two backends, of a fleet that moves from one to the other.
	Both bool `json:"both,omitempty"`
}

// A Claim is what Inspect returns for one claim. JSON and logs omit its ID, because the ID is the
// right to release.
type Claim struct {
	ID    string `json:"-"`
	Phase Phase  `json:"-"`
	Mode  Mode   `json:"-"`
	Limit int    `json:"limit,omitempty"`
	Token int64  `json:"token,omitempty"`
	// LastToken is the last token that the grant reserved, or 0 if the grant reserved only Token.
	LastToken int64 `json:"last_token,omitempty"`
	Info      Info  `json:"info"`
	// Age is how long the claim has been held, or how long it has been queued if it is queued. A backend that does
	// not know when it was granted counts from when it was submitted.
	Age time.Duration `json:"age"`
	// Remaining is the time until the claim's deadline, or 0 if the backend has no lease.
	Remaining time.Duration `json:"remaining"`
}

// LogValue implements slog.LogValuer. It omits the ID.
func (c Claim) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("phase", c.Phase.String()),
		slog.String("mode", c.Mode.String()),
		slog.Int64("token", c.Token),
		slog.String("owner", c.Info.Owner),
		slog.String("host", c.Info.Host),
		slog.Int("pid", c.Info.PID),
	)
}

// String omits the ID.
func (c Claim) String() string {
	return fmt.Sprintf("%s %s token %d by %s@%s pid %d", c.Phase, c.Mode, c.Token, c.Info.Owner, c.Info.Host, c.Info.PID)
}

// A Level is the severity of a Finding.
type Level uint8

// The levels: OK needs no change, Warning deserves a look, Unsafe endangers locks.
const (
	OK Level = iota
	Warning
	Unsafe
)

var levelNames = [...]string{"ok", "warning", "unsafe"}

func (l Level) String() string { return name(levelNames[:], uint8(l), "Level") }

// A Finding is the result of checking one setting.
type Finding struct {
	Level Level
	// Name is a stable identifier such as "eviction-policy".
	Name string
	// Detail says what was found, Fix what to do about it.
	Detail, Fix string
}
