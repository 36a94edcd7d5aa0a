package dashboard

import (
	"cmp"
	"math"
	"slices"
	"time"
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

// A contested lock has holders and waiters. Each of its waiters waits for each of its holders.
type contested struct {
	source, key      string
	holders, waiters []owner
}

const (
	// maxRings is how many rings are reported at a time.
	maxRings = 20
	// maxEdges is how many holders and waiters of contested locks are searched for rings.
	maxEdges = 200_000
)

// findRings finds the owners of all sources that wait for each other. The locks are read one after the
// other, so it counts only claims that an earlier reading has shown too, of all sources: these have been
// there at one time, which is when the newest readings began.
func findRings(sources []*poller) []ring {
	rows := make([][]*row, len(sources))
	at := time.Duration(math.MaxInt64)
	for i, p := range sources {
		if s := p.current(); s.isCurrent() {
			rows[i] = s.contestedRows()
			if len(rows[i]) > 0 {
				at = min(at, s.began)
			}
		}
	}
	var locks []contested
	edges := 0
	for i, p := range sources {
		for _, r := range rows[i] {
			l := contested{p.name, r.Key, ownersOf(r.holders, at), ownersOf(r.queue, at)}
			if edges += len(l.holders) + len(l.waiters); edges > maxEdges {
				return newWaitGraph(locks).rings()
			}
			locks = append(locks, l)
		}
	}
	return newWaitGraph(locks).rings()
}

// isCurrent reports whether the rows are those of the last reading, and the source is still read: a pause
// is never longer than maxInterval.
func (s *snapshot) isCurrent() bool {
	return s.err == "" && !s.at.IsZero() && time.Since(s.at) <= 2*(maxInterval+s.round)
}

// contestedRows returns the locks that have holders and waiters, by key.
func (s *snapshot) contestedRows() []*row {
	var rows []*row
	for _, r := range s.rows {
		if len(r.holders) > 0 && len(r.queue) > 0 && !r.hasPermits() {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *row) int { return cmp.Compare(a.Key, b.Key) })
	return rows
}

// hasPermits reports whether a waiter needs only one of several permits, so that it does not depend on
// each holder.
func (r *row) hasPermits() bool { return r.Mode == "permit" && r.Limit > 1 }

// ownersOf returns the owners of the claims that were seen until then. One owner can have several.
func ownersOf(claims []claim, until time.Duration) []owner {
	all := make([]owner, 0, len(claims))
	for i := range claims {
		if c := &claims[i]; c.Owner != "" && c.PID != 0 && c.seen <= until {
			all = append(all, owner{c.Owner, c.Host, c.PID})
		}
	}
	return all
}

func compareOwners(a, b owner) int {
	return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.host, b.host), cmp.Compare(a.pid, b.pid))
}

// A waitGraph leads from owners to the locks that they wait for, and from these to their holders. It has
// as many edges as there are claims: to lead from each waiter to each holder would take their product.
type waitGraph struct {
	owners []owner     // the first nodes
	locks  []contested // the other nodes
	next   [][]int     // sorted; of each node
	parts  []int       // the strongly connected component of each node
}

// newWaitGraph leaves out owners that only hold or only wait, because no ring has them.
func newWaitGraph(locks []contested) *waitGraph {
	const holds, waits = 1, 2
	does := map[owner]int{}
	for i := range locks {
		for _, o := range locks[i].holders {
			does[o] |= holds
		}
		for _, o := range locks[i].waiters {
			does[o] |= waits
		}
	}
	g := &waitGraph{locks: locks}
	for o, d := range does {
		if d == holds|waits {
			g.owners = append(g.owners, o)
		}
	}
	slices.SortFunc(g.owners, compareOwners)
	nodes := make(map[owner]int, len(g.owners))
	for i, o := range g.owners {
		nodes[o] = i
	}
	g.next = make([][]int, len(g.owners)+len(locks))
	for i := range locks {
		lock := len(g.owners) + i
		for _, o := range locks[i].holders {
			if to, ok := nodes[o]; ok {
				g.next[lock] = append(g.next[lock], to)
			}
		}
		for _, o := range locks[i].waiters {
			if from, ok := nodes[o]; ok {
				g.next[from] = append(g.next[from], lock)
			}
		}
	}
	for i := range g.next {
		slices.Sort(g.next[i])
		g.next[i] = slices.Compact(g.next[i])
	}
	g.parts = components(g.next)
	return g
}

