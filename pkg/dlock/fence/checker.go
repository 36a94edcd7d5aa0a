package fence

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// A Checker refuses a token that is smaller than the greatest it has seen for the resource, with
// ErrStale, and remembers it otherwise.
//
// A check is not a write. If the write comes after the check and is not atomic with it, a holder
// can pause in between, and its write is late. Check again where the data is: SQL.Check, a script
// of redisfence, a transaction of etcdfence.
type Checker interface {
	Check(ctx context.Context, resource string, token int64) error
}

// ErrFull: a Memory knows as many resources as it may, and this is another one.
var ErrFull = errors.New("too many resources")

// Memory is a Checker for one process. Its zero value is ready to use. It forgets everything when
// the process ends, and then accepts any token again; it does not know what another process has
// seen. For a service with several processes, use SQL.Checker.
//
// It never forgets a resource, because that would accept a stale token. Where clients choose the
// names, set Max.
type Memory struct {
	// Max is how many resources it accepts; further ones are refused with ErrFull. 0: any number.
	Max int

	mu   sync.Mutex
	seen map[string]int64
}

// Check refuses a token that is smaller than the greatest it has seen.
func (m *Memory) Check(_ context.Context, resource string, token int64) error {
	err := validate(resource, token)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, known := m.seen[resource]
	switch {
	case seen > token:
		return &StaleError{resource, token, seen}
	case !known && m.Max > 0 && len(m.seen) >= m.Max:
		return fmt.Errorf("fence %q: %w: %d are known", resource, ErrFull, len(m.seen))
	case m.seen == nil:
		m.seen = map[string]int64{}
	}
	m.seen[resource] = token
	return nil
}
