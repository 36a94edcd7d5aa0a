package hazardtest

import (
	"strconv"
	"strings"
	"sync"
	"time"
)

// ScriptTimes are when scripts were last called for locks in Redis, which their leases count
// from.
type ScriptTimes struct {
	mu      sync.Mutex
	sent    map[string]time.Time
	ignored bool
}

// Record takes down that a script is called now. The command names locks, and keys that belong
// to them.
func (s *ScriptTimes) Record(cmd []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ignored {
		return
	}
	if s.sent == nil {
		s.sent = map[string]time.Time{}
	}
	n, _ := strconv.Atoi(cmd[2])
	for _, key := range cmd[3 : 3+min(n, len(cmd)-3)] {
		if !strings.Contains(key, "\x01") {
			s.sent[key] = time.Now()
		}
	}
}

// Ignore makes Record do nothing. It is called when a link is dead: what came before is recorded, and what comes after does
// not reach a server.
func (s *ScriptTimes) Ignore(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ignored = on
}

// Last is when a script was last called for a lock.
func (s *ScriptTimes) Last(key string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[key]
}
