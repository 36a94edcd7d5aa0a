package redislock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// usualAndGeneral runs a test with the short code for the common case of a release, and with the
// general code.
func usualAndGeneral(t *testing.T, test func(s *scriptLock, release func(letter, want string))) {
	t.Run("usual", func(t *testing.T) {
		s := newScriptLock(t)
		test(s, s.release)
	})
	t.Run("general", func(t *testing.T) {
		s := newScriptLock(t)
		test(s, func(letter, want string) {
			s.Helper()
			s.releaseWith(letter, 0, 0, "", want)
		})
	})
}

// A release without waiters frees the lock. A release of another claim changes nothing.
func TestScriptReleases(t *testing.T) {
	usualAndGeneral(t, func(s *scriptLock, release func(letter, want string)) {
		s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
		release("b", "gone b 0")
		s.stored(fmt.Sprintf(`a. %d 1 - {"of": "a"}`, scriptStart), 30_000)
		release("a", "held a 0")
		s.stored("", -2)
		s.lastToken(scriptStart)
		release("a", "gone a 0")
		s.do("RPUSH", s.n.lock, "x")
		release("a", "gone a 0")
		if n := s.do("LLEN", s.n.lock); n != int64(1) {
			s.Errorf("a list of another program has %v elements", n)
		}
	})
}

// A released waiter leaves the queue. The answer shows whether it was alive.
func TestScriptReleasesWaiters(t *testing.T) {
	usualAndGeneral(t, func(s *scriptLock, release func(letter, want string)) {
		s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
		s.wait("b", 0, 1, 0, "-")
		s.wait("c", 1, 0, 0, "-")
		s.wait("d", 2, 1, 0, "-")
		release("b", "queued b 0")
		release("c", "gone c 0")
		s.queued("d+2")
		s.stored(fmt.Sprintf(`a+ %d 1 - {"of": "a"}`, scriptStart), 30_000)
	})
}

// The value of the next holder is marked if more claims wait, so that its release serves them. A marked
// lock whose waiters have gone is freed.
func TestScriptMarksTheNextHolder(t *testing.T) {
	usualAndGeneral(t, func(s *scriptLock, release func(letter, want string)) {
		s.listen("dlock:p")
		s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
		for i, letter := range []string{"b", "c", "d"} {
			s.wait(letter, int64(i), 1000, 0, "dlock:p")
		}
		release("a", "held a 0")
		s.stored(fmt.Sprintf(`b+ %d 1 dlock:p {"of": "b"}`, scriptStart+1), 1)
		release("b", "held b 0")
		s.stored(fmt.Sprintf(`c+ %d 1 dlock:p {"of": "c"}`, scriptStart+2), 1)
		release("d", "queued d 0")
		release("c", "held c 0")
		s.stored("", -2)
	})
}

// A release gives the lock to the first living waiter, for the rest of its heartbeat, and notifies
// its process.
func TestScriptGrantsToTheLiving(t *testing.T) {
	usualAndGeneral(t, func(s *scriptLock, release func(letter, want string)) {
		for i, left := range []int64{1, 1000, 1001, 2_999_999, 3_000_000} {
			s.use(fmt.Sprint("{k}", left))
			channel := []string{"dlock:p", "{k}:p"}[i%2] // the second is sharded
			p := s.listen(channel)
			s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
			s.wait("b", 0, 0, 0, channel) // its heartbeat has just ended
			s.wait("c", 1, -1, 0, channel)
			s.wait("d", 2, left, 0, channel)
			s.wait("e", 3, left, 0, channel)
			release("a", "held a 0")
			s.stored(fmt.Sprintf(`d+ %d 1 %s {"of": "d"}`, scriptStart+1, channel), (left+999)/1000)
			s.hears(p, fmt.Sprintf("held %s d %d", s.n.lock, scriptStart+1))
			s.queued("e+3")
			s.record("e", left, fmt.Sprintf(`%d.45 1 0 %s {"of": "e"}`, scriptSecond, channel))
			release("d", "held d 0")
			s.stored(fmt.Sprintf(`e. %d 1 %s {"of": "e"}`, scriptStart+2, channel), (left+999)/1000)
			s.hears(p, fmt.Sprintf("held %s e %d", s.n.lock, scriptStart+2))
			s.queued("")
			_ = p.Close()
		}
	})
}

