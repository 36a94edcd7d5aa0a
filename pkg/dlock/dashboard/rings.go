package dashboard

import (
	"cmp"
	"slices"
)

// A ring is a hint at a deadlock: each of its owners waits for a lock that the next one holds.
type ring struct {
	Steps []step `json:"steps"`
}

// A step is one owner of a ring, and the lock that it waits for. The owner of the next step holds
// that lock; after the last step comes the first.
type step struct {
	Owner  string `json:"owner"`
	Host   string `json:"host,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Source string `json:"source"`
	Key    string `json:"key"`
}

// An owner is a process. What it does in parallel cannot be told apart, so a ring is only a hint.
type owner struct {
	name, host string
	pid        int
}

// A wait is an edge from a waiter to a holder.
type wait struct {
	holder      owner
	source, key string
}

// maxRings is how many rings are reported at a time.
const maxRings = 20

// findRings finds the owners of all sources that wait for each other.
func findRings(sources []*poller) []ring {
	waits := map[owner][]wait{}
	for _, p := range sources {
		for _, r := range p.current().rows {
			addWaits(waits, p.name, r)
		}
	}
	return ringsOf(waits)
}

// addWaits adds the edges of a lock, each once. A waiter for a permit needs only one of several, so it
// does not depend on each holder.
func addWaits(waits map[owner][]wait, source string, r *row) {
	if r.Mode == "permit" && r.Limit > 1 {
		return
	}
	holders := ownersOf(r.holders)
	for from := range ownersOf(r.queue) {
		for to := range holders {
			if to != from {
				waits[from] = append(waits[from], wait{to, source, r.Key})
			}
		}
	}
}

// ownersOf returns the owners of claims, of which one owner can have several.
func ownersOf(claims []claim) map[owner]struct{} {
	all := map[owner]struct{}{}
	for i := range claims {
		if o, ok := ownerOf(&claims[i]); ok {
			all[o] = struct{}{}
		}
	}
	return all
}

func ownerOf(c *claim) (owner, bool) {
	return owner{c.Owner, c.Host, c.PID}, c.Owner != "" && c.PID != 0
}

func compareOwners(a, b owner) int {
	return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.host, b.host), cmp.Compare(a.pid, b.pid))
}

func ringsOf(waits map[owner][]wait) []ring {
	owners := make([]owner, 0, len(waits))
	for o := range waits {
		owners = append(owners, o)
		slices.SortFunc(waits[o], func(a, b wait) int {
			return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.key, b.key), compareOwners(a.holder, b.holder))
		})
	}
	slices.SortFunc(owners, compareOwners)
	rings, told := []ring{}, map[owner]bool{}
	for _, o := range owners {
		if told[o] || len(rings) == maxRings {
			continue
		}
		steps := shortestRing(waits, o)
		if steps == nil {
			continue
		}
		for _, s := range steps {
			told[owner{s.Owner, s.Host, s.PID}] = true
		}
		rings = append(rings, ring{steps})
	}
	return rings
}

// shortestRing searches breadth first for the way from an owner back to itself.
func shortestRing(waits map[owner][]wait, start owner) []step {
	type visit struct {
		from owner
		by   wait
	}
	cameBy := map[owner]visit{}
	for queue := []owner{start}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, w := range waits[at] {
			if _, seen := cameBy[w.holder]; seen {
				continue
			}
			cameBy[w.holder] = visit{at, w}
			if w.holder != start {
				queue = append(queue, w.holder)
				continue
			}
			var steps []step
			for to := start; len(steps) == 0 || to != start; {
				v := cameBy[to]
				steps = append(steps, step{v.from.name, v.from.host, v.from.pid, v.by.source, v.by.key})
				to = v.from
			}
			slices.Reverse(steps)
			return steps
		}
	}
	return nil
}

func sameRings(a, b []ring) bool {
	return slices.EqualFunc(a, b, func(x, y ring) bool { return slices.Equal(x.Steps, y.Steps) })
}
