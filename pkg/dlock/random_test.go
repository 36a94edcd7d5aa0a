package dlock_test

import (
	"context"
	"errors"
	"flag"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/faultdriver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Random keyed and guard calls of two Clients, with re-entry, losses and repeated requests, against
// a model of the holders.
func TestRandomCalls(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := flag.Set("rapid.checks", "400"); err != nil {
			t.Fatal(err)
		}
	}
	virtual(t, func(t *testing.T) {
		rapid.Check(inBubble{t}, func(rt *rapid.T) {
			m := newMachine(t, rt)
			defer m.close()
			rt.Repeat(rapid.StateMachineActions(m))
		})
	})
}

// inBubble hides Deadline, which a test in virtual time must not call.
type inBubble struct{ rapid.TB }

type machine struct {
	t       *testing.T
	clients []*dlock.Client
	owners  []context.Context
	keyed   map[where]*keyedModel
	guards  []*guardModel
	holder  map[string]any // *keyedModel, *guardModel or nil
	fence   map[string]int64
}

type where struct {
	client int
	key    string
}

type keyedModel struct {
	where
	owner, count int
	lost         bool
}

type guardModel struct {
	where
	guard *dlock.Guard
	state string // held, lost, released
}

func newMachine(t *testing.T, rt *rapid.T) *machine {
	store := memlock.New()
	m := &machine{t: t, keyed: map[where]*keyedModel{}, holder: map[string]any{}, fence: map[string]int64{}}
	for range 2 {
		faults := faultdriver.New(store, rapid.Uint64().Draw(rt, "seed"),
			faultdriver.Rule{Op: faultdriver.Acquire, Fault: faultdriver.Duplicate, Chance: 0.3},
			faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.Duplicate, Chance: 0.3},
			faultdriver.Rule{Op: faultdriver.Release, Fault: faultdriver.LoseAnswer, Chance: 0.2, Times: 3}, // more in a row would be an unknown outcome
			faultdriver.Rule{Op: faultdriver.Renew, Fault: faultdriver.LoseAnswer, Chance: 0.2},
		)
		c, err := dlock.New(&dlock.Config{EnableReentrant: true}, dlock.WithBackend(faults), dlock.WithAdmin())
		if err != nil {
			t.Fatal(err)
		}
		m.clients = append(m.clients, c)
		m.owners = append(m.owners, dlock.OwnerContext(ctx), dlock.OwnerContext(ctx))
	}
	return m
}

func (m *machine) close() {
	for _, c := range m.clients {
		if err := c.Close(); err != nil {
			m.t.Error(err)
		}
	}
}

