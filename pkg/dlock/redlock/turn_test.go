package redlock

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// startTurns is startQuiet with nodes that can be told what to remove, and a claim that they know.
func startTurns(t *testing.T) *quietDriver {
	q := startQuiet(t)
	q.nodes = threeNodes().nodes
	q.claims[claimID{"k", "id"}] = q.c
	return q
}

// tells is a message of a node to the claim.
func (q *quietDriver) tells(node int, words ...any) {
	text := []string{"turn"}
	for _, w := range words {
		text = append(text, fmt.Sprint(w))
	}
	q.onTurn(q.nodes[node], strings.Join(text, redisnode.Separator))
}

// turned checks whether the claim knows that it is its turn, and after which token.
func (q *quietDriver) turned(came bool, after int64) {
	q.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	if got := q.c.told; got.came != came || got.after != after {
		q.Errorf("it is told %+v, want %v after %d", got, came, after)
	}
}

// startFive is startTurns with five nodes.
func startFive(t *testing.T) *quietDriver {
	q := startTurns(t)
	q.nodes, q.majority = append(q.nodes, &node{at: 3, sweeping: true}, &node{at: 4, sweeping: true}), 3
	return q
}

// A claim proposes once a majority has told it to try; each node counts once.
func TestTurnOfAMajority(t *testing.T) {
	for nodes, begin := range map[int]func(*testing.T) *quietDriver{3: startTurns, 5: startFive} {
		synctest.Test(t, func(t *testing.T) {
			q := begin(t)
			q.setUnheard(5)
			for i := range q.majority - 1 {
				q.tells(nodes-1-i, 7, 1, 10, "id", "p:k")
				q.tells(nodes-1-i, 7, 1, 10, "id", "p:k")
			}
			q.turned(false, 0)
			if n := q.setUnheard(5); n != 0 {
				t.Errorf("%d rounds unheard", n)
			}
			q.tells(0, 7, 1, 10, "id", "p:k")
			q.turned(true, 7)
			q.asked(1) // at once, and not again by the timer of the first message
			q.tells(1, 7, 1, 10, "id", "p:k")
			q.turned(true, 7)
			q.asked(0)
			if proposal, _ := q.propose(q.c); proposal != 8 {
				t.Errorf("%d nodes: proposes %d, want more than 7", nodes, proposal)
			}
			q.turned(false, 0)
		})
	}
}

// Nodes that speak of different releases are no majority. The first one that speaks of the next release makes the claim try
// soon, also if the message that another has the lock has stopped that.
func TestTurnsOfTwoReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startFive(t)
		q.tells(0, 7, 1, 10, "id", "p:k")
		q.tells(1, 7, 1, 10, "id", "p:k")
		q.says("taken", 8)
		q.asked(0)
		for node, token := range []int{9, 7, 9, 7} { // a node may be late
			q.tells(node, token, 1, 10, "id", "p:k")
			q.turned(false, 0)
		}
		q.asked(1)
		q.tells(4, 9, 1, 10, "id", "p:k")
		q.turned(true, 9)
		q.asked(1)
		q.propose(q.c)
		q.tells(0, 9, 1, 10, "id", "p:k")
		q.says("taken", 9) // of the lock that was released
		q.asked(1)
		for node := range 3 {
			q.tells(node, 9, 1, 10, "id", "p:k")
		}
		q.turned(true, 9)
		q.says("taken", 10)
		q.turned(false, 0)
		q.tells(0, 9, 1, 10, "id", "p:k")
		q.tells(1, 9, 1, 10, "id", "p:k")
		q.turned(false, 0)
	})
}

// The nodes on which another claim has passed its turn on name no token. They count with those that have seen the release.
func TestTurnThatIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startFive(t)
		q.tells(0, 0, 1, 10, "id", "p:k")
		q.tells(1, 7, 1, 10, "id", "p:k")
		q.turned(false, 0)
		q.tells(2, 0, 1, 10, "id", "p:k")
		q.turned(true, 0)
		q.asked(1)
		q.tells(3, 7, 1, 10, "id", "p:k")
		q.tells(4, 7, 1, 10, "id", "p:k")
		q.turned(true, 7)
		q.asked(0)
	})
}

