package dlock

import (
	"iter"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A registry has every claim of a Client that has not ended. One claim of each key is indexed by
// the key: the exclusive holder, if this Client has one. Most keys therefore need only one entry.
// When a key is granted, the index shows whether the Client still has an older grant of it. The
// older grant has ended, and its holder is notified at once.
type registry struct {
	byKey  map[string]*claim
	byID   map[string]*claim // all others
	groups map[string]*group // by key: held claims that are not exclusive
}

func newRegistry() registry {
	return registry{byKey: map[string]*claim{}, byID: map[string]*claim{}, groups: map[string]*group{}}
}

func (r *registry) add(cl *claim) {
	if r.byKey[cl.key] != nil {
		r.byID[cl.id] = cl
		return
	}
	r.byKey[cl.key], cl.byKey = cl, true
}

func (r *registry) find(key, id string) *claim {
	if cl := r.byKey[key]; cl != nil && cl.id == id {
		return cl
	}
	if cl := r.byID[id]; cl != nil && cl.key == key {
		return cl
	}
	return nil
}

func (r *registry) remove(cl *claim) {
	if cl.byKey {
		if r.byKey[cl.key] == cl {
			delete(r.byKey, cl.key)
		}
		return
	}
	delete(r.byID, cl.id)
}

func (r *registry) len() int { return len(r.byKey) + len(r.byID) }

func (r *registry) all() iter.Seq[*claim] {
	return func(yield func(*claim) bool) {
		for _, claims := range []map[string]*claim{r.byKey, r.byID} {
			for _, cl := range claims {
				if !yield(cl) {
					return
				}
			}
		}
	}
}

// A group has the claims on one key that this Client holds and that are not exclusive. All have
// the same mode and the same number of permits.
type group struct {
	mode   driver.Mode
	limit  int32
	claims map[*claim]struct{}
}

// beginHold records that a claim is held. An exclusive claim is then indexed by its key.
func (r *registry) beginHold(cl *claim) {
	if cl.mode != driver.Exclusive {
		g := r.groups[cl.key]
		if g == nil {
			g = &group{cl.mode, cl.limit, map[*claim]struct{}{}}
			r.groups[cl.key] = g
		}
		g.claims[cl] = struct{}{}
		return
	}
	if cl.byKey {
		return
	}
	if before := r.byKey[cl.key]; before != nil {
		before.byKey = false
		r.byID[before.id] = before
	}
	delete(r.byID, cl.id)
	r.byKey[cl.key], cl.byKey = cl, true
}

// endHold records that a claim is not held any more.
func (r *registry) endHold(cl *claim) {
	g := r.groups[cl.key]
	if cl.mode == driver.Exclusive || g == nil {
		return
	}
	delete(g.claims, cl)
	if len(g.claims) == 0 {
		delete(r.groups, cl.key)
	}
}

// admit ends the claims of this Client that cannot be held together with the granted claim cl. It
// reports whether the grant is the latest: a grant that is older than a held claim was answered
// late and has ended.
func (c *Client) admit(cl *claim) bool {
	if !cl.byKey {
		before := c.claims.byKey[cl.key]
		if before.holdsExclusively() && !c.supersede(before, cl) {
			return false
		}
	}
	if g := c.claims.groups[cl.key]; g != nil && !c.admitToGroup(g, cl) {
		return false
	}
	c.claims.beginHold(cl)
	return true
}

// admitToGroup is admit for a key of which this Client holds a group.
func (c *Client) admitToGroup(g *group, cl *claim) bool {
	if g.mode != cl.mode || g.limit != cl.limit || cl.limit == 1 {
		for before := range g.claims {
			if !c.supersede(before, cl) {
				return false
			}
		}
		return true
	}
	if cl.mode == driver.Permit && len(g.claims) >= int(cl.limit) {
		for before := range g.claims {
			c.verifyNow(before) // one of them has ended, and the backend knows which
		}
	}
	return true
}

// holdsExclusively reports whether a claim is exclusive and held.
func (cl *claim) holdsExclusively() bool {
	return cl != nil && cl.mode == driver.Exclusive && (cl.phase == held || cl.phase == lingering)
}

// supersede ends a claim that cannot be held together with one that was granted later. It
// compares their tokens, and returns false if cl is the older grant. Both are then verified.
func (c *Client) supersede(before, cl *claim) bool {
	if before.guard.token >= cl.token && cl.token != 0 {
		c.verifyNow(before)
		return false
	}
	if before.phase == lingering {
		c.cutMinHold(before)
		return true
	}
	c.lose(before, lossTaken, "the key was granted again")
	return true
}

// cutMinHold ends a lingering claim that the backend does not hold any more. It may still be
// stored on one of several servers, or with another token.
func (c *Client) cutMinHold(cl *claim) {
	c.finish(cl, nil)
	c.logMinHoldCut(cl)
	c.cleanUp(cl)
}

// verifyNow renews a claim at once. A claim that must not be renewed is only verified.
func (c *Client) verifyNow(cl *claim) {
	cl.verify = cl.verify || cl.isFixed() // otherwise the due renewal decides
	c.renewNow(cl)
}

// isFixed reports whether a claim has its whole TTL and must not be renewed, unless an Extend waits.
func (cl *claim) isFixed() bool {
	return cl.noRenew && cl.renewAt == never && cl.phase >= granted && (cl.phase == granted || cl.wait == nil)
}
