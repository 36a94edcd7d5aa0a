package dlock

import (
	"iter"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A registry has every claim of a Client that was filed and is not over. One claim of each
// key is found by the key: the exclusive holder, if this Client has one. So a key costs one
// entry, and a grant finds out whether the same Client still believes in an older one: what
// was granted anew was taken from whoever held it before, who need not wait to be told.
type registry struct {
	byKey  map[string]*claim
	byID   map[string]*claim // all others
	groups map[string]*group // by key: what is held and not exclusive
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

// A group is what this Client holds of one key and is not exclusive. All of it is of one
// mode, and of one number of permits.
type group struct {
	mode   driver.Mode
	limit  int32
	claims map[*claim]struct{}
}

// beginHold is for a claim that is held from now on. It is found by its key if it is exclusive.
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

// leaveHold is for a claim that is held no longer.
func (r *registry) leaveHold(cl *claim) {
	g := r.groups[cl.key]
	if cl.mode == driver.Exclusive || g == nil {
		return
	}
	delete(g.claims, cl)
	if len(g.claims) == 0 {
		delete(r.groups, cl.key)
	}
}

// admit ends what this Client holds and cannot be held beside a claim that was granted. It
// reports whether the grant is the latest: one that is older than what is held was answered
// late, and is over.
func (c *Client) admit(cl *claim) bool {
	if !cl.byKey {
		before := c.claims.byKey[cl.key]
		if before.excludes() && !c.supersede(before, cl) {
			return false
		}
	}
	if g := c.claims.groups[cl.key]; g != nil && !c.admitBeside(g, cl) {
		return false
	}
	c.claims.beginHold(cl)
	return true
}

// admitBeside is admit for a key of which this Client holds a group.
func (c *Client) admitBeside(g *group, cl *claim) bool {
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
			c.verifyNow(before) // one of them is over, and the backend knows which
		}
	}
	return true
}

// excludes reports whether a claim is an exclusive one, and held.
func (cl *claim) excludes() bool {
	return cl != nil && cl.mode == driver.Exclusive && (cl.phase == held || cl.phase == lingering)
}

// supersede ends a claim that cannot be held beside one that was granted later, by its
// token, and reports whether it was. If it is the other way round, both are looked at anew.
func (c *Client) supersede(before, cl *claim) bool {
	if before.guard.token >= cl.token && cl.token != 0 {
		c.verifyNow(before)
		return false
	}
	if before.phase == lingering {
		c.finish(before, nil)
		c.logMinHoldCut(before)
		return true
	}
	c.lose(before, lossTaken, "the key was granted again")
	return true
}

// verifyNow has a held claim renewed, or looked at if it is not to be renewed.
func (c *Client) verifyNow(cl *claim) {
	cl.verify = cl.verify || !cl.renewable() && cl.renewAt == never // else what is due will tell
	c.renewNow(cl)
}