// A claim that one node tells to try does so soon, in two phases. Those after it try when the turns before theirs have
// ended.
func TestTurnOfOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startTurns(t)
		for place, want := range map[int]time.Duration{1: q.turnTime() / 2, 2: 12 * time.Millisecond, 3: 24 * time.Millisecond} {
			began := time.Now()
			q.tells(0, 7, place, 10, "id", "p:k")
			<-q.Events()
			if took := time.Since(began); took != want {
				t.Errorf("place %d: tries after %v, want %v", place, took, want)
			}
			if proposal, _ := q.propose(&claim{tried: true, told: q.c.told}); proposal != 0 {
				t.Errorf("place %d: proposes %d", place, proposal)
			}
		}
		q.tells(0, 7, 2, 10, "id", "p:k") // an earlier turn of the same claim takes its place
		q.tells(1, 7, 1, 10, "id", "p:k")
		q.tells(2, 7, 1, 10, "id", "p:k")
		q.asked(1)
	})
}

// A node that tells a claim which no longer waits forgets it. Messages that make no sense change nothing.
func TestTurnOfOneThatDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startTurns(t)
		for _, words := range [][]any{{}, {7, 1, 10, "id"}, {7, 1, 10, "id", "other:k"}} {
			q.tells(0, words...)
		}
		q.onTurn(q.nodes[0], strings.Join([]string{"torn", "7", "1", "10", "id", "p:k"}, redisnode.Separator))
		q.turned(false, 0)
		if n := len(q.nodes[0].leftover); n != 0 {
			t.Fatalf("%d claims are removed", n)
		}
		q.tells(0, 7, 1, 10, "gone", "p:k")
		q.tells(1, 7, 1, 10, "id", "p:unknown")
		q.released = map[string]struct{}{"released": {}}
		q.tells(2, 7, 1, 10, "released", "p:k")
		q.c.phase = driver.Held
		q.tells(2, 7, 1, 10, "id", "p:k")
		if n := len(q.nodes[2].leftover); n != 0 {
			t.Errorf("%d claims are removed that had their turn", n)
		}
		for i, want := range []string{"gone", "id"} {
			left := q.nodes[i].leftover
			if len(left) != 1 || left[0].id != want || !left[0].hides || left[0].round != 0 || left[0].tombstone != 0 {
				t.Errorf("node %d removes %+v", i, left)
			}
		}
		q.asked(0)
	})
}

// What one node says about a token is not proposed, and what makes no sense is not used: a place that is not told, a turn
// that is longer than any, a token that no script can compare, or one that is far ahead of the clocks.
func TestTurnOfOneThatLies(t *testing.T) {
	const now = 1_700_000_000_000_000
	for name, words := range map[string][]any{
		"no place":                {7, 0, 30, "id", "p:k"},
		"place 4":                 {7, 4, 30, "id", "p:k"},
		"a place without a digit": {7, "first", 30, "id", "p:k"},
		"no time":                 {7, 1, 0, "id", "p:k"},
		"too much time":           {7, 2, 1501, "id", "p:k"},
		"time without a digit":    {7, 2, "long", "id", "p:k"},
		"a token without a digit": {"x", 1, 30, "id", "p:k"},
		"a negative token":        {-1, 1, 30, "id", "p:k"},
		"a huge token":            {maxToken, 1, 30, "id", "p:k"},
		"a token that overflows":  {"9223372036854775808", 1, 30, "id", "p:k"},
		"a token far ahead":       {int64(now + 86_400_000_001), 1, 30, "id", "p:k"},
	} {
		synctest.Test(t, func(t *testing.T) {
			q := startTurns(t)
			q.nodes[0].clock.set(now)
			q.setUnheard(5)
			for i := range q.nodes {
				q.tells(i, words...)
			}
			q.asked(0)
			if n := q.setUnheard(5); n != 5 {
				t.Errorf("%s: the message was used", name)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		q := startTurns(t)
		q.nodes[0].clock.set(now)
		q.tells(0, now+86_400_000_000, 1, 1500, "id", "p:k")
		q.turned(false, 0)
		q.asked(1)
		q.tells(1, now+1, 3, 1500, "id", "p:k")
		q.asked(1)
		q.tells(1, now+1, 1, 30, "id", "p:k")
		q.tells(2, now+1, 1, 30, "id", "p:k")
		q.turned(true, now+1)
	})
	synctest.Test(t, func(t *testing.T) { // no clock is known
		q := startTurns(t)
		for i := range 2 {
			q.tells(i, maxToken-1, 1, 30, "id", "p:k")
		}
		q.turned(true, maxToken-1)
	})
}

// A claim that waits behind others of its process does not try, whatever a node says.
func TestTurnOfOneBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startTurns(t)
		first := &claim{key: "k", id: "first", waits: true, phase: driver.Queued, until: time.Now().Add(time.Hour)}
		q.q.waiting = []*claim{first, q.c}
		q.tells(0, 7, 1, 10, "id", "p:k")
		q.tells(1, 7, 1, 10, "id", "p:k")
		q.turned(false, 0)
		q.asked(0)
	})
}
