package redislock_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// Operators see readers, permits and those that wait, and evict one reader of several.
func TestReadersAreShown(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	one, other := locksAt(t, server.Addr()), locksAt(t, server.Addr())
	admin, err := one.Admin()
	check(t, err)
	reader := acquire(t, one, "data", dlock.WithShared(), dlock.WithInfo(dlock.Info{Purpose: "report"}))
	rest := acquire(t, other, "data", dlock.WithShared())
	permit := acquire(t, one, "gpu", dlock.WithPermits(3))
	writer := startWait(t, other, "data", dlock.WithWait(time.Minute))
	awaitQueued(t, one, "data", 1)
	late := startWait(t, one, "data", dlock.WithShared(), dlock.WithWait(time.Minute))
	awaitQueued(t, one, "data", 2)
	check(t, directTo(t, server).ZAdd(t.Context(), "ranking", redis.Z{Score: 1, Member: "somebody"}).Err())

	keys, _, err := admin.ListPage(t.Context(), "", "", 100)
	check(t, err)
	slices.Sort(keys)
	if !slices.Equal(keys, []string{"data", "gpu"}) {
		t.Errorf("locks %q", keys)
	}
	want := "[held shared held shared queued exclusive queued shared]"
	claims := inspect(t, other, "data")
	if got := summary(claims); got != want {
		t.Errorf("claims %s, want %s", got, want)
	}
	first := claims[slices.IndexFunc(claims, func(c dlock.Claim) bool { return c.Token == reader.Token() })]
	if first.Info.Purpose != "report" || first.Remaining <= 0 || first.Age < 0 || first.Age > time.Minute {
		t.Errorf("the reader is shown as %+v", first)
	}
	if c := inspect(t, one, "gpu"); len(c) != 1 || c[0].Mode != dlock.ModePermit || c[0].Limit != 3 || c[0].Token != permit.Token() {
		t.Errorf("the permit is shown as %+v", c)
	}

	evict(t, admin, "data", reader.Token())
	wantLost(t, reader, time.Now(), time.Minute)
	alive(t, rest)
	unlock(t, rest)
	unlock(t, granted(t, writer, time.Minute).guard)
	unlock(t, granted(t, late, time.Minute).guard)
	unlock(t, permit)
	if left := leftovers(t, directTo(t, server)); !slices.Equal(left, []string{"ranking"}) {
		t.Errorf("left: %q", left)
	}
}

func summary(claims []dlock.Claim) string {
	var all []string
	for _, c := range claims {
		all = append(all, fmt.Sprint(c.Phase, " ", c.Mode))
	}
	return fmt.Sprint(all)
}

// More readers than one script grants are all granted when the writer leaves.
func TestManyReadersAreGranted(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	holder, c := locksAt(t, server.Addr()), locksAt(t, server.Addr())
	writer := acquire(t, holder, "k", dlock.WithTTL(time.Minute))
	const readers = 100
	var all []<-chan outcome
	for range readers {
		ch := make(chan outcome, 1)
		all = append(all, ch)
		go func() {
			g, err := c.Acquire(t.Context(), "k", dlock.WithShared(), dlock.WithTTL(time.Minute))
			ch <- outcome{g, err, time.Now()}
		}()
	}
	awaitQueued(t, holder, "k", readers)
	unlock(t, writer)
	var guards []*dlock.Guard
	for _, ch := range all {
		guards = append(guards, granted(t, ch, time.Minute).guard) // all at a time: none has left
	}
	for _, g := range guards {
		alive(t, g)
		unlock(t, g)
	}
	if left := leftovers(t, directTo(t, server)); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// seedReaders stores copies of a reader.
var seedReaders = redis.NewScript(`
local deadline, record = redis.call('ZSCORE', KEYS[1], ARGV[1]), redis.call('HGET', KEYS[2], ARGV[1])
for i = 1, ARGV[2] do
  local id = string.format('%032x', i)
  redis.call('ZADD', KEYS[1], deadline, id)
  redis.call('HSET', KEYS[2], id, record)
end
return redis.status_reply('OK')`)

// Inspect shows thousands of readers and waiters, in pages.
func TestManyReadersAreShown(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	d := openDriver(t, server.Addr())
	const readers, waiters = 1100, 600
	check(t, submitAs(t, d, driver.Request{Mode: driver.Shared}, 0, false))
	check(t, seedReaders.Run(t.Context(), direct, []string{"k", holdersOf("k")}, claimID(0), readers-1).Err())
	seedWaiters(t, direct, "k", readers, readers+waiters-1, time.Hour, "dlock:nobody")
	claims, err := answered(t, func() ([]driver.Claim, error) { return d.(driver.Admin).Inspect(t.Context(), "k") })
	check(t, err)
	var held, queued int
	seen := map[string]bool{}
	for _, c := range claims {
		seen[c.ID] = true
		if c.Phase == driver.Held {
			held++
		} else {
			queued++
		}
	}
	if held != readers || len(seen) != len(claims) || queued != waiters {
		t.Errorf("%d hold the lock and %d wait, %d in all", held, queued, len(seen))
	}
}

// The driver forgets readers that were released, refused or lost.
func TestReadersAreForgotten(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	direct := directTo(t, server)
	d := openDriver(t, server.Addr())
	ref := func(n int) driver.Ref { return driver.Ref{Key: "k", ID: claimID(n), TTL: time.Minute} }
	submit := func(n int, mode driver.Mode, want driver.Phase) {
		t.Helper()
		st, err := answered(t, func() (driver.State, error) {
			return d.Acquire(t.Context(), driver.Request{Ref: ref(n), Mode: mode, Limit: 1})
		})
		if err != nil || st.Phase != want {
			t.Errorf("%v, %v, want %v", st, err, want)
		}
	}
	submit(1, driver.Permit, driver.Held)
	submit(2, driver.Permit, driver.Gone)
	if n := redislock.Joint(d); n != 1 {
		t.Errorf("%d are known, want 1", n)
	}
	releaseClaim(t, d, "k", 1, time.Minute)
	if n := redislock.Joint(d); n != 0 {
		t.Errorf("%d are known after a release", n)
	}
	submit(3, driver.Permit, driver.Held)
	check(t, direct.FlushAll(t.Context()).Err())
	st := renewClaim(t, d, "k", 3, time.Minute)
	if st.Phase != driver.Gone || redislock.Joint(d) != 0 {
		t.Errorf("%d are known after a loss; %v", redislock.Joint(d), st)
	}
}
