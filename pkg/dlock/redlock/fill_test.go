package redlock

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/servers"
	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// refOf names a claim on the lock k by its number.
func refOf(n int) driver.Ref {
	return driver.Ref{Key: "k", ID: strings.Repeat(string(rune('a'+n)), 32), TTL: time.Hour, QueueTTL: time.Hour}
}

// submitted submits a claim, and returns what the driver knows of it.
func submitted(t *testing.T, d *redDriver, ref driver.Ref, want driver.Phase) *claim {
	t.Helper()
	st, err := d.Acquire(t.Context(), driver.Request{Ref: ref, Wait: true})
	if err != nil || st.Phase != want {
		t.Fatalf("%v, %v", st, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.claims[claimID{ref.Key, ref.ID}]
}

// openPatient returns a driver that waits long for each of three servers.
func openPatient(t *testing.T) (*redDriver, []*servers.Redis) {
	t.Helper()
	var clients []redis.UniversalClient
	var all []*servers.Redis
	for range 3 {
		server := testenv.Redis(t)
		c := server.Client()
		t.Cleanup(func() { _ = c.Close() })
		clients, all = append(clients, c), append(all, server)
	}
	opened, err := New(clients, WithNodeTimeout(maxNodeTimeout)).Open(driver.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d, _ := opened.(*redDriver)
	t.Cleanup(func() { _ = d.Close() })
	return d, all
}

// openCalls returns how many calls to each node may still store a claim.
func (d *redDriver) openCalls(c *claim) []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(c.open)
}

// awaitFree waits until no server has the lock: a release returns when a majority has answered it.
func awaitFree(t *testing.T, d *redDriver, all []*servers.Redis) {
	t.Helper()
	for _, server := range all {
		rdb := server.Client()
		testenv.Eventually(t, time.Minute, "the lock is free", func() bool {
			n, err := rdb.Exists(t.Context(), d.namesOf("k").lock).Result()
			return n == 0 && err == nil
		})
		_ = rdb.Close()
	}
}

// A claim that has ended is not stored on the nodes that lack it.
func TestEndedClaimIsNotFilledIn(t *testing.T) {
	t.Parallel()
	d, all := openPatient(t)
	ref := refOf(0)
	c := submitted(t, d, ref, driver.Held)
	testenv.Eventually(t, time.Minute, "all calls are answered", func() bool { return slices.Equal(d.openCalls(c), []int{0, 0, 0}) })
	if _, err := d.Release(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	awaitFree(t, d, all)
	d.fill(c, d.nodes)
	for i := range 3 { // long enough for an answer
		other := refOf(1 + i)
		other.Key = "other"
		_, err := d.Acquire(t.Context(), driver.Request{Ref: other})
		_, released := d.Release(t.Context(), other)
		if err := errors.Join(err, released); err != nil {
			t.Fatal(err)
		}
	}
	if open := d.openCalls(c); !slices.Equal(open, []int{0, 0, 0}) {
		t.Errorf("%v open calls", open)
	}
	for i, server := range all {
		rdb := server.Client()
		if n, err := rdb.Exists(t.Context(), d.namesOf("k").lock).Result(); n != 0 || err != nil {
			t.Errorf("node %d has the lock: %v", i, err)
		}
		_ = rdb.Close()
	}
}

// A node that answers after a majority has decided is not one that did not answer: a release leaves no tombstone there.
func TestLateAnswerCounts(t *testing.T) {
	t.Parallel()
	d, all := openPatient(t)
	slow := all[2].Client()
	defer func() { _ = slow.Close() }()
	for i := range 5 {
		if err := slow.Do(t.Context(), "CLIENT", "PAUSE", "200", "WRITE").Err(); err != nil {
			t.Fatal(err)
		}
		ref := refOf(i)
		c := submitted(t, d, ref, driver.Held)
		testenv.Eventually(t, time.Minute, "the late answer counts", func() bool { return slices.Equal(d.openCalls(c), []int{0, 0, 0}) })
		if _, err := d.Release(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		awaitFree(t, d, all)
	}
}

// After a release, the next claim of the same process tries at once, unless the nodes have told another one to.
func TestNextClaimTriesAtOnce(t *testing.T) {
	t.Parallel()
	for told, want := range map[string]bool{"": true, "its own": true, "another": false} {
		d, _ := openOnThree(t)
		c, next := submitted(t, d, refOf(0), driver.Held), submitted(t, d, refOf(1), driver.Queued)
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
