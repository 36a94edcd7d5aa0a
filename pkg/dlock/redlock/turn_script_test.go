package redlock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/pkg/dlock/internal/redisnode"
)

// A listener hears what a node tells one process.
type listener struct {
	*testing.T
	messages *redis.PubSub
}

// listen subscribes to the channel of a process, which is named by its claim.
func (e *exactNode) listen(letter string) *listener {
	e.Helper()
	l := &listener{e.T, e.node.client.Subscribe(context.Background(), "to-"+letter)}
	e.Cleanup(func() { _ = l.messages.Close() })
	if _, err := l.messages.Receive(context.Background()); err != nil {
		e.Fatal(err)
	}
	return l
}

// hears checks the next message: its token and place, for a claim on the lock.
func (l *listener) hears(e *exactNode, token, place int, letter string) {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m, err := l.messages.ReceiveMessage(ctx)
	if err != nil {
		l.Fatal(err)
	}
	want := strings.Join([]string{"turn", fmt.Sprint(token), fmt.Sprint(place), "1000", letterID(letter), e.n.lock}, redisnode.Separator)
	if m.Payload != want {
		l.Errorf("hears %q, want %q", m.Payload, want)
	}
}

// waits submits a claim that waits since a time, whose process has its own channel.
func (e *exactNode) waits(letter string, round, began int, proposal int64, want string) {
	e.Helper()
	id := letterID(letter)
	if strings.HasPrefix(want, "ours ") || strings.HasPrefix(want, "held ") {
		want = fmt.Sprintf("%s %d", want, e.now)
	}
	e.replies(acquireScript, []string{e.n.lock, e.n.fence, e.n.tombstone(id), e.n.waiters, e.n.queue, e.n.turn}, want,
		id, round, 10_000, 0, 3000, "{"+letter+"}", proposal, "to-"+letter, began, 1)
}

// queue checks the order of the waiters.
func (e *exactNode) queue(letters ...string) {
	e.Helper()
	e.equal("the queue", strings.Trim(fmt.Sprint(e.do("ZRANGE", e.n.queue, 0, -1)), "[]"), strings.Join(letters, " "))
}

func (e *exactNode) turn(want any) {
	e.Helper()
	e.equal("the turn", e.do("GET", e.n.turn), want)
}

// A release tells the claim that has waited longest to try, and the next two in case that it does not. Others that
// wait do not get the lock for a moment. The claim leaves the queue when it has its token.
func TestScriptTurns(t *testing.T) {
	e := startEarly(t)
	a, b, c := e.listen("a"), e.listen("b"), e.listen("c")
	e.acquire("f", 1, 100, 0, "ours f 100")
	e.waits("c", 1, 30, 0, "taken c 0 f 10000")
	e.waits("a", 1, 10, 0, "taken a 0 f 10000")
	e.waits("b", 1, 20, 0, "taken b 0 f 10000")
	e.queue("a", "b", "c")
	e.expires(e.n.queue, 60_000)
	e.release("f", 0, -1, "", "held f 100 0 a")
	a.hears(e, 100, 1, "a")
	b.hears(e, 100, 2, "b")
	c.hears(e, 100, 3, "c")
	e.turn("a")
	e.expires(e.n.turn, 1000)
	e.queue("b", "c", "a") // until a says again that it waits
	e.now += 1000
	e.waits("c", 2, 30, 500, "taken c 0 a 999 turn")
	e.waits("b", 2, 20, 500, "taken b 0 a 999 next")
	e.waits("a", 2, 10, 500, "held a 500")
	e.turn("a") // until it releases the lock: it has not won yet
	e.queue("b", "c")
	e.waiter("a", "")

	e.release("a", 0, -1, "", "held a 500 0 b")
	b.hears(e, 500, 1, "b")
	c.hears(e, 500, 2, "c")
	e.turn("b")
	e.waits("b", 3, 20, 0, fmt.Sprintf("ours b %d", e.now)) // in two phases
	e.queue("c", "b")
	e.confirm("b", 3, 600, "held b 600")
	e.queue("c")
	e.acquire("c", 2, 700, 0, "taken c 0 b 10000") // it has won with other nodes, and cannot be stored here
	e.release("b", 0, -1, "", "held b 600 0 c")
	c.hears(e, 600, 1, "c")
	e.acquire("c", 3, 700, 0, "ours c 700")
	e.queue()
	e.release("c", 0, -1, "", "held c 700 0")
	e.turn("<nil>")
}

// The turn of a claim does not keep away those that do not wait, and it ends.
func TestScriptTurnEnds(t *testing.T) {
	e := startEarly(t)
	e.listen("a")
	e.acquire("f", 1, 100, 0, "ours f 100")
	e.waits("a", 1, 10, 0, "taken a 0 f 10000")
	e.release("f", 0, -1, "", "held f 100 0 a")
	e.propose("e", 1, 0, 0, 500, "held e 500")
	e.release("e", 0, -1, "", "held e 500 0")
	e.now += 1_000_000
	e.waits("b", 1, 20, 600, "held b 600")
}