// A subscriber of a sharded channel is counted like a subscriber of another channel.
func TestScriptCountsShardedSubscribers(t *testing.T) {
	usualAndGeneral(t, func(s *scriptLock, release func(letter, want string)) {
		s.use("{k}")
		p := s.listen("{k}:p")
		s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
		s.wait("b", 0, 1_000_000, 0, "{k}:nobody")
		s.wait("c", 1, 1_000_000, 0, "{k}:p")
		s.wait("d", 2, 1_000_000, 0, "-")
		release("a", "held a 0")
		s.hears(p, fmt.Sprint("held {k} c ", scriptStart+1))
		s.queued("b+0 d+2")
		s.renew("d", "queued d 0 2 1002")
	})
}

// A process that is not subscribed receives nothing, not even on the channel "-".
func TestScriptPublishesNothing(t *testing.T) {
	usualAndGeneral(t, func(s *scriptLock, release func(letter, want string)) {
		p := s.listen("-")
		s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
		s.acquire("b", 30_000, 3000, 0, "queued b 0 1 30002")
		release("a", "held a 0")
		s.stored(fmt.Sprintf(`b. %d 1 - {"of": "b"}`, scriptStart+1), 3000)
		s.hears(p)
	})
}

// A deadline that is later than any heartbeat is from before the clock was set back.
func TestScriptClampsDeadlines(t *testing.T) {
	usualAndGeneral(t, func(s *scriptLock, release func(letter, want string)) {
		s.listen("dlock:p")
		s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
		s.wait("b", 0, 3_000_001, 0, "dlock:p")
		s.wait("c", 1, 3_600_000_000, 1, "dlock:p")
		release("a", "held a 0")
		s.stored(fmt.Sprintf(`b+ %d 1 dlock:p {"of": "b"}`, scriptStart+1), 3000)
		s.record("c", 3_000_000, fmt.Sprintf(`%d.43 1 1 dlock:p {"of": "c"}`, scriptSecond))
	})
}

// Missing or damaged records are dropped like dead ones.
func TestScriptDropsDamagedRecords(t *testing.T) {
	usualAndGeneral(t, func(s *scriptLock, release func(letter, want string)) {
		s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
		for i, letter := range []string{"b", "c", "d", "e"} {
			s.wait(letter, int64(i), 1_000_000, 0, "-")
		}
		s.do("HDEL", s.n.waiters, scriptID("b"))
		s.do("HSET", s.n.waiters, scriptID("c"), "9999999999999999 damaged")
		s.do("HSET", s.n.waiters, scriptID("d"), "damaged")
		release("a", "held a 0")
		s.stored(fmt.Sprintf(`e. %d 1 - {"of": "e"}`, scriptStart+1), 1000)
		s.queued("")
	})
}

// Waiters whose channels have no subscriber are passed over, keep their places and are marked.
// Waiters without a channel, and those that have renewed since, are served.
func TestScriptPassesOver(t *testing.T) {
	usualAndGeneral(t, func(s *scriptLock, release func(letter, want string)) {
		s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
		s.wait("b", 0, 1_000_000, 0, "dlock:nobody")
		s.wait("c", 1, 1_000_000, 1, "{dlock:nobody}")
		s.wait("d", 2, 1_000_000, 2, "dlock:nobody")
		s.wait("e", 3, 1_000_000, 0, "-")
		release("a", "held a 0")
		s.stored(fmt.Sprintf(`d+ %d 1 dlock:nobody {"of": "d"}`, scriptStart+1), 1000)
		s.record("b", 1_000_000, fmt.Sprintf(`%d.42 1 1 dlock:nobody {"of": "b"}`, scriptSecond))
		s.record("c", 1_000_000, fmt.Sprintf(`%d.43 1 1 {dlock:nobody} {"of": "c"}`, scriptSecond))
		release("d", "held d 0")
		s.stored(fmt.Sprintf(`e+ %d 1 - {"of": "e"}`, scriptStart+2), 1000)
		s.queued("b+0 c+1")
		release("e", "held e 0") // no other is preferred, so the first is served
		s.stored(fmt.Sprintf(`b+ %d 1 dlock:nobody {"of": "b"}`, scriptStart+3), 1000)
		s.record("c", 1_000_000, fmt.Sprintf(`%d.43 1 1 {dlock:nobody} {"of": "c"}`, scriptSecond))
	})
}

