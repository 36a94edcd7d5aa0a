package redlock_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redlock"
)

// Replies come late: the servers keep a lock for as long as the driver says, whether it was
// acquired, renewed or submitted again.
func TestLeaseCountsFromTheSending(t *testing.T) {
	t.Parallel()
	s := start(t, 3)
	d, err := redlock.New(s.clients, patient).Open(driver.Options{Logger: quietLog})
	check(t, err)
	defer func() { _ = d.Close() }()
	const late, ttl = time.Second, 20 * time.Second // a node has a quarter of it
	warm(t, s.locks(t, dlock.Config{}))             // the nodes know the scripts
	first := driver.Ref{Key: "first", ID: "00000000000000000000000000000000", TTL: time.Minute}
	_, err = d.Acquire(t.Context(), driver.Request{Ref: first}) // and the driver has connections
	check(t, err)
	for _, p := range s.proxies {
		p.Delay(0, late)
	}
	ref := driver.Ref{Key: "k", ID: "00000000000000000000000000000001", TTL: ttl}
	steps := map[string]func() (driver.State, error){
		"acquired": func() (driver.State, error) { return d.Acquire(t.Context(), driver.Request{Ref: ref, Wait: true}) },
		"renewed": func() (driver.State, error) {
			states, err := d.Renew(t.Context(), []driver.Ref{ref})
			return append(states, driver.State{})[0], err
		},
	}
	for _, name := range []string{"acquired", "renewed", "acquired", "renewed"} { // the second time again
		began := time.Now()
		st, err := steps[name]()
		took := time.Since(began)
		if err != nil || st.Phase != driver.Held {
			t.Fatalf("%s: %v, %v", name, st.Phase, err)
		}
		if took < late {
			t.Fatalf("%s after %v: the fault did not happen", name, took)
		}
		if n := s.keepUntil(t, "k", st.Until); n < 2 {
			t.Errorf("%s: only %d nodes keep the lock until it is said to end", name, n)
		}
		if most := began.Add(took + ttl - late); st.Until.After(most) {
			t.Errorf("%s: the lease ends %v after the call was sent", name, st.Until.Sub(began))
		}
	}
}

// Replies to renewals come late, and then not at all: the loss is reported before a majority grants
// the lock to another.
func TestLossPrecedesExpiry(t *testing.T) {
	t.Parallel()
	const ttl, late = 12 * time.Second, 2 * time.Second // a node has a quarter of the lease
	s, metronome := start(t, 3), testenv.StartMetronome(t)
	c := s.locks(t, dlock.Config{DefaultTTL: ttl})
	warm(t, c)
	g := acquire(t, c, "k")
	for _, p := range s.proxies {
		p.Delay(0, late)
	}
	awaitRenewal(t, g)
	for _, p := range s.proxies {
		p.BlackHole(true)
	}
	lost := make(chan time.Time, 1)
	context.AfterFunc(g.Context(), func() { lost <- time.Now() })
	dies := s.diesOnMajority(t, "k")
	at := <-lost
	if over := at.Sub(dies) - metronome.Lost(dies.Add(-ttl/2)); over > 0 {
		t.Errorf("the loss was told %v after a majority had lost the lock", over)
	}
	want(t, context.Cause(g.Context()), dlock.ErrOwnershipLost)
	s.heal()
}

// awaitRenewal waits until a guard has been renewed.
func awaitRenewal(tb testing.TB, g *dlock.Guard) {
	tb.Helper()
	last := g.Remaining()
	testenv.Eventually(tb, patience, "the lock is renewed", func() bool {
		before := last
		last = g.Remaining()
		return last > before
	})
}

// diesOnMajority returns the latest time at which a majority of the nodes no longer has a lock
// unless it is renewed.
func (s *set) diesOnMajority(tb testing.TB, lock string) time.Time {
	tb.Helper()
	var ends []time.Time
	for _, c := range s.direct {
		left, err := c.PTTL(context.Background(), lock).Result()
		check(tb, err)
		if left <= 0 {
			tb.Fatal("a node does not have the lock: the fault did not happen")
		}
		ends = append(ends, time.Now().Add(left+time.Millisecond))
	}
	slices.SortFunc(ends, time.Time.Compare)
	return ends[len(ends)/2]
}

// A lock that has expired on a majority does not come back, although a node has it.
func TestMinorityDoesNotResurrect(t *testing.T) {
	s := start(t, 3)
	c := s.locks(t, dlock.Config{DefaultTTL: time.Minute}) // nothing but Extend renews it
	for range testenv.UnderStress(5, 200) {
		g := acquire(t, c, "k")
		testenv.Eventually(t, patience, "all nodes have its token", func() bool { return s.agree(t, "k", g.Token()) }) // and none is still to be filled
		check(t, s.direct[0].Del(t.Context(), "k").Err())
		check(t, s.direct[2].Del(t.Context(), "k").Err())
		want(t, g.Extend(t.Context(), 2*time.Minute), dlock.ErrOwnershipLost)
		if n := s.holders(t, "k"); n > 1 {
			t.Fatalf("%d nodes have it again", n)
		}
		_ = g.Unlock(t.Context()) // cleans up the remaining node
		soon(t, "nothing is left", func() bool { return len(s.left(t)) == 0 })
	}
}

// agree reports whether all nodes have a lock with a token.
func (s *set) agree(t *testing.T, key string, token int64) bool {
	t.Helper()
	for i := range s.direct {
		if words := strings.Split(s.stored(t, i, key), " "); len(words) < 2 || words[1] != strconv.FormatInt(token, 10) {
			return false
		}
	}
	return true
}

// A minority that lost the lock gets it back from the holder.
func TestMinorityIsFilled(t *testing.T) {
	t.Parallel()
	s := start(t, 5)
	c := s.locks(t, dlock.Config{DefaultTTL: 15 * time.Second}) // which a busy machine can keep
	g := acquire(t, c, "k")
	for range testenv.UnderStress(3, 30) {
		testenv.Eventually(t, patience, "all nodes have it", func() bool { return s.holders(t, "k") == 5 })
		check(t, s.direct[1].Del(t.Context(), "k").Err())
		check(t, s.direct[4].Del(t.Context(), "k").Err())
	}
	testenv.Eventually(t, patience, "all nodes have it", func() bool { return s.holders(t, "k") == 5 })
	for i := range 5 {
		if a, b := s.stored(t, i, "{k}\x01f"), s.stored(t, 0, "{k}\x01f"); a != b {
			t.Errorf("node %d has the token %s, and node 0 %s", i, a, b)
		}
	}
	unlock(t, g)
}