// A claim is told once until it says again that it waits: its process may be stopped. If no other waits, all are told
// that the lock is free.
func TestScriptToldOnce(t *testing.T) {
	e := startEarly(t)
	a, all := e.listen("a"), e.subscribe()
	e.acquire("f", 1, 100, 0, "ours f 100")
	e.waits("a", 1, 10, 0, "taken a 0 f 10000")
	e.release("f", 0, -1, "", "held f 100 0 a")
	a.hears(e, 100, 1, "a")
	e.equal("its place", e.do("ZSCORE", e.n.queue, letterID("a")), 3_000_042) // its deadline
	e.now += 1_000_000 - 1
	e.waits("b", 1, 20, 0, "taken b 0 a 1 next") // no process listens for it, so it tries when the turn has ended
	e.now++
	e.acquire("f", 2, 200, 0, "ours f 200")
	e.release("f", 0, -1, "", "held f 200 1")
	e.hears(all, "free 200 1")
	e.turn("<nil>")
	e.queue("b", "a")
	c := e.listen("c")
	e.acquire("f", 3, 300, 0, "ours f 300")
	e.waits("c", 1, 30, 0, "taken c 0 f 10000")
	e.release("f", 0, -1, "", "held f 300 0 c")
	c.hears(e, 300, 1, "c")
	e.acquire("f", 4, 400, 0, "ours f 400")
	e.waits("a", 2, 10, 0, "taken a 0 f 10000")
	e.queue("a", "b", "c")
	e.release("f", 0, -1, "", "held f 400 0 a")
	a.hears(e, 400, 1, "a") // nothing before
	e.now = 4_000_042       // no claim has said anything since
	e.acquire("f", 5, 500, 0, "ours f 500")
	e.release("f", 0, -1, "", "held f 500 1")
	e.queue()
}

// A clock that was set back does not make waiters look as if they had been told.
func TestScriptTurnAfterAClockIsSetBack(t *testing.T) {
	e := startExact(t)
	a := e.listen("a")
	e.acquire("f", 1, 100, 0, "ours f 100")
	e.waits("a", 1, 0, 0, "taken a 0 f 10000")
	e.now -= 1_000_000
	e.waits("a", 1, 0, 0, "taken a 0 f 11000")
	e.release("f", 0, -1, "", "held f 100 0 a")
	a.hears(e, 100, 1, "a")
}

// The place of a claim behind a turn is not known if the queue is damaged.
func TestScriptTurnThenADamagedQueue(t *testing.T) {
	e := startEarly(t)
	e.listen("a")
	e.acquire("f", 1, 100, 0, "ours f 100")
	e.waits("a", 1, 10, 0, "taken a 0 f 10000")
	e.release("f", 0, -1, "", "held f 100 0 a")
	e.do("SET", e.n.queue, "damaged")
	e.waits("b", 1, 20, 0, "taken b 0 a 1000 turn")
}

// A release passes over waiters that are dead or whose process does not listen, and forgets the dead.
func TestScriptTurnOfTheLiving(t *testing.T) {
	e := startEarly(t)
	e.acquire("f", 1, 100, 0, "ours f 100")
	e.waits("a", 1, 10, 0, "taken a 0 f 10000")
	e.now += 2_000_000
	e.waits("b", 1, 20, 0, "taken b 0 f 8000")
	c := e.listen("c")
	e.waits("c", 1, 30, 0, "taken c 0 f 8000")
	e.now += 1_000_000 // a's heartbeat is over
	e.release("f", 0, -1, "", "held f 100 0 c")
	c.hears(e, 100, 1, "c")
	e.queue("b", "c")
}

// A claim that leaves while it has the turn gives it to the next one, unless another has the lock.
func TestScriptTurnIsPassedOn(t *testing.T) {
	e := startEarly(t)
	b := e.listen("b")
	e.listen("a")
	e.acquire("f", 1, 100, 0, "ours f 100")
	e.waits("a", 1, 10, 0, "taken a 0 f 10000")
	e.waits("b", 1, 20, 0, "taken b 0 f 10000")
	e.release("f", 0, -1, "", "held f 100 0 a")
	b.hears(e, 100, 2, "b")
	e.release("a", 0, -1, "", "queued a 0 0 b")
	b.hears(e, 0, 1, "b")
	e.turn("b")
	e.propose("e", 1, 0, 0, 500, "held e 500") // it does not wait
	e.listen("c")
	e.waits("c", 1, 30, 0, "taken c 0 e 10000")
	e.release("b", 0, -1, "", "queued b 0 0")
	e.turn("<nil>")
	e.queue("c")
}

// A release looks for a process that listens among the sixteen claims that have waited longest.
func TestScriptTurnOfTheSixteenth(t *testing.T) {
	for deaf, told := range map[int]string{15: " c", 16: ""} {
		e := startEarly(t) // those of the other case would still wait
		c := e.listen("c")
		e.acquire("f", 1, 100, 0, "ours f 100")
		for i := range deaf {
			e.do("HSET", e.n.waiters, fmt.Sprint("deaf", i), fmt.Sprint(e.now+1, " 0.1 1 nobody {}"))
			e.do("ZADD", e.n.queue, i, fmt.Sprint("deaf", i))
		}
		e.waits("c", 1, 30, 0, "taken c 0 f 10000")
		e.release("f", 0, -1, "", "held f 100 0"+told)
		if told != "" {
			c.hears(e, 100, 1, "c")
		}
	}
}

