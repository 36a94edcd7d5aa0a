package cli

import (
	"context"
	"time"

	"github.com/ceyewan/genesis/internal/lockreader"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// A lock is what is shown of a key. Its JSON is documented in docs/cli.md.
type lock struct {
	Key     string  `json:"key"`
	Mode    string  `json:"mode,omitempty"`
	Limit   int     `json:"limit,omitempty"` // of permits
	Token   int64   `json:"token,omitempty"` // the greatest token of the holders
	Holders []claim `json:"holders"`
	Waiters *int    `json:"waiters"` // nil where the backend does not know
	Error   string  `json:"error,omitempty"`

	queue []claim
}

// A claim is a holder or a waiter.
type claim struct {
	Mode  string `json:"mode"`
	Limit int    `json:"limit,omitempty"`
	Token int64  `json:"token,omitempty"`
	dlock.Info
	Trace   string   `json:"trace,omitempty"`
	Both    bool     `json:"both,omitempty"` // also on another backend, while a fleet moves there
	Held    *float64 `json:"held_for_seconds,omitempty"`
	Waiting *float64 `json:"waiting_for_seconds,omitempty"`
	Left    *float64 `json:"lease_left_seconds"` // nil without a lease, or if it is not known

	age, left time.Duration
}

// locks are those of a backend.
type locks struct {
	*session
	*lockreader.Reader
	admin *dlock.Admin
}

func (s *session) locks() (*locks, error) {
	a, err := s.admin()
	if err != nil {
		return nil, err
	}
	return &locks{s, lockreader.New(a), a}, nil
}

// read looks at keys, and leaves out those that are free by now.
func (l *locks) read(ctx context.Context, keys []string) ([]lock, error) {
	entries, err := l.Read(ctx, keys)
	if err != nil {
		return nil, backendError(err)
	}
	found := make([]lock, len(entries))
	for i, e := range entries {
		found[i] = l.of(e.Key, e.Claims)
		if e.Err != nil {
			found[i] = lock{Key: e.Key, Holders: []claim{}, Error: e.Err.Error()}
		}
	}
	return found, nil
}

func (l *locks) of(key string, claims []dlock.Claim) lock {
	k := lock{Key: key, Holders: []claim{}, queue: []claim{}}
	for i := range claims {
		c := shown(&claims[i])
		if claims[i].Phase != dlock.PhaseHeld {
			k.queue = append(k.queue, c)
			continue
		}
		k.Holders = append(k.Holders, c)
		k.Mode, k.Limit, k.Token = c.Mode, c.Limit, max(k.Token, c.Token)
	}
	if n := len(k.queue); l.knowsWaiters() {
		k.Waiters = &n
	}
	return k
}

func shown(from *dlock.Claim) claim {
	c := claim{Mode: string(from.Mode), Limit: from.Limit, Token: from.Token, Info: from.Info, Trace: from.Trace, Both: from.Both, age: from.Age, left: from.Remaining}
	if from.Age > 0 || from.Info != (dlock.Info{}) { // of a claim of another library nothing is known
		age := seconds(from.Age)
		c.Held = &age
		if from.Phase != dlock.PhaseHeld {
			c.Held, c.Waiting = nil, &age
		}
	}
	if from.Remaining > 0 {
		left := seconds(from.Remaining)
		c.Left = &left
	}
	return c
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

func (k *lock) isFree() bool { return len(k.Holders) == 0 && len(k.queue) == 0 && k.Error == "" }