// No more than 64 waiters are passed over.
func TestScriptPassesOverSome(t *testing.T) {
	for unheard, want := range map[int]string{63: "f", 64: "0"} {
		t.Run(fmt.Sprint(unheard), func(t *testing.T) {
			s := newScriptLock(t)
			s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
			for i := range unheard {
				s.wait(fmt.Sprintf("%032x", i), int64(i), 1_000_000, 0, "dlock:nobody")
			}
			s.wait("f", 1000, 1_000_000, 0, "-")
			s.release("a", "held a 0")
			if value, _ := s.do("GET", s.n.lock).(string); !strings.HasPrefix(value, want) {
				t.Errorf("behind %d waiters without subscribers, %q was served", unheard, value)
			}
		})
	}
}

// In a queue longer than a chunk, the first waiter is served.
func TestScriptGrantsToTheFirstOfMany(t *testing.T) {
	usualAndGeneral(t, func(s *scriptLock, release func(letter, want string)) {
		s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
		s.crowd(200, 0, 1_000_000)
		release("a", "held a 0")
		s.stored(fmt.Sprintf("%032x+ %d 1 - {}", 0, scriptStart+1), 1000)
		if n := s.do("ZCARD", s.n.queue); n != int64(199) {
			s.Errorf("%d of 200 wait", n)
		}
	})
}

// A living waiter is found behind others that are passed over and a chunk of dead ones.
func TestScriptFindsTheLivingInALaterChunk(t *testing.T) {
	s := newScriptLock(t)
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.wait("b", 0, 1_000_000, 0, "dlock:nobody")
	s.crowd(300, 1, 0)
	s.wait("c", 1000, 1_000_000, 0, "-")
	s.release("a", "held a 0")
	s.stored(fmt.Sprintf(`c+ %d 1 - {"of": "c"}`, scriptStart+1), 1000)
	s.record("b", 1_000_000, fmt.Sprintf(`%d.42 1 1 dlock:nobody {"of": "b"}`, scriptSecond))
	s.queued("b+0")
}

// A grant reads chunks until it has dropped 512 dead waiters. A waiter that is passed over shifts
// the chunks, so that four of them contain 511 and the fifth is the last.
func TestScriptDropsAsManyAsItMay(t *testing.T) {
	for dead, want := range map[int]string{511: "c", 511 + 128: "b"} {
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			s := newScriptLock(t)
			s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
			s.wait("b", 0, 1_000_000, 0, "dlock:nobody")
			s.crowd(dead, 1, 0)
			s.wait("c", 1000, 1_000_000, 0, "-")
			s.release("a", "held a 0")
			if value, _ := s.do("GET", s.n.lock).(string); !strings.HasPrefix(value, scriptID(want)) {
				t.Errorf("around %d dead waiters %q was served, want %s", dead, value, want)
			}
		})
	}
}

// With a token that must match, nothing else is removed, and the process is notified.
func TestScriptEvicts(t *testing.T) {
	s := newScriptLock(t)
	p := s.listen("dlock:p")
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.acquire("b", 30_000, 3000, 0, "queued b 0 1 30002")
	s.acquire("c", 30_000, 3000, 0, "queued c 0 2 0")
	s.releaseWith("a", 0, 0, fmt.Sprint(scriptStart+1), fmt.Sprint("gone a ", scriptStart))
	s.releaseWith("a", 0, 0, "0", fmt.Sprint("gone a ", scriptStart))
	s.releaseWith("b", 0, 0, "1", "gone b 0")
	s.queued("b+0 c+1")
	s.hears(p)
	s.releaseWith("b", 7000, 0, "0", "queued b 0")
	s.expires(s.n.tombstone(scriptID("b")), 7000)
	s.hears(p, "gone k b 0")
	s.queued("c+1")
	s.releaseWith("a", 0, 0, fmt.Sprint(scriptStart), fmt.Sprint("held a ", scriptStart))
	s.hears(p, fmt.Sprint("gone k a ", scriptStart), fmt.Sprint("held k c ", scriptStart+1))
	s.expires(s.n.tombstone(scriptID("a")), -2)
	s.releaseWith("d", 0, 0, "0", "gone d 0")
	s.releaseWith("c", 0, 0, "", "held c 0") // which does not tell
	s.hears(p)
	s.do("SET", s.n.lock, scriptID("a")) // a damaged value has no token
	s.releaseWith("a", 0, 0, "0", "held a 0")
	s.stored("", -2)
}

