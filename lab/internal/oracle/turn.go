package oracle

import (
	"slices"

	"github.com/ceyewan/genesis/lab/internal/schedule"
)

// A Turn is a server that became a master or a replica, at some time from From to To.
type Turn struct {
	Addr     string
	Note     string // as of its stalls
	Master   bool
	From, To int64
}

// WithOwn adds to the faults of a trial that ended at end those that servers made themselves: when a replica became a master and
// no fault had asked for that. The old master answers until it is a replica, as in a forced failover.
func WithOwn(faults []Struck, turns []Turn, end int64) []Struck {
	all := slices.Clone(faults)
	for _, t := range turns {
		wanted := slices.ContainsFunc(faults, func(f Struck) bool {
			return f.Kind.ReplacesMaster() && f.From <= t.To && f.To >= t.From
		})
		if !t.Master || wanted {
			continue
		}
		own := Struck{Fault: schedule.Fault{Kind: schedule.OwnFailover}, From: t.From, Hit: end, To: end}
		for _, old := range turns {
			if !old.Master && old.Note == t.Note && old.Addr != t.Addr && old.To >= t.From {
				own.Hit, own.To = min(own.Hit, old.To), min(own.To, old.To)
			}
		}
		all = append(all, own)
	}
	slices.SortStableFunc(all, func(a, b Struck) int { return compare(a.From, b.From) })
	return all
}
