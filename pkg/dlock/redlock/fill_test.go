package redlock

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// twoClaims submits a claim that gets the lock, and one that waits for it.
func twoClaims(t *testing.T, d *redDriver) (held, waits *claim) {
	t.Helper()
	var both []*claim
	for i, phase := range []driver.Phase{driver.Held, driver.Queued} {
		ref := driver.Ref{Key: "k", ID: strings.Repeat(string(rune('a'+i)), 32), TTL: time.Minute}
		st, err := d.Acquire(t.Context(), driver.Request{Ref: ref, Wait: true})
		if err != nil || st.Phase != phase {
			t.Fatalf("%v, %v", st, err)
		}
		d.mu.Lock()
		both = append(both, d.claims[claimID{"k", ref.ID}])
		d.mu.Unlock()
	}
	return both[0], both[1]
}

// A claim that has ended is not stored on the nodes that lack it.
func TestEndedClaimIsNotFilledIn(t *testing.T) {
	t.Parallel()
	d, _ := openOnThree(t)
	c, _ := twoClaims(t, d)
	release := func(key, id string) {
		t.Helper()
		if _, err := d.Release(t.Context(), driver.Ref{Key: key, ID: id, TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	release("k", c.id)
	open := func() []int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return slices.Clone(c.open)
	}
	testenv.Eventually(t, time.Minute, "all calls are answered", func() bool { return slices.Equal(open(), []int{0, 0, 0}) })
	d.fill(c, d.nodes)
	for range 3 { // long enough for an answer
		if _, err := d.Acquire(t.Context(), driver.Request{Ref: driver.Ref{Key: "other", ID: c.id, TTL: time.Minute}}); err != nil {
			t.Fatal(err)
		}
		release("other", c.id)
	}
	if got := open(); !slices.Equal(got, []int{0, 0, 0}) {
		t.Errorf("%v open calls", got)
	}
}

// After a release, the next claim of the same process tries at once, unless the nodes have told another one to.
func TestNextClaimTriesAtOnce(t *testing.T) {
	t.Parallel()
	for told, want := range map[string]bool{"": true, "its own": true, "another": false} {
		d, _ := openOnThree(t)
		c, next := twoClaims(t, d)
		if told == "its own" {
			told = next.id
		}
		d.freed(c, "k", &removal{driver: d, told: told})
		d.mu.Lock()
		if next.told.came != want || (next.told.after == c.token) != want {
			t.Errorf("told %q: %+v, and the last token was %d", told, next.told, c.token)
		}
		d.mu.Unlock()
	}
}

// A claim that waits and is answered that another has the lock may be listed on that node. Others are not.
func TestOnlyWaitersAreListed(t *testing.T) {
	d := &redDriver{}
	for _, tc := range []struct {
		waits bool
		word  string
		shown bool
	}{{true, "taken", true}, {true, "ours", false}, {false, "taken", false}, {false, "ours", false}} {
		c := &claim{waits: tc.waits, open: make([]int, 1)}
		d.answered(c, answer{node: &node{}, reply: []any{tc.word}})
		if c.shown != tc.shown || c.open[0] != -1 {
			t.Errorf("%+v: shown %v, %d open calls", tc, c.shown, c.open[0])
		}
	}
}

// Check says what the number of servers survives, and which do not answer.
func TestReachableServers(t *testing.T) {
	for _, tc := range []struct {
		servers, silent int
		level           driver.Level
		fix             string
	}{
		{3, 0, driver.OK, "five servers survive the loss of two"},
		{5, 0, driver.OK, ""},
		{5, 1, driver.Warning, "bring back a0: locks live on what is left to spare"},
		{5, 3, driver.Unsafe, "bring back a0, a1, a2: without a majority of 3 no lock is granted or kept"},
	} {
		d, all := &redDriver{majority: tc.servers/2 + 1}, make([]look, tc.servers)
		for i := range tc.silent {
			all[i] = look{node: &node{addr: "a" + string(rune('0'+i))}, err: errSilent}
		}
		if f := d.reachable(all, tc.servers-tc.silent); f.Level != tc.level || f.Fix != tc.fix {
			t.Errorf("%+v: %+v", tc, f)
		}
	}
}