// With plain clients the key is left free for a time, and the first waiter is notified.
func TestScriptLeavesAGap(t *testing.T) {
	s := newScriptLock(t)
	p := s.listen("dlock:p")
	s.acquire("a", 30_000, 0, 0, fmt.Sprint("held a ", scriptStart))
	s.acquire("b", 30_000, 3000, 0, "queued b 0 1 30002")
	s.now++
	s.acquire("c", 30_000, 3000, 0, "queued c 0 2 0")
	s.releaseWith("a", 0, 80, "", "held a 0")
	s.expires(s.n.gap, 80)
	s.stored("", -2)
	s.hears(p, "free k b 0")
	s.queued("b+0 c+1")
	s.releaseWith("d", 0, 90, "", "gone d 0")
	s.expires(s.n.gap, 80)
}

// Common cases take few commands: the general code would do the same more slowly.
func TestScriptUsualCasesAreShort(t *testing.T) {
	s := newScriptLock(t)
	s.listen("{k}:p")
	sharded := s.channel + " {}"
	s.listen("dlock:p")
	keys := []string{s.n.lock, s.n.counter, s.n.queue, s.n.waiters, s.n.holders, s.n.tombstone("x")}
	n, err := (&redisDriver{}).namesOf("readers")
	s.check(err)
	joint := []string{n.lock, n.counter, n.queue, n.waiters, n.holders, n.tombstone("x")}
	who := s.channel + " {}"
	for _, tc := range []struct {
		name, want string
		source     string
		keys       []string
		args       []any
	}{
		{"free", "exists set set time", acquireScript.Source, keys, []any{scriptID("a"), 30_000, 3000, who}},
		{"queue", "exists get hsetnx pexpire pexpire pttl setrange time zadd zcard", acquireScript.Source, keys, []any{scriptID("b"), 30_000, 3000, who}},
		{"try", "exists get zcard", acquireScript.Source, keys, []any{scriptID("c"), 30_000, 0, who}},
		{"grant", "get hdel hget publish pubsub|numsub set set time zrange zrem", releaseScript.Source, keys[:5], []any{scriptID("a") + "."}},
		{"leave", "del get", releaseScript.Source, keys[:5], []any{scriptID("b") + "."}},
		{"hold", "exists set set time", acquireScript.Source, keys, []any{scriptID("d"), 30_000, 3000, who, 2}},
		{"sharded queue", "exists get hsetnx pexpire pexpire pttl setrange time zadd zcard", acquireScript.Source, keys, []any{scriptID("e"), 30_000, 3000, sharded}},
		{"sharded grant", "get hdel hget pubsub|shardnumsub set set spublish time zrange zrem", releaseScript.Source, keys[:5], []any{scriptID("d") + "."}},
		{"read", "exists hset pexpire pexpire pexpire pttl set time zadd zrange", acquireJointScript.Source, joint, []any{scriptID("a"), 30_000, 3000, who, 1, "s"}},
		{"read too", "exists hset pttl pttl set time zadd zrange zscore zscore", acquireJointScript.Source, joint, []any{scriptID("b"), 20_000, 3000, who, 1, "s"}},
		{"read for longer", "exists hset pexpire pexpire pttl pttl set time zadd zrange zscore zscore", acquireJointScript.Source, joint, []any{scriptID("c"), 40_000, 3000, who, 1, "s"}},
		{"leave the others", "exists get hdel time zrange zrem zscore", releaseScript.Source, joint[:5], []any{scriptID("a") + "."}},
		{"leave, the longest", "exists get hdel pexpire pexpire time zrange zrem zscore", releaseScript.Source, joint[:5], []any{scriptID("c") + "."}},
		{"leave, the last", "del exists get hdel time zrange zrem zscore", releaseScript.Source, joint[:5], []any{scriptID("b") + "."}},
		{"renew", "get pexpire", renewHeldScript.Source, keys[:1], []any{"echo", scriptID("e"), 30_000}},
	} {
		s.check(s.client.ConfigResetStat(context.Background()).Err())
		s.check(s.client.Eval(context.Background(), tc.source, tc.keys, tc.args...).Err())
		if got := commandsRun(s.client); got != tc.want {
			t.Errorf("%s: %s; want %s", tc.name, got, tc.want)
		}
	}
}

// commandsRun returns the commands that scripts have called, sorted by name.
func commandsRun(c *redis.Client) string {
	var all []string
	for line := range strings.Lines(c.Info(context.Background(), "commandstats").Val()) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || name == "eval" || name == "config|resetstat" || name == "info" {
			continue
		}
		n := 0
		_, _ = fmt.Sscan(strings.Split(rest, ",")[0], &n)
		all = append(all, slices.Repeat([]string{name}, n)...)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
