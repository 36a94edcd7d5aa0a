package oracle

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/watch"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// learnWithin is how soon a holder learns that an operator, or a restart without
// data, took its lock away: one renewal, on a busy machine.
func (e *Evidence) learnWithin() int64 { return int64(e.TTL/3 + 1200*time.Millisecond) }

// lateLosses finds holders that believed in their lock when the server had dropped it:
// by its expiry, at all; taken away by others, for longer than a renewal takes.
func (e *Evidence) lateLosses(sections []*Section) (found []Violation, judged int) {
	byToken := map[token]*Section{}
	for _, s := range sections {
		if s.Enter != 0 {
			byToken[token{s.Key, s.Fence}] = s
		}
	}
	for _, d := range e.Deaths {
		for i := range max(d.Tokens, 1) {
			s := byToken[token{d.Key, d.Fence + i}]
			if s == nil || s.Killed || e.moving(d) {
				continue
			}
			if s.Lost {
				judged++
			}
			found = append(found, e.lateBy(s, d)...)
		}
	}
	for _, f := range e.Faults {
		if f.Kind != schedule.ServerEmpty || e.Topology != schedule.Single {
			continue
		}
		for _, s := range sections {
			limit := e.allowing(s.Worker, f.To+e.learnWithin())
			if s.Enter != 0 && s.Enter < f.From && limit < s.Learned && !s.Killed {
				found = append(found, e.late(s, f.To, limit, "the server had come back without the lock"))
			}
		}
	}
	return found, judged
}

// A token is one of a key.
type token struct {
	key   string
	fence int64
}

// lateBy judges one holder of a lock that has ended at its server.
func (e *Evidence) lateBy(s *Section, d watch.Death) []Violation {
	// A replica that took over may have missed the last renewal.
	lossy := e.lossy(s.Enter, d.At, math.MaxInt64)
	if lossy && s.Plan.Fixed {
		return nil
	}
	limit := e.allowing(s.Worker, d.At+e.allowance(d, lossy))
	if limit >= s.Learned {
		return nil
	}
	return []Violation{e.late(s, d.At, limit, "the server had dropped the lock ("+d.Cause+")")}
}

// allowance is what a holder may be late by. Beyond the assumptions others take
// locks away; the server itself never does before the holder has given up, unless it has
// lost a renewal.
func (e *Evidence) allowance(d watch.Death, lossy bool) int64 {
	if lossy || (e.Mode == schedule.Beyond && d.Cause != "expired" && e.takenAway(d)) {
		return e.learnWithin()
	}
	return 0
}

// takenAway says whether a fault may have ended a lock, and not its lease: etcd and replicas of Redis call
// that a deletion too.
func (e *Evidence) takenAway(d watch.Death) bool {
	return slices.ContainsFunc(e.Faults, func(f Struck) bool {
		switch f.Kind {
		case schedule.KeyDelete, schedule.LeaseRevoke, schedule.ServerEmpty, schedule.Failover, schedule.ForcedFailover, schedule.OwnFailover:
			return f.From <= d.At && d.At <= max(f.To, f.Hit)+int64(slack)
		default:
			return false
		}
	})
}

// moving says whether a key was dropped because its slot moved to another server: those of slow keys do.
func (e *Evidence) moving(d watch.Death) bool {
	return d.Cause != "expired" && slices.ContainsFunc(e.Faults, func(f Struck) bool {
		moves := f.Kind == schedule.SlotMigration && d.Key == fmt.Sprint("slow-", f.Target%2)
		return moves && f.From <= d.At && d.At <= f.To+int64(slack)
	})
}

func (e *Evidence) late(s *Section, from, limit int64, why string) Violation {
	return Violation{
		Oracle: "late-loss", Key: s.Key, From: from, To: s.Learned, Workers: []string{s.Worker}, at: limit,
		Detail: fmt.Sprintf("%s (fence %d) believed in its lock for %v after %s", s.Attempt, s.Fence, time.Duration(s.Learned-from), why),
	}
}

// falseLosses finds locks that were lost, inside the assumptions, though no fault
// could have cost them.
func (e *Evidence) falseLosses(sections []*Section) (found []Violation) {
	for _, s := range sections {
		lost, from, learned := s.loss()
		if !lost || s.Killed || s.Parted || e.endsByPlan(s) || e.graveIn(s.Key, from, max(s.Exit, s.Released)) || e.addUp(s, learned) {
			continue
		}
		at := learned
		if s.Enter != 0 && !s.Lost { // the release reported it
			at = s.Released
		}
		found = append(found, Violation{
			Oracle: "false-loss", Key: s.Key, From: from, To: max(s.Exit, s.Released), Workers: []string{s.Worker}, at: at,
			Detail: fmt.Sprintf("%s (fence %d) lost its lock after %v without a fault that explains it", s.Attempt, s.Fence, time.Duration(s.Exit-cmp.Or(s.Enter, s.Call))),
		})
	}
	return found
}

// loss says whether a lock was lost, since when a fault may have cost it, and when its holder learned of the
// loss. A call for several keys may lose one while it waits for another, and then returns at once.
func (s *Section) loss() (lost bool, from, learned int64) {
	if s.Enter == 0 {
		return s.Plan.Together != "" && s.Failed == dlock.ErrOwnershipLost.Error(), s.Exit, s.Exit
	}
	return s.Lost || s.Unlock == dlock.ErrOwnershipLost.Error(), s.Enter, s.Learned
}

// addUp says whether faults, of which each alone is harmless, took more than half of the
// lease before a loss.
func (e *Evidence) addUp(s *Section, learned int64) bool {
	return e.disturbed(s.Worker, s.Key, learned-int64(e.TTL), learned, 0) > int64(e.TTL)*11/20
}

// graveIn says whether a fault that may cost a lock on a key struck in an interval, or so
// shortly before that its consequences did.
func (e *Evidence) graveIn(key string, from, to int64) bool {
	return slices.ContainsFunc(e.Faults, func(f Struck) bool {
		return !f.Harmless(e.TTL) && !e.spares(f, key) && f.From <= to && f.To+int64(e.TTL) >= from
	})
}
