// Package interop_test holds our locks in Redis against those of other
// libraries: they lock with SET NX PX, and exclude us as we exclude them.
package interop_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/redislock"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

const (
	// lease is one that outlasts any test.
	lease = 2 * time.Minute
	// short is a lease that is meant to run out.
	short = 3 * time.Second
	// recheck is how long a waiter of ours may overlook a key that came free
	// without a word: a third of the longest heartbeat.
	recheck = time.Second
	// slack is what a busy machine may add; what only the end of their lease brings is later.
	slack = 20 * time.Second
	// soon is for what happens at once.
	soon = time.Minute
)

// server starts a Redis for this test and returns a client of it.
func server(tb testing.TB) *redis.Client {
	tb.Helper()
	client := testenv.Redis(tb).Client()
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// ours returns a Client of this library that the test's end closes.
func ours(t *testing.T, client *redis.Client, opts ...redislock.Option) *dlock.Client {
	t.Helper()
	c, err := dlock.New(&dlock.Config{}, dlock.WithBackend(redislock.New(client, opts...)), dlock.WithAdmin())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// answered is less than a server may take to answer: what is over sooner has not run out of time.
const answered = 400 * time.Millisecond

// busy asserts that TryLock finds a key taken. It is repeated if the machine stalled for so long that it was not answered in
// time.
func busy(t *testing.T, c dlock.Locker, key string) {
	t.Helper()
	for {
		began := time.Now()
		ok, err := c.TryLock(t.Context(), key)
		if isUnanswered(err) && testenv.Stalled(t, began, answered) {
			continue
		}
		if ok || err != nil {
			t.Fatalf("ours got a key that is taken: %v, %v", ok, err)
		}
		return
	}
}

// takes asserts that TryLock takes a free key. If the machine stalled for so long that it was not answered in time, the next
// call waits until what it has left is gone.
func takes(t *testing.T, c dlock.Locker, key string) {
	t.Helper()
	began := time.Now()
	ok, err := c.TryLock(t.Context(), key)
	if isUnanswered(err) && testenv.Stalled(t, began, answered) {
		err = c.Lock(t.Context(), key, dlock.WithWait(soon))
		ok = err == nil
	}
	if !ok || err != nil {
		t.Fatalf("ours did not get a free key: %v, %v", ok, err)
	}
}

func isUnanswered(err error) bool {
	return errors.Is(err, dlock.ErrUnknownOutcome) || errors.Is(err, dlock.ErrUnavailable)
}

// unlock releases a key. If the machine stalled for so long that the release was not answered in time, it waits until the
// release in the background has ended: a key of ours can be taken then.
func unlock(t *testing.T, c dlock.Locker, key string) {
	t.Helper()
	for {
		began := time.Now()
		err := c.Unlock(t.Context(), key)
		if err == nil {
			return
		}
		if !errors.Is(err, dlock.ErrUnknownOutcome) || !testenv.Stalled(t, began, answered) {
			t.Fatal(err)
		}
		err = c.Lock(t.Context(), key, dlock.WithWait(soon))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A rival is a library that locks with SET NX PX.
type rival struct {
	name string
	// try takes a free key. It is (nil, nil) if the key is taken.
	try func(ctx context.Context, client *redis.Client, key string, ttl time.Duration) (holding, error)
}

// A holding is a lock that a rival took.
type holding interface {
	// release reports whether the lock was still there.
	release(ctx context.Context) (bool, error)
	// extend reports whether the lock was still there.
	extend(ctx context.Context) (bool, error)
}

var rivals = []rival{{"redsync", tryRedsync}, {"bsm", tryBSM}, {"plain", tryPlain}}

// each runs a test against every rival, on a server of its own.
func each(t *testing.T, test func(t *testing.T, client *redis.Client, r rival)) {
	t.Helper()
	for _, r := range rivals {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			test(t, server(t), r)
		})
	}
}

type redsyncHolding struct{ mutex *redsync.Mutex }

func tryRedsync(ctx context.Context, client *redis.Client, key string, ttl time.Duration) (holding, error) {
	// Its calls get a twentieth of the lease, which is too little of a short one.
	m := redsync.New(goredis.NewPool(client)).NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTimeoutFactor(0.9))
	err := m.TryLockContext(ctx)
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) {
		return nil, nil
	}
	return redsyncHolding{m}, err
}

func (h redsyncHolding) release(ctx context.Context) (bool, error) {
	ok, err := h.mutex.UnlockContext(ctx)
	return ok, redsyncError(err)
}

func (h redsyncHolding) extend(ctx context.Context) (bool, error) {
	ok, err := h.mutex.ExtendContext(ctx)
	return ok, redsyncError(err)
}

// redsyncError leaves out the errors that say that the lock is another's.
func redsyncError(err error) error {
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrLockAlreadyExpired) {
		return nil
	}
	return err
}

type bsmHolding struct {
	lock *bsm.Lock
	ttl  time.Duration
}

