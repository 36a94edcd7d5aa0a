package redislock

import (
	"fmt"
	"testing"

	"github.com/ceyewan/genesis/internal/sim/simredis"
)

// The queue is lost, and a waiter submits its claim again before it renews. It gets the free lock and is no waiter
// any more: as both, it would be granted the lock again, with another token and for a shorter time.
func TestScriptResubmittedAfterALostQueue(t *testing.T) {
	s := newScriptLock(t)
	submits := map[string]func(want string){
		"s":  func(want string) { s.join("c", "s", true, want) },
		"p3": func(want string) { s.join("c", "p3", true, want) },
		"":   func(want string) { s.acquire("c", 30_000, 3000, 0, want) },
	}
	for _, gap := range []bool{false, true} {
		for mode, submit := range submits {
			s.gap = false
			s.use(fmt.Sprint("lock ", mode, gap))
			s.gap = gap
			s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
			recheck := 30_002
			if gap {
				recheck = 50
			}
			submit(fmt.Sprint("queued c 0 1 ", recheck))
			s.do("DEL", s.n.queue)
			s.do("DEL", s.n.lock) // released, or expired
			s.now += 1_000_000
			held := fmt.Sprint("held c ", s.now)
			submit(held)
			if n := s.do("HEXISTS", s.n.waiters, scriptID("c")); n != int64(0) {
				t.Errorf("mode %q, gap %v: the holder has a record of a waiter", mode, gap)
			}
			s.now += 1_000_000
			s.renew("c", held)
			s.queued("")
			s.acquire("b", 30_000, 3000, 0, map[bool]string{false: "queued b 0 1 20002", true: "queued b 0 1 50"}[gap])
			s.release("b", "queued b 0") // which grants the lock to those that fit
			s.renew("c", held)
			if mode != "" {
				s.heldBy(mode, "c+20000000")
			} else {
				s.expires(s.n.lock, 20_000)
			}
		}
	}
}

// Something that is not a number is stored as the counter. A release with a waiter fails, and the waiter keeps its place.
func TestScriptWaiterSurvivesABadCounter(t *testing.T) {
	s := newScriptLock(t)
	channel := "own"
	sub := s.client.Subscribe(t.Context(), channel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.wait("b", 0, 3_000_000, 0, channel)
	s.do("DEL", s.n.counter)
	s.do("RPUSH", s.n.counter, "other data")
	keys := []string{s.n.lock, s.n.counter, s.n.queue, s.n.waiters, s.n.holders}
	if err := simredis.Run(t.Context(), s.client, s.now, releaseScript.Source, keys, scriptID("a")+unmarked).Err(); err == nil {
		t.Error("a token was taken from a list")
	}
	s.do("DEL", s.n.counter)
	s.renew("b", "queued b 0 1 30002")
	s.queued("b+0")
	s.release("a", "held a 0")
	s.queued("")
}

// A reader that is also stored as a waiter, by whatever mistake, is not granted a shorter lease than it has.
func TestScriptGrantNeverShortensALease(t *testing.T) {
	s := newScriptLock(t)
	s.join("a", "s", false, fmt.Sprint("held a ", scriptStart))
	s.join("b", "s", false, fmt.Sprint("held b ", scriptStart+1))
	s.do("ZADD", s.n.queue, scriptStart, scriptID("a"))
	s.do("HSET", s.n.waiters, scriptID("a"), fmt.Sprintf(`%d %d.42 1s 0 - {}`, s.now+2_000_000, scriptSecond))
	s.release("b", "held b 0")
	s.queued("")
	s.heldBy("s", "a+30000000")
	s.expires(s.n.lock, 30_000)
}
