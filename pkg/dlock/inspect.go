package dlock

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/internal/durations"
)

// A Claim is a holder of a lock or a waiter for it, as Admin shows it. In JSON its durations
// are text, such as "1.5s".
type Claim struct {
	Phase Phase `json:"phase"`
	Mode  Mode  `json:"mode"`
	// Limit is how many permits the key has; 0 unless Mode is ModePermit.
	Limit int `json:"limit,omitempty"`
	// Token is the holder's fencing token; 0 for a waiter.
	Token int64 `json:"token,omitempty"`
	// LastToken is the last of the tokens that the holder's process reserved with
	// Config.LocalBatch; 0 if that is Token.
	LastToken int64 `json:"last_token,omitempty"`
	Info      Info  `json:"info"`
	// Trace is the W3C traceparent of the acquisition, if it was traced.
	Trace string `json:"trace,omitempty"`
	// Both: the process holds or waits for the key on another backend as well, as Both does.
	Both bool `json:"both,omitempty"`
	// Age is how long the claim has been held or, for a waiter, how long it has waited. On etcd it always
	// counts from when the claim was submitted, by the clock of its process.
	Age time.Duration `json:"age"`
	// Remaining is how long the claim lasts if its process does not renew it; 0 without a
	// lease.
	Remaining time.Duration `json:"remaining,omitempty"`
}

// A Phase says whether a claim waits or holds.
type Phase string

// The phases.
const (
	PhaseQueued Phase = "queued"
	PhaseHeld   Phase = "held"
)

// A Mode is how a lock is shared.
type Mode string

// The modes: the default, WithShared, WithPermits.
const (
	ModeExclusive Mode = "exclusive"
	ModeShared    Mode = "shared"
	ModePermit    Mode = "permit"
)

// Info describes the holder of a key or a waiter, for people.
type Info struct {
	Owner   string `json:"owner,omitempty"` // the program, unless WithInfo says otherwise
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Purpose string `json:"purpose,omitempty"`
}

// claimOf returns the public part of a claim. The ID is not public: it is the right to release
// the claim.
func claimOf(c *driver.Claim) Claim {
	return Claim{
		Phase: Phase(c.Phase.String()), Mode: Mode(c.Mode.String()), Limit: c.Limit, Token: c.Token, LastToken: c.LastToken,
		Info: Info{c.Info.Owner, c.Info.Host, c.Info.PID, c.Info.Purpose}, Trace: c.Info.Trace, Both: c.Info.Both, Age: c.Age, Remaining: c.Remaining,
	}
}

// MarshalJSON writes durations as text.
func (c Claim) MarshalJSON() ([]byte, error) { return durations.Marshal(c) }

// UnmarshalJSON reads what MarshalJSON writes.
func (c *Claim) UnmarshalJSON(text []byte) error { return durations.Unmarshal(text, c) }

// String returns a short description.
func (c Claim) String() string {
	return fmt.Sprintf("%s %s, token %d, by %s@%s pid %d", c.Phase, c.Mode, c.Token, c.Info.Owner, c.Info.Host, c.Info.PID)
}

// LogValue returns the claim as a group.
func (c Claim) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("phase", string(c.Phase)),
		slog.String("mode", string(c.Mode)),
		slog.Int64("token", c.Token),
		slog.String("owner", c.Info.Owner),
		slog.String("host", c.Info.Host),
		slog.Int("pid", c.Info.PID),
	)
}

// A Finding is the result of Check for one setting.
type Finding struct {
	Level Level `json:"level"`
	// Name is a stable identifier such as "eviction-policy".
	Name string `json:"name"`
	// Detail says what was found, Fix what to do about it.
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

// A Level ranks a Finding.
type Level string

// The levels: no problem, a possible problem, unsafe for locks.
const (
	LevelOK      Level = "ok"
	LevelWarning Level = "warning"
	LevelUnsafe  Level = "unsafe"
)

func findingsOf(findings []driver.Finding) []Finding {
	var all []Finding
	for _, f := range findings {
		all = append(all, Finding{Level(f.Level.String()), f.Name, f.Detail, f.Fix})
	}
	return all
}
