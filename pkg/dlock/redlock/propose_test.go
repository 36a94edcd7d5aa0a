package redlock

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A claim proposes the time of the fastest clock once, and nothing while no clock is known or after it has
// contended.
func TestProposal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := threeNodes()
		propose := func(c *claim, want int64) {
			t.Helper()
			isShown := c.tried || c.shown
			if got, shown := d.propose(c); got != want || shown != isShown {
				t.Errorf("proposes %d, shown %v; want %d, %v", got, shown, want, isShown)
			}
		}
		propose(&claim{}, 0)
		says := func(node int, micros string) {
			d.nodes[node].readClock(answer{reply: []any{"ours", someID, "7", micros}}, 3)
		}
		says(0, "2000")
		says(2, "3000")
		says(1, "-5") // a clock before the epoch, one that is out of range, and an answer without it
		says(1, strconv.Itoa(maxToken))
		d.nodes[1].readClock(answer{reply: []any{"ours", someID, "7"}}, 3)
		time.Sleep(5 * time.Microsecond)
		c := &claim{}
		propose(c, 3005)
		propose(c, 0)
		propose(&claim{shown: true}, 0)
		says(2, "100") // it was set back
		propose(&claim{}, 2005)
		c.told = told{came: true, after: 7}
		propose(c, 3006) // it is its turn
		propose(c, 0)
		c.told = told{came: true, after: 7000}
		propose(c, 7001)
		c.told = told{came: true, after: 7000}
		propose(c, 7002) // a node may have stored the other one for a round that is lost
	})
}

// Once a greater token is chosen, a node that accepted the proposal counts only when it has that token.
func TestLateAcceptanceOfAProposal(t *testing.T) {
	r := proposed(t, "held", "ours", "")
	d := r.driver
	r.token = 151
	r.votes[0], r.votes[1] = confirmed, confirming
	r.takeFirst(answer{node: d.nodes[2], reply: []any{"held", someID, "100"}})
	if _, over := r.verdict(); over || r.votes[2] != stored {
		t.Errorf("a node that has another token counts: %v", r.votes)
	}
}

// proposed returns a round with a proposal of 100 whose nodes have answered these words; an empty word is no
// answer yet. The candidate of a node is 150, 151 and 152.
func proposed(t *testing.T, words ...string) *round {
	t.Helper()
	d := threeNodes()
	c := &claim{id: someID, open: make([]int, len(words))}
	r := &round{
		driver: d, claim: c, proposal: 100, votes: make([]ballot, len(words)), owners: map[string]int{},
		first: make(chan answer, 3), second: make(chan answer, 3*(maxRaises+2)), until: time.Now().Add(time.Hour), timeout: time.Second,
	}
	for range words {
		r.commands = append(r.commands, acquireScript.Command(t.Context(), nil))
	}
	r.waiting = len(words)
	numbers := map[string]string{"held": "100", "taken": "0"}
	for i, w := range words {
		if w == "" {
			continue
		}
		number := numbers[w]
		if number == "" {
			number = []string{"150", "151", "152"}[i]
		}
		r.takeFirst(answer{node: d.nodes[i], reply: []any{w, someID, number, otherID, int64(1000)}})
	}
	return r
}

// A majority that accepts the proposal wins at once. A majority that only stores the claim gets a token that is
// greater than the proposal and all candidates, also where the proposal was accepted.
func TestProposalDecidesARound(t *testing.T) {
	for name, tt := range map[string]struct {
		words []string
		token int64
		won   bool
	}{
		"a majority accepts":                 {[]string{"held", "", "held"}, 100, true},
		"a majority accepts, one refuses":    {[]string{"held", "ours", "held"}, 100, true},
		"a majority accepts, one is another": {[]string{"held", "taken", "held"}, 100, true},
		"one accepts":                        {[]string{"held", "", ""}, 0, false},
		"one accepts, one is another's":      {[]string{"held", "taken", ""}, 0, false},
	} {
		r := proposed(t, tt.words...)
		r.confirm()
		out, over := r.verdict()
		if r.token != tt.token || over != tt.won || out.won != tt.won || (out.won && out.token != tt.token) {
			t.Errorf("%s: token %d, %+v, over %v", name, r.token, out, over)
		}
	}
}

// A token that is out of range raises no other, in neither phase, and counts as no vote.
func TestTokenOutOfRange(t *testing.T) {
	const huge = "9223372036854775807"
	r := proposed(t, "held", "ours", "")
	r.token = 151
	r.takeFirst(answer{node: r.driver.nodes[2], reply: []any{"ours", someID, huge}})
	for _, word := range []string{"higher", "held"} {
		r.votes[1] = confirming
		r.takeSecond(answer{node: r.driver.nodes[1], reply: []any{word, someID, huge}})
		if r.votes[1] != failed || r.votes[2] != failed || r.token != 151 || r.candidate != 151 {
			t.Errorf("%s: %v, token %d", word, r.votes, r.token)
		}
	}
	out, over := r.verdict()
	if !r.tally.ambiguous {
		t.Error("the nodes have stored the claim, and the error may say that none has")
	}
	if !over || !errors.Is(out.err, ErrNotALock) || driver.ClassOf(out.err) != driver.Fatal {
		t.Errorf("%+v, over %v", out, over)
	}
}
