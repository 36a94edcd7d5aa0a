package oracle

import (
	"fmt"
	"time"
)

// Server is the worker of stalls in which a server was not run.
const Server = "server"

// A Sight is a claim that was stored a second after a fault had been healed, at some
// time from Before to After.
type Sight struct {
	Before, After int64
	Key           string
	PID           int
	Phase         string
	Left          time.Duration
}

// Settle is how soon after a call returned, and the last fault was healed or a Client
// closed, nothing of it may be left that it did not grant.
const Settle = time.Second

// lingering finds claims of which no call knows: all calls of their process on that
// key had returned, and what was held released, a second before.
func (e *Evidence) lingering(sections []*Section) (found []Violation) {
	pids, dead := map[string]int{}, map[int]int64{}
	for _, ev := range e.Events {
		pids[ev.Worker] = ev.PID
	}
	for _, f := range e.Faults {
		if f.Kind.Kills() {
			dead[pids[f.Worker]] = f.From
		}
	}
	for _, s := range e.Sights {
		if at, killed := dead[s.PID]; (killed && at <= s.After) || s.Left <= 0 || known(sections, pids, s) {
			continue
		}
		found = append(found, Violation{
			Oracle: "lingering", Key: s.Key, From: s.Before - int64(Settle), To: s.After,
			Detail: fmt.Sprintf("a %s claim of process %d, which has no call on this key any more, is left for %v", s.Phase, s.PID, s.Left),
		})
	}
	return found
}

// known says whether a process had, or has just had, a call on the key of a sight.
func known(sections []*Section, pids map[string]int, s Sight) bool {
	for _, one := range sections {
		if one.Key != s.Key || pids[one.Worker] != s.PID || one.Call > s.After {
			continue
		}
		end := one.Released
		if one.Failed != "" {
			end = one.Exit
		}
		if end == 0 || end+int64(Settle) >= s.Before {
			return true
		}
	}
	return false
}