// components returns the strongly connected component of each node, by Tarjan's algorithm. It does not
// recurse, because a chain of waiters can be long.
func components(next [][]int) []int {
	const none = -1
	parts, index, low := make([]int, len(next)), make([]int, len(next)), make([]int, len(next))
	for i := range next {
		parts[i], index[i] = none, none
	}
	type call struct{ node, edge int }
	var calls []call
	var open []int // nodes whose component is not complete
	count := 0
	for root := range next {
		if index[root] == none {
			calls = append(calls, call{node: root})
		}
		for len(calls) > 0 {
			c := &calls[len(calls)-1]
			from := c.node
			if c.edge == 0 {
				index[from], low[from] = count, count
				count++
				open = append(open, from)
			}
			if c.edge < len(next[from]) {
				to := next[from][c.edge]
				c.edge++
				if index[to] == none {
					calls = append(calls, call{node: to})
				} else if parts[to] == none {
					low[from] = min(low[from], index[to])
				}
				continue
			}
			for low[from] == index[from] && parts[from] == none {
				last := len(open) - 1
				parts[open[last]], open = from, open[:last]
			}
			calls = calls[:len(calls)-1]
			if len(calls) > 0 {
				before := calls[len(calls)-1].node
				low[before] = min(low[before], low[from])
			}
		}
	}
	return parts
}

// rings returns a shortest ring of each owner that is not in an earlier one. An owner is in a ring if its
// component has another owner.
func (g *waitGraph) rings() []ring {
	size := make([]int, len(g.next))
	for o := range g.owners {
		size[g.parts[o]]++
	}
	rings, told := []ring{}, make([]bool, len(g.owners))
	for o := range g.owners {
		if told[o] || size[g.parts[o]] < 2 || len(rings) == maxRings {
			continue
		}
		var steps []step
		for _, w := range g.shortestRing(o) {
			told[w.from] = true
			from, lock := g.owners[w.from], &g.locks[w.lock-len(g.owners)]
			steps = append(steps, step{from.name, from.host, from.pid, lock.source, lock.key})
		}
		rings = append(rings, ring{steps})
	}
	return rings
}

// A wait is an owner that waits for a lock, as nodes.
type wait struct{ from, lock int }

// shortestRing searches breadth first for the way from an owner back to itself. It enters each lock once:
// after that, only the way to the start can be new.
func (g *waitGraph) shortestRing(start int) []wait {
	cameBy, seen := make([]wait, len(g.owners)), make([]bool, len(g.next))
	seen[start] = true
	for queue := []int{start}; len(queue) > 0; queue = queue[1:] {
		from := queue[0]
		for _, lock := range g.next[from] {
			if g.parts[lock] != g.parts[start] {
				continue
			}
			if _, closes := slices.BinarySearch(g.next[lock], start); closes && from != start {
				ring := []wait{{from, lock}}
				for ; from != start; from = cameBy[from].from {
					ring = append(ring, cameBy[from])
				}
				slices.Reverse(ring)
				return ring
			}
			if seen[lock] {
				continue
			}
			seen[lock] = true
			for _, to := range g.next[lock] {
				if !seen[to] {
					seen[to], cameBy[to] = true, wait{from, lock}
					queue = append(queue, to)
				}
			}
		}
	}
	return nil
}

func sameRings(a, b []ring) bool {
	return slices.EqualFunc(a, b, func(x, y ring) bool { return slices.Equal(x.Steps, y.Steps) })
}