func tryBSM(ctx context.Context, client *redis.Client, key string, ttl time.Duration) (holding, error) {
	lock, err := bsm.Obtain(ctx, client, key, ttl, nil)
	if errors.Is(err, bsm.ErrNotObtained) {
		return nil, nil
	}
	return bsmHolding{lock, ttl}, err
}

func (h bsmHolding) release(ctx context.Context) (bool, error) {
	err := h.lock.Release(ctx)
	if errors.Is(err, bsm.ErrLockNotHeld) {
		return false, nil
	}
	return err == nil, err
}

func (h bsmHolding) extend(ctx context.Context) (bool, error) {
	err := h.lock.Refresh(ctx, h.ttl, nil)
	if errors.Is(err, bsm.ErrNotObtained) {
		return false, nil
	}
	return err == nil, err
}

// A plainHolding is what the documentation of Redis shows.
type plainHolding struct {
	client     *redis.Client
	key, value string
	ttl        time.Duration
}

var plainValues atomic.Int64

func tryPlain(ctx context.Context, client *redis.Client, key string, ttl time.Duration) (holding, error) {
	h := plainHolding{client, key, "plain-" + time.Duration(plainValues.Add(1)).String(), ttl}
	err := client.Do(ctx, "SET", key, h.value, "NX", "PX", ttl.Milliseconds()).Err()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return h, err
}

var (
	plainRelease = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	plainExtend  = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0`)
)

func (h plainHolding) release(ctx context.Context) (bool, error) {
	n, err := plainRelease.Run(ctx, h.client, []string{h.key}, h.value).Int()
	return n == 1, err
}

func (h plainHolding) extend(ctx context.Context) (bool, error) {
	n, err := plainExtend.Run(ctx, h.client, []string{h.key}, h.value, h.ttl.Milliseconds()).Int()
	return n == 1, err
}

// obtain takes a key that must be free.
func obtain(t *testing.T, client *redis.Client, r rival, key string, ttl time.Duration) holding {
	t.Helper()
	h, err := r.try(t.Context(), client, key, ttl)
	if err != nil || h == nil {
		t.Fatalf("%s did not get a free key: %v, %v", r.name, h, err)
	}
	return h
}

// refused asserts that a rival finds the key taken.
func refused(t *testing.T, client *redis.Client, r rival, key string) {
	t.Helper()
	if h, err := r.try(t.Context(), client, key, lease); h != nil || err != nil {
		t.Fatalf("%s got a key that is taken: %v, %v", r.name, h, err)
	}
}

// released asserts what a rival's release finds.
func released(t *testing.T, h holding, want bool) {
	t.Helper()
	if ok, err := h.release(t.Context()); ok != want || err != nil {
		t.Fatalf("the release is %v, %v, want %v", ok, err, want)
	}
}

// stored is the value of a lock, which must be there.
func stored(t *testing.T, client *redis.Client, key string) string {
	t.Helper()
	v, err := client.Get(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// untouched asserts that the lock is still the one with this value.
func untouched(t *testing.T, client *redis.Client, key, value string) {
	t.Helper()
	if v := stored(t, client, key); v != value {
		t.Fatalf("the lock is %q, and was %q", v, value)
	}
}

// remaining is how long the key lives.
func remaining(t *testing.T, client *redis.Client, key string) time.Duration {
	t.Helper()
	d, err := client.PTTL(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// expires waits until the key has run out.
func expires(t *testing.T, client *redis.Client, key string) {
	t.Helper()
	testenv.Eventually(t, soon, "the lease runs out", func() bool { return client.Exists(t.Context(), key).Val() == 0 })
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

// queued waits until this many claims of ours wait for key.
func queued(t *testing.T, c *dlock.Client, key string, want int) {
	t.Helper()
	testenv.Eventually(t, soon, "a waiter queues", func() bool {
		claims, err := admin(t, c).Inspect(t.Context(), key)
		return err == nil && len(claims) == want+1
	})
}

func admin(t *testing.T, c *dlock.Client) *dlock.Admin {
	t.Helper()
	a, err := c.Admin()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// waiting starts a Lock of ours that has to wait, and returns its result.
func waiting(t *testing.T, c *dlock.Client, key string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.Lock(t.Context(), key) }()
	queued(t, c, key, 1)
	return done
}

// within returns what comes, if it comes in time.
func within(t *testing.T, d time.Duration, what string, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	case <-time.After(d):
		t.Fatalf("not within %v: %s", d, what)
	}
}

// elapse lets time pass.
func elapse(d time.Duration) { <-time.After(d) }

// A detector counts holders that are inside together.
type detector struct {
	inside, overlaps atomic.Int64
}

// hold is the work under the lock.
func (d *detector) hold(work time.Duration) {
	if d.inside.Add(1) != 1 {
		d.overlaps.Add(1)
	}
	elapse(work)
	d.inside.Add(-1)
}

// crew runs workers, and waits for them.
func crew(n int, work func(i int)) *sync.WaitGroup {
	wg := &sync.WaitGroup{}
	for i := range n {
		wg.Go(func() { work(i) })
	}
	return wg
}
