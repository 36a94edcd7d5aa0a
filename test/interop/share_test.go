package interop_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

// A worker takes the key, runs under it and gives it back, once; it reports
// whether it had the key.
type worker func(ctx context.Context, under func()) (bool, error)

func oursWorker(c *dlock.Client) worker {
	return func(ctx context.Context, under func()) (bool, error) {
		g, err := c.Acquire(ctx, "k")
		if err != nil {
			return false, err
		}
		under()
		return true, g.Unlock(context.WithoutCancel(ctx))
	}
}

// redsyncWorker uses redsync as it is: an attempt every 50 to 250 ms.
func redsyncWorker(client *redis.Client) worker {
	rs := redsync.New(goredis.NewPool(client))
	return func(ctx context.Context, under func()) (bool, error) {
		m := rs.NewMutex("k")
		if err := m.LockContext(ctx); err != nil {
			return false, nil //nolint:nilerr // it has given up, as it does by default after 32 attempts
		}
		under()
		_, err := m.UnlockContext(context.WithoutCancel(ctx))
		return true, err
	}
}

// bsmWorker tries every 20 ms.
func bsmWorker(client *redis.Client) worker {
	locks := bsm.New(client)
	return func(ctx context.Context, under func()) (bool, error) {
		l, err := locks.Obtain(ctx, "k", lease, &bsm.Options{RetryStrategy: bsm.LinearBackoff(20 * time.Millisecond)})
		if err != nil {
			return false, nil //nolint:nilerr // the time is up
		}
		under()
		return true, l.Release(context.WithoutCancel(ctx))
	}
}

// A contention is workers of both sides on one key.
type contention struct {
	gap         time.Duration
	each        int           // workers of each kind
	hold        time.Duration // how long a turn takes
	ours, their time.Duration // pauses between two turns of one worker
	lasts       time.Duration // at least: on a slow machine, until each has had the key
}

func (c contention) String() string {
	return fmt.Sprintf("gap %v, %d each, hold %v, pause of ours %v, of theirs %v", c.gap, c.each, c.hold, c.ours, c.their)
}

// headStart lets ours come first, as if they had replaced others while the rest
// goes on as before.
const headStart = 200 * time.Millisecond

// A score is how often each worker had the key.
type score []int64

func (s score) sum() (n int64) {
	for _, v := range s {
		n += v
	}
	return n
}