// So does one that leaves while its round has stored it, with a token or without, in whatever order the removal of the round and
// of the claim arrive. The removal of a round alone tells no other: the claim tries again.
func TestScriptTurnIsPassedOnDuringARound(t *testing.T) {
	for name, tt := range map[string]struct {
		proposal int64
		channel  bool // the removal names the channel of the lock
		earlier  bool // the round is removed first
		want     string
		token    int
	}{
		"with a token":                       {500, false, false, "held a 500 0 b", 0},
		"without a token":                    {0, false, false, "held a 0 0 b", 0},
		"without a token, of a failed call":  {0, true, false, "held a 0 0 b", 0},
		"with a token, of a failed call":     {500, true, false, "held a 500 0 b", 500},
		"after its round":                    {500, false, true, "queued a 0 0 b", 0},
		"after its round, of a failed call":  {500, true, true, "queued a 0 0 b", 0},
		"after its round, and without token": {0, false, true, "queued a 0 0 b", 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := startEarly(t)
			b := e.listen("b")
			e.listen("a")
			e.acquire("f", 1, 100, 0, "ours f 100")
			e.waits("a", 1, 10, 0, "taken a 0 f 10000")
			e.waits("b", 1, 20, 0, "taken b 0 f 10000")
			e.release("f", 0, -1, "", "held f 100 0 a")
			b.hears(e, 100, 2, "b")
			id, answer, channel := letterID("a"), fmt.Sprint("ours a 101 ", e.now), ""
			if tt.proposal > 0 {
				answer = fmt.Sprint("held a ", tt.proposal, " ", e.now)
			}
			e.replies(acquireScript, []string{e.n.lock, e.n.fence, e.n.tombstone(id), e.n.waiters, e.n.queue, e.n.turn}, answer,
				id, 2, 10_000, 0, 3000, "{a}", tt.proposal, "to-a", 10, 0) // the node may still show that it waits
			if tt.channel {
				channel = e.n.channel
			}
			if tt.earlier {
				e.replies(releaseScript, e.n.releaseKeys(id), fmt.Sprint("held a ", tt.proposal, " 0"), id, 0, 2, "", "", 0, 1000)
				e.turn("a")
			}
			e.replies(releaseScript, e.n.releaseKeys(id), tt.want, id, 0, -1, "", channel, 0, 1000)
			b.hears(e, tt.token, 1, "b")
			e.turn("b")
		})
	}
}

// Waiters are told in the old way if the queue is damaged, and not at all by a removal without a channel.
func TestScriptTurnWithoutAQueue(t *testing.T) {
	e := startEarly(t)
	e.listen("a")
	e.do("SET", e.n.queue, "damaged")
	e.acquire("f", 1, 100, 0, "ours f 100")
	e.waits("a", 1, 10, 0, "taken a 0 f 10000")
	e.release("f", 0, -1, "", "held f 100 0")
	e.turn("<nil>")
	e.do("DEL", e.n.queue)
	e.acquire("f", 2, 200, 0, "ours f 200")
	e.waits("a", 2, 10, 0, "taken a 0 f 10000")
	e.replies(releaseScript, e.n.releaseKeys(letterID("f")), "held f 200 0", letterID("f"), 0, -1, "", "", 0, 1000)
	e.turn("<nil>")
	e.queue("a")
}

// No more than three claims are told.
func TestScriptTurnsOfThree(t *testing.T) {
	e := startEarly(t)
	e.acquire("f", 1, 100, 0, "ours f 100")
	var all []*listener
	for i, letter := range []string{"a", "b", "c", "d"} {
		all = append(all, e.listen(letter))
		e.waits(letter, 1, i+1, 0, "taken "+letter+" 0 f 10000")
	}
	e.release("f", 0, -1, "", "held f 100 0 a")
	all[2].hears(e, 100, 3, "c")
	e.waits("a", 2, 1, 500, "held a 500")
	e.release("a", 0, -1, "", "held a 500 0 b")
	all[3].hears(e, 500, 3, "d") // nothing before
}

// The place of a waiter does not depend on how often it is recorded, nor on a clock that was wrong.
func TestScriptPlacesInTheQueue(t *testing.T) {
	e := startExact(t)
	e.acquire("f", 1, 100, 0, "ours f 100")
	now := int(e.now)
	e.waits("a", 1, 0, 0, "taken a 0 f 10000")                 // it knows no time
	e.waits("b", 1, now+3_600_000_000, 0, "taken b 0 f 10000") // nor this one
	e.now += 1000
	e.waits("c", 1, now+500, 0, "taken c 0 f 9999")
	e.waits("d", 1, now-500, 0, "taken d 0 f 9999")
	e.queue("d", "a", "b", "c")
	e.now += 1000
	for _, again := range []string{"b", "a"} {
		e.waits(again, 2, 0, 0, "taken "+again+" 0 f 9998")
	}
	e.queue("d", "a", "b", "c")
}
