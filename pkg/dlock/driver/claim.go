package driver

import (
	"fmt"
	"log/slog"
	"time"
)

// A Phase is a station in the life of a claim.
type Phase uint8

// The phases, in order. Unknown is no station: the backend did not answer.
const (
	Unknown Phase = iota
	Queued
	Held
	Gone
)

var phaseNames = [...]string{"unknown", "queued", "held", "gone"}

func (p Phase) String() string { return name(phaseNames[:], uint8(p), "Phase") }

// A Mode says who may hold a key together. One strict first-in-first-out rule
// serves all modes: nobody passes the head of the queue, and the head is
// granted when it fits.
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

// Info tells people who holds a key or waits for it.
type Info struct {
	Owner   string `json:"owner,omitempty"`
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Purpose string `json:"purpose,omitempty"`
	// Trace is the W3C traceparent of the acquisition, if it is traced.
	Trace string `json:"trace,omitempty"`
}

// A Claim is what Inspect shows of a claim. Its ID is left out of JSON and of
// logs, since it is the right to release.
type Claim struct {
	ID    string `json:"-"`
	Phase Phase  `json:"-"`
	Mode  Mode   `json:"-"`
	Limit int    `json:"limit,omitempty"`
	Token int64  `json:"token,omitempty"`
	// LastToken is the last of the tokens that the grant reserved, 0 if that is Token.
	LastToken int64 `json:"last_token,omitempty"`
	Info      Info  `json:"info"`
	// Age is how long the claim has been held, or queued if it is queued.
	Age time.Duration `json:"age"`
	// Left is the time until the claim's deadline, 0 without a lease.
	Left time.Duration `json:"left"`
}

// LogValue leaves out the ID.
func (c Claim) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("phase", c.Phase.String()),
		slog.String("mode", c.Mode.String()),
		slog.Int64("fence", c.Token),
		slog.String("owner", c.Info.Owner),
		slog.String("host", c.Info.Host),
		slog.Int("pid", c.Info.PID),
	)
}

// String leaves out the ID.
func (c Claim) String() string {
	return fmt.Sprintf("%s %s fence %d by %s@%s pid %d", c.Phase, c.Mode, c.Token, c.Info.Owner, c.Info.Host, c.Info.PID)
}

// A Level ranks a Finding.
type Level uint8

// The levels: good as it is, worth a look, unsafe for locks.
const (
	OK Level = iota
	Warning
	Unsafe
)

var levelNames = [...]string{"ok", "warning", "unsafe"}

func (l Level) String() string { return name(levelNames[:], uint8(l), "Level") }

// A Finding is the judgement of one setting.
type Finding struct {
	Level Level
	// Name is a stable identifier such as "eviction-policy".
	Name string
	// Detail says what was found, Cure what to do about it.
	Detail, Cure string
}
