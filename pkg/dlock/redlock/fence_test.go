package redlock_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/faultproxy"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// Tokens increase while nodes stop and come back with their data. Their counters are ahead of their
// clocks, and of each other, so that the time does not help.
func TestFencesIncreaseThroughRestarts(t *testing.T) {
	t.Parallel()
	s := start(t, 3, "--appendonly", "yes", "--appendfsync", "everysec")
	for i, c := range s.direct {
		ahead := time.Now().Add(time.Duration(i+1) * time.Hour).UnixMicro()
		check(t, c.Set(t.Context(), "{k}\x01f", ahead, 24*time.Hour).Err())
	}
	var mu sync.Mutex
	var last int64
	done, regressions := 0, 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	n := testenv.UnderStress(150, 10_000)
	for range 3 {
		c := s.locks(t, dlock.Config{DefaultTTL: 2 * time.Second, RetryInterval: 5 * time.Millisecond})
		wg.Go(func() {
			for ctx.Err() == nil {
				g, err := c.Acquire(ctx, "k")
				if err != nil {
					continue
				}
				mu.Lock()
				if g.Token() <= last {
					regressions++
				}
				last = g.Token()
				done++
				if done == n {
					cancel()
				}
				mu.Unlock()
				_ = g.Unlock(context.Background()) // a node may be down
			}
		})
	}
	restarts := 0
	for ctx.Err() == nil {
		server := s.servers[rand.IntN(3)]
		check(t, server.Kill())
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
		check(t, server.Restart(t.Context(), true))
		restarts++
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	wg.Wait()
	if regressions > 0 || restarts == 0 {
		t.Errorf("%d of %d tokens did not increase, in %d restarts", regressions, done, restarts)
	}
}

// A token counts only when a majority has accepted it: a later claim that reaches that majority
// gets a greater one, although the nodes' counters were far apart.
func TestTokenMeetsEveryMajority(t *testing.T) {
	t.Parallel()
	s := start(t, 5)
	last := int64(0)
	c := s.locks(t, dlock.Config{DefaultTTL: 20 * time.Second}) // longer than a stall, and what is not released ends in time
	for round := range testenv.UnderStress(20, 500) {
		down := rand.Perm(5)[:2]
		for _, i := range down {
			s.proxies[i].Refuse(true)
			s.proxies[i].Cut()
		}
		i := rand.IntN(5) // one node is ahead, as after a claim that did not win
		check(t, s.direct[i].Set(t.Context(), "{k}\x01f", fmt.Sprint(time.Now().Add(time.Duration(round)*time.Hour).UnixMicro()), 24*time.Hour).Err())
		g := acquire(t, c, "k")
		if g.Token() <= last {
			t.Fatalf("token %d after %d", g.Token(), last)
		}
		last = g.Token()
		unlock(t, g)
		s.heal()
	}
}

// A node whose last token is far ahead reports that after the others have granted the lock. All
// nodes keep the token that the holder has.
func TestLateRefusalOfATokenChangesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	warm(t, c)
	ahead := strconv.FormatInt(time.Now().Add(time.Hour).UnixMicro(), 10)
	check(t, s.direct[2].Set(t.Context(), fenceOf("k"), ahead, 0).Err())
	gate, held := make(chan struct{}), make(chan struct{})
	open, hold := sync.OnceFunc(func() { close(gate) }), sync.OnceFunc(func() { close(held) })
	defer open()
	s.proxies[2].Intercept(func(cmd []string) faultproxy.Action {
		if len(cmd) > 3 && cmd[0] == "EVALSHA" && cmd[3] == "k" { // until the others have granted it
			hold()
			<-gate
		}
		return faultproxy.Forward
	})
	g := acquire(t, c, "k", dlock.WithTTL(time.Hour))
	<-held
	open()
	testenv.Eventually(t, time.Minute, "the third node has the lock", func() bool {
		value, err := s.direct[2].Get(t.Context(), "k").Result()
		return err == nil && strings.Count(value, " ") > 0 && strings.Split(value, " ")[1] != "0"
	})
	for i, d := range s.direct {
		value, err := d.Get(t.Context(), "k").Result()
		check(t, err)
		if got := strings.Split(value, " ")[1]; got != strconv.FormatInt(g.Token(), 10) {
			t.Errorf("node %d has token %s, and the holder %d", i, got, g.Token())
		}
	}
	unlock(t, g)
}