// run lets our workers and those of the rivals contend.
func (c contention) run(t *testing.T, client *redis.Client, rivals ...worker) (we, they score) {
	t.Helper()
	var opts []redislock.Option
	if c.gap > 0 {
		opts = append(opts, redislock.WithPlainClients(c.gap))
	}
	all := []worker{oursWorker(ours(t, client, opts...))}
	all = append(all, rivals...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var d detector
	counts := make([]atomic.Int64, c.each*len(all))
	workers := crew(len(counts), func(i int) {
		pause := c.ours
		if i%len(all) != 0 {
			pause = c.their
			elapse(headStart)
		}
		for ctx.Err() == nil {
			had, err := all[i%len(all)](ctx, func() { d.hold(c.hold) })
			if err != nil && ctx.Err() == nil {
				t.Errorf("worker %d: %v", i, err)
				return
			}
			if had {
				counts[i].Add(1)
			}
			elapse(pause)
		}
	})
	elapse(c.lasts)
	for end := time.Now().Add(soon); slices.ContainsFunc(values(counts), isZero) && time.Now().Before(end); {
		elapse(10 * time.Millisecond)
	}
	cancel()
	workers.Wait()
	if n := d.overlaps.Load(); n != 0 {
		t.Errorf("%d overlaps", n)
	}
	for i := range counts {
		if n := counts[i].Load(); i%len(all) == 0 {
			we = append(we, n)
		} else {
			they = append(they, n)
		}
	}
	t.Logf("%v: ours %v, theirs %v, their share %.0f%%", c, we, they, 100*float64(they.sum())/float64(max(we.sum()+they.sum(), 1)))
	return we, they
}

func isZero(n int64) bool { return n == 0 }

func values(counts []atomic.Int64) (all []int64) {
	for i := range counts {
		all = append(all, counts[i].Load())
	}
	return all
}

// all asserts that every one of these workers had the key.
func (s score) all(t *testing.T, who string) {
	t.Helper()
	for i, n := range s {
		if n == 0 {
			t.Errorf("worker %d of %s never had the key", i, who)
		}
	}
}

// Ours and both rivals, mixed: no two overlap, and all get the key.
func TestMixedContention(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := contention{gap: 20 * time.Millisecond, each: 3, hold: time.Millisecond, ours: time.Millisecond, their: 25 * time.Millisecond, lasts: 6 * time.Second}
	we, they := c.run(t, client, redsyncWorker(client), bsmWorker(client))
	we.all(t, "ours")
	they.all(t, "theirs")
}

// During a migration, redsync as it is gets at least a third of its fair share (a sixth on a
// machine that is busy with others; without a gap it gets next to nothing) next to workers of ours that want the key all the time, whether they hold it
// for a shorter or a longer time than it takes redsync to come again.
func TestShareDuringMigration(t *testing.T) {
	t.Parallel()
	for _, hold := range []time.Duration{5 * time.Millisecond, 50 * time.Millisecond} {
		t.Run(hold.String(), func(t *testing.T) {
			t.Parallel()
			client := server(t)
			c := contention{gap: 20 * time.Millisecond, each: 3, hold: hold, their: 20 * time.Millisecond, lasts: 10 * time.Second}
			we, they := c.run(t, client, redsyncWorker(client))
			we.all(t, "ours")
			all := we.sum() + they.sum()
			t.Logf("redsync had the key %d times of %d", they.sum(), all)
			least := all / testenv.UnderStress[int64](12, 6)
			if they.sum() < least || we.sum() < least {
				t.Errorf("redsync had the key %d times of %d: one side had it less than %d times", they.sum(), all, least)
			}
		})
	}
}

// listens waits until a waiter of ours is subscribed, and has asked once more, as
// it does then.
func listens(t *testing.T, client *redis.Client) {
	t.Helper()
	testenv.Eventually(t, soon, "a waiter subscribes", func() bool {
		return len(client.PubSubChannels(t.Context(), "dlock:*").Val()) > 0
	})
	elapse(100 * time.Millisecond)
}

// The gap is there whatever else ours do meanwhile: file claims, ask for a key
// that they do not get, or renew their places.
func TestGapIsKept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		gap  time.Duration
		do   func(t *testing.T, c *dlock.Client)
	}{
		{"nothing else happens", 500 * time.Millisecond, func(*testing.T, *dlock.Client) {}},
		{"another files", 500 * time.Millisecond, func(t *testing.T, c *dlock.Client) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if g, err := c.Acquire(ctx, "k"); err == nil {
				_ = g.Unlock(t.Context())
				t.Error("it passed the one that waits")
			}
		}},
		{"another tries", 500 * time.Millisecond, func(t *testing.T, c *dlock.Client) {
			t.Helper()
			if g, err := c.TryAcquire(t.Context(), "k"); err == nil {
				_ = g.Unlock(t.Context())
				t.Error("it passed the one that waits")
			}
		}},
		{"places are renewed", 2 * time.Second, func(*testing.T, *dlock.Client) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			client := server(t)
			first := ours(t, client, redislock.WithPlainClients(c.gap))
			if err := first.Lock(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			second := ours(t, client, redislock.WithPlainClients(c.gap))
			done := waiting(t, second, "k")
			listens(t, client)
			freed := time.Now()
			if err := first.Unlock(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			c.do(t, first)
			within(t, c.gap+recheck+slack, "the waiter has the key after the gap", done)
			if took := time.Since(freed); took < c.gap*9/10 {
				t.Errorf("the key was free for %v of a gap of %v", took, c.gap)
			}
		})
	}
}

// A plain client that polls more often than the gap is long gets the key in it.
func TestTheyGetTheGap(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		const trials = 5
		for range trials {
			if getsTheGap(t, client, r) {
				return
			}
			client = server(t)
		}
		t.Fatalf("%d trials are void: this machine is too slow", trials)
	})
}

// getsTheGap is one trial of TestTheyGetTheGap. It is void if the machine stalled until the gap was over.
func getsTheGap(t *testing.T, client *redis.Client, r rival) (valid bool) {
	t.Helper()
	const gap = 3 * time.Second
	first := ours(t, client, redislock.WithPlainClients(gap))
	if err := first.Lock(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	done := waiting(t, ours(t, client, redislock.WithPlainClients(gap)), "k")
	listens(t, client)
	freed := time.Now()
	if err := first.Unlock(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	h, err := r.try(t.Context(), client, "k", lease)
	if (err != nil || h == nil) && testenv.Stalled(t, freed, gap/2) {
		return false
	}
	if err != nil || h == nil {
		t.Fatalf("%s did not get a free key: %v, %v", r.name, h, err)
	}
	value := stored(t, client, "k")
	elapse(gap + 200*time.Millisecond) // the waiter has asked, and waits on
	untouched(t, client, "k", value)
	released(t, h, true)
	within(t, recheck+slack, "the waiter has the key after their release", done)
	return true
}