func drawWhere(rt *rapid.T) where {
	return where{rapid.IntRange(0, 1).Draw(rt, "client"), rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key")}
}

func expect(rt *rapid.T, err, want error) {
	if (want == nil) != (err == nil) || !errors.Is(err, want) {
		rt.Fatalf("error is %v, want %v", err, want)
	}
}

func (m *machine) TryLock(rt *rapid.T) {
	w, owner := drawWhere(rt), rapid.IntRange(0, 1).Draw(rt, "owner")
	ok, err := m.clients[w.client].TryLock(m.owners[2*w.client+owner], w.key)
	k := m.keyed[w]
	switch {
	case k != nil && k.lost:
		expect(rt, err, dlock.ErrOwnershipLost)
	case k != nil && k.owner != owner:
		expect(rt, err, dlock.ErrLockAlreadyHeld)
	case k != nil:
		expect(rt, err, nil)
		k.count++
	case m.holder[w.key] != nil:
		expect(rt, err, nil)
		if ok {
			rt.Fatal("took a key that another holds")
		}
	default:
		expect(rt, err, nil)
		if !ok {
			rt.Fatal("did not take a free key")
		}
		k = &keyedModel{where: w, owner: owner, count: 1}
		m.keyed[w], m.holder[w.key] = k, k
		g, _ := m.clients[w.client].Held(w.key)
		m.checkFence(rt, w.key, g)
	}
}

func (m *machine) checkFence(rt *rapid.T, key string, g *dlock.Guard) {
	if g == nil || g.Token() <= m.fence[key] {
		rt.Fatalf("the guard %v after fence %d", g, m.fence[key])
	}
	m.fence[key] = g.Token()
}

func (m *machine) Unlock(rt *rapid.T) {
	w := drawWhere(rt)
	err := m.clients[w.client].Unlock(ctx, w.key)
	k := m.keyed[w]
	switch {
	case k == nil:
		expect(rt, err, dlock.ErrLockNotHeld)
		return
	case k.lost: // the inner Unlock of a lost lock returns it too
		expect(rt, err, dlock.ErrOwnershipLost)
	default:
		expect(rt, err, nil)
	}
	if k.count > 1 {
		k.count--
		return
	}
	if !k.lost {
		m.holder[w.key] = nil
	}
	delete(m.keyed, w)
}

func (m *machine) TryAcquire(rt *rapid.T) {
	w := drawWhere(rt)
	g, err := m.clients[w.client].TryAcquire(ctx, w.key)
	if m.holder[w.key] != nil {
		expect(rt, err, dlock.ErrLockHeldByOther)
		return
	}
	expect(rt, err, nil)
	gm := &guardModel{where: w, guard: g, state: "held"}
	m.guards, m.holder[w.key] = append(m.guards, gm), gm
	m.checkFence(rt, w.key, g)
}

func (m *machine) UnlockGuard(rt *rapid.T) {
	if len(m.guards) == 0 {
		return
	}
	g := rapid.SampledFrom(m.guards).Draw(rt, "guard")
	err := g.guard.Unlock(ctx)
	switch g.state {
	case "held":
		expect(rt, err, nil)
		g.state, m.holder[g.key] = "released", nil
	case "lost":
		expect(rt, err, dlock.ErrOwnershipLost)
	default:
		expect(rt, err, dlock.ErrLockNotHeld)
	}
}

// Evict evicts the holder of a key, which notices it.
func (m *machine) Evict(rt *rapid.T) {
	w := drawWhere(rt)
	a, err := m.clients[w.client].Admin()
	if err != nil {
		rt.Fatal(err)
	}
	err = a.Evict(ctx, w.key, m.fence[w.key])
	switch h := m.holder[w.key].(type) {
	case *keyedModel:
		expect(rt, err, nil)
		h.lost = true
	case *guardModel:
		expect(rt, err, nil)
		h.state = "lost"
	default:
		expect(rt, err, dlock.ErrLockNotHeld)
	}
	m.holder[w.key] = nil
	elapse(10 * second) // its lease: the push may be lost, and the answers to all renewals
}

func (m *machine) Elapse(rt *rapid.T) {
	elapse(time.Duration(rapid.IntRange(0, 60_000).Draw(rt, "ms")) * time.Millisecond)
}

// Check asserts after every call that the store, the guards and the tables of the Clients agree
// with the model.
func (m *machine) Check(rt *rapid.T) {
	synctest.Wait()
	for _, key := range []string{"a", "b"} {
		want := 0
		if m.holder[key] != nil {
			want = 1
		}
		if claims := inspect(m.t, m.clients[0], key); len(claims) != want {
			rt.Fatalf("%s has %d claims, want %d", key, len(claims), want)
		}
	}
	for _, g := range m.guards {
		if (g.guard.Context().Err() == nil) != (g.state == "held") {
			rt.Fatalf("a guard that is %s has %v", g.state, context.Cause(g.guard.Context()))
		}
	}
	for i, c := range m.clients {
		entries := 0
		for w, k := range m.keyed {
			if w.client == i {
				entries++ // in the table of keys
				if !k.lost {
					entries += 2 // also as a claim, and in the timeline
				}
			}
		}
		for _, g := range m.guards {
			if g.client == i && g.state == "held" {
				entries += 2
			}
		}
		if n := c.Entries(); n != entries {
			rt.Fatalf("client %d has %d entries, want %d", i, n, entries)
		}
	}
}