// An uncontended acquisition takes one trip, and so does its release: a majority accepts the token that the
// Client proposes.
func TestUncontendedPairTakesTwoTrips(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	other := s.locks(t, dlock.Config{})
	unlock(t, acquire(t, other, "k", dlock.WithTTL(time.Hour))) // another Client has had it
	closeLocks(t, other)                                        // none of its calls is under way any more
	known := time.Now()                                         // since then the Client knows what time it is on the nodes
	warm(t, c)                                                  // after the other: its proposals must be greater than that token
	s.logCommands(t)
	last := int64(0)
	for pairs := 0; pairs < 10; {
		soon(t, "the last release has reached all nodes", func() bool { return s.holders(t, "k") == 0 })
		began := time.Now()
		last = s.pair(t, c, last)
		if late := s.secondTrips(t); len(late) == 0 {
			pairs++
		} else if !testenv.Stalled(t, known, 500*time.Millisecond) { // a node refuses a proposal that reaches it a second late
			t.Fatalf("the nodes %v were sent a token in a second trip", late)
		}
		known = began
	}
}

// pair acquires and releases k, after the nodes have forgotten its last token. It returns the token that all nodes have then.
func (s *set) pair(t *testing.T, c *dlock.Client, last int64) (token int64) {
	t.Helper()
	for _, node := range s.direct {
		check(t, node.Do(t.Context(), "SLOWLOG", "RESET").Err())
		if last > 0 { // what was forgotten does not lower the next one
			check(t, node.Del(t.Context(), fenceOf("k")).Err())
		}
	}
	now, err := s.direct[0].Time(t.Context()).Result()
	check(t, err)
	g := acquire(t, c, "k", dlock.WithTTL(time.Hour))
	token = g.Token()
	if ahead := token - now.UnixMicro(); ahead < -time.Minute.Microseconds() || ahead > time.Minute.Microseconds() {
		t.Errorf("token %d at %d", token, now.UnixMicro())
	}
	if token <= last {
		t.Errorf("token %d after %d", token, last)
	}
	s.confirms(t)
	unlock(t, g)
	return token
}

