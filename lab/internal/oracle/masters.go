package oracle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ceyewan/genesis/lab/internal/schedule"
	"github.com/ceyewan/genesis/lab/internal/worker"
)

// A master in trouble must not slow down the locks of others. Hands of all workers use one
// master each, through Clients that use all; how many sections they get when nothing is
// wrong is the measure of the same trial.

// leastShare is how much of the usual rate is enough.
const leastShare = 0.25

const (
	leastTime     = 2 * time.Second // of quiet, to know what is usual
	leastSections = 20
	reaction      = 250 * time.Millisecond // until a fault is felt
)

// slowed finds masters that were slow while another one was in trouble, and counts the
// sections at others meanwhile.
func (e *Evidence) slowed(sections []*Section) (found []Violation, judged int) {
	for _, f := range e.Faults {
		from := f.Hit + int64(reaction)
		if !f.Kind.OfOneMaster() || time.Duration(f.To-from) < reaction {
			continue
		}
		n, calm := 0, 0
		for _, s := range sections {
			if s.Enter == 0 || !strings.HasPrefix(s.Key, schedule.SteadyPrefix) || strings.HasPrefix(s.Key, fmt.Sprint(schedule.SteadyPrefix, f.ShardOf(), "-")) {
				continue
			}
			if s.Enter >= from && s.Enter <= f.To {
				n++
			}
			if e.quietAt(s.Enter) {
				calm++
			}
		}
		quiet := e.quiet()
		if quiet < leastTime || calm < leastSections {
			continue
		}
		judged += n
		usual := float64(calm) / quiet.Seconds()
		if got := float64(n) / time.Duration(f.To-from).Seconds(); got < leastShare*usual {
			found = append(found, Violation{
				Oracle: "other-masters", From: from, To: f.To, reached: got / (leastShare * usual),
				Detail: fmt.Sprintf("%.1f sections per second at the other masters while one had a %s, usual are %.1f", got, f.Kind, usual),
			})
		}
	}
	return found, judged
}

// spares says whether a fault leaves so many servers alone that it may neither cost a lock on
// this key nor keep anybody from it: it strikes another master, or one node of a redlock. Two
// nodes one shortly after the other may be a majority: what the first had missed is not back yet.
func (e *Evidence) spares(f Struck, key string) bool {
	switch e.Topology {
	case schedule.Cluster:
		inPlace := !strings.HasPrefix(key, "slow-") // slots of others do not move
		return inPlace && f.Kind.OfOneMaster() && schedule.ShardOfKey(worker.Prefix+key) != f.ShardOf()
	case schedule.Redlock3:
		return e.alone(f, 3)
	case schedule.Redlock5:
		return e.alone(f, 5)
	}
	return false
}

// alone says whether a fault strikes one of several servers and no other of them is in trouble.
func (e *Evidence) alone(f Struck, servers int) bool {
	node, one := f.Node(servers)
	near := int64(e.TTL * 9 / 20) // less than there is from one fault to the next
	return one && !slices.ContainsFunc(e.Faults, func(g Struck) bool {
		other, single := g.Node(servers)
		apart := g.From > f.To+near || f.From > g.To+near
		return !apart && !g.Kind.OnWorkers() && !g.Kind.Unnoticed() && (!single || other != node)
	})
}

// aftermath is how long a fault may be felt after it was healed.
const aftermath = time.Second

func (e *Evidence) quietAt(at int64) bool {
	if at < e.From || at > e.To {
		return false
	}
	for _, f := range e.Faults {
		if at >= f.From && at <= f.To+int64(aftermath) {
			return false
		}
	}
	return true
}

// quiet is for how long nothing was wrong.
func (e *Evidence) quiet() time.Duration {
	sum, at := int64(0), e.From
	for _, f := range e.Faults {
		sum += max(f.From-at, 0)
		at = max(at, f.To+int64(aftermath))
	}
	return time.Duration(sum + max(e.To-at, 0))
}
