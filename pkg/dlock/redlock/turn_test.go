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

// turned checks what the claim knows about its turn.
func (q *quietDriver) turned(came bool, nodes int, after int64) {
	q.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	if got := q.c.told; got.came != came || got.nodes != nodes || got.after != after {
		q.Errorf("it is told %+v, want %v by %d after %d", got, came, nodes, after)
	}
}

// A claim proposes once a majority has told it to try; each node counts once.
func TestTurnOfAMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startTurns(t)
		q.setUnheard(5)
		q.tells(0, 7, 1, 10, "id", "p:k")
		q.tells(0, 7, 1, 10, "id", "p:k")
		q.turned(false, 1, 7)
		if n := q.setUnheard(5); n != 0 {
			t.Errorf("%d rounds unheard", n)
		}
		q.tells(2, 9, 1, 10, "id", "p:k")
		q.turned(true, 2, 9)
		q.asked(1) // at once, and not again by the timer of the first message
		q.tells(1, 7, 1, 10, "id", "p:k")
		q.turned(true, 3, 9)
		q.asked(0)
		if proposal, _ := q.propose(q.c); proposal != 10 {
			t.Errorf("proposes %d, want more than 9", proposal)
		}
		q.turned(false, 0, 0)
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
		q.turned(false, 0, 0)
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

// A claim that waits behind others of its process does not try, whatever a node says.
func TestTurnOfOneBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startTurns(t)
		first := &claim{key: "k", id: "first", waits: true, phase: driver.Queued, until: time.Now().Add(time.Hour)}
		q.q.waiting = []*claim{first, q.c}
		q.tells(0, 7, 1, 10, "id", "p:k")
		q.tells(1, 7, 1, 10, "id", "p:k")
		q.turned(false, 0, 0)
		q.asked(0)
	})
}