// secondTrips returns the nodes that were sent a token of k.
func (s *set) secondTrips(t *testing.T) (nodes []int) {
	t.Helper()
	for i := range s.servers {
		if s.hasRun(t, i, "confirm", "k") {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// One node refuses the proposal and another has accepted it: both get a token that is greater than all they
// have accepted.
func TestProposalOfWhichAMajorityIsNotSure(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	c := s.locks(t, dlock.Config{})
	warm(t, c)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	check(t, s.direct[0].Set(t.Context(), fenceOf("k"), ahead, 0).Err())
	s.proxies[2].Refuse(true)
	s.proxies[2].Cut()
	g := acquire(t, c, "k", dlock.WithTTL(time.Hour))
	if g.Token() <= ahead {
		t.Errorf("token %d, and a node has accepted %d", g.Token(), ahead)
	}
	for i := range 2 {
		if got := strings.Split(s.stored(t, i, "k"), " ")[1]; got != strconv.FormatInt(g.Token(), 10) {
			t.Errorf("node %d has token %s, and the holder %d", i, got, g.Token())
		}
	}
	unlock(t, g)
}

// A message that another program publishes on one node does not choose the token of a waiter.
func TestPublishedTokenIsNotProposed(t *testing.T) {
	s := start(t, 3)
	holder, waiter := s.locks(t, dlock.Config{}), s.locks(t, dlock.Config{})
	g := acquire(t, holder, "k")
	got := make(chan *dlock.Guard, 1)
	go func() {
		next, err := waiter.Acquire(t.Context(), "k")
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	var ids, channels []string
	testenv.Eventually(t, patience, "the claim waits", func() bool {
		ids = s.direct[0].ZRange(t.Context(), "{k}\x01q", 0, -1).Val()
		channels = s.direct[0].PubSubChannels(t.Context(), "dlock:\x01*").Val()
		return len(ids) == 1 && len(channels) == 1
	})
	const lie = 9223372036854775806
	for _, token := range []int64{lie, time.Now().Add(time.Hour).UnixMicro()} {
		message := strings.Join([]string{"turn", strconv.FormatInt(token, 10), "1", "30", ids[0], "k"}, "\x01")
		check(t, s.direct[0].Publish(t.Context(), channels[0], message).Err())
		check(t, s.direct[0].Publish(t.Context(), "dlock:k", "taken\x01"+strconv.FormatInt(lie, 10)).Err())
	}
	unlock(t, g)
	next := <-got
	if next == nil {
		t.FailNow()
	}
	if late := time.Now().Add(time.Minute).UnixMicro(); next.Token() > late {
		t.Errorf("the token is %d, %d more than the time", next.Token(), next.Token()-late)
	}
	unlock(t, next)
}

// A caller that waits gets the same error when its turn comes, and does not wait in vain.
func TestGreatestTokenOutOfRangeDuringAWait(t *testing.T) {
	s := start(t, 3)
	held := acquire(t, s.locks(t, dlock.Config{}), "k")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	waiter := s.locks(t, dlock.Config{})
	failed := make(chan error, 1)
	go func() {
		_, err := waiter.Acquire(ctx, "k")
		failed <- err
	}()
	testenv.Eventually(t, patience, "it waits", func() bool {
		return s.direct[0].Exists(t.Context(), "{k}\x01q").Val()+s.direct[1].Exists(t.Context(), "{k}\x01q").Val() > 0
	})
	for _, node := range s.direct[:2] {
		check(t, node.Set(t.Context(), "{k}\x01f", "9223372036854775807", time.Hour).Err())
	}
	unlock(t, held)
	want(t, <-failed, redlock.ErrNotALock, redlock.ErrNoQuorum)
	testenv.Eventually(t, beforeLease, "nothing is stored", func() bool { return len(s.left(t)) == 0 })
}

// A greatest token that no script can compare is reported, and only if a majority has one.
func TestGreatestTokenOutOfRange(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"9223372036854775807", "18446744073709551616", "9007199254740991"} {
		t.Run(value, func(t *testing.T) {
			s := start(t, 3)
			c := s.locks(t, dlock.Config{})
			check(t, s.direct[0].Set(t.Context(), "{k}\x01f", value, time.Hour).Err())
			unlock(t, acquire(t, c, "k"))
			check(t, s.direct[1].Set(t.Context(), "{k}\x01f", value, time.Hour).Err())
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := c.Acquire(ctx, "k")
			want(t, err, redlock.ErrNotALock, redlock.ErrNoQuorum)
			testenv.Eventually(t, beforeLease, "nothing is stored", func() bool { return len(s.left(t)) == 0 })
		})
	}
}

// waitAndUnlock waits for a lock in another goroutine, releases it, and sends the error.
func waitAndUnlock(t *testing.T, c *dlock.Client, key string) <-chan error {
	done := make(chan error, 1)
	go func() {
		g, err := c.Acquire(t.Context(), key)
		if err == nil {
			err = tryUnlock(t, g)
		}
		done <- err
	}()
	return done
}

// Data of another program on one node, and a node that is away for a while, cost a waiter no more than its time: a majority is not
// affected by either alone.
func TestWaiterKeepsItsPlaceBesideForeignData(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	check(t, s.direct[0].LPush(t.Context(), "k", "x").Err())
	held := acquire(t, s.locks(t, dlock.Config{}), "k", dlock.WithTTL(time.Hour))
	got := waitAndUnlock(t, s.locks(t, dlock.Config{}), "k")
	claim := func() map[string]string {
		fields, err := s.direct[1].HGetAll(t.Context(), "{k}\x01w").Result()
		check(t, err)
		return fields
	}
	testenv.Eventually(t, patience, "it waits", func() bool { return len(claim()) == 1 })
	seen := claim()
	s.proxies[2].Refuse(true)
	s.proxies[2].Cut()
	for range 3 { // heartbeats, each of which tries
		began := time.Now()
		testenv.Eventually(t, patience, "it is renewed", func() bool {
			before, now := seen, claim()
			for id := range before {
				if _, stays := now[id]; !stays && !mayMiss(t, began) {
					t.Fatalf("%v became %v", before, now)
				}
			}
			if len(now) == 0 {
				return false // it queues again
			}
			seen = now
			return !maps.Equal(before, now)
		})
	}
	s.proxies[2].Refuse(false)
	unlock(t, held)
	check(t, <-got)
}
