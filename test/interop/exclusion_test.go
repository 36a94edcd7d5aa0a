package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

func TestOursExcludesThem(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		takes(t, c, "k")
		value := stored(t, client, "k")
		refused(t, client, r, "k")
		untouched(t, client, "k", value)
		unlock(t, c, "k")
		released(t, obtain(t, client, r, "k", lease), true)
	})
}

func TestTheyExcludeOurs(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		h := obtain(t, client, r, "k", lease)
		value := stored(t, client, "k")
		busy(t, c, "k")
		err := c.Lock(t.Context(), "k", dlock.WithWait(3*time.Second))
		wantErr(t, err, dlock.ErrLockHeldByOther)
		untouched(t, client, "k", value)
		released(t, h, true)
		takes(t, c, "k")
	})
}

// Their release is not announced to us, so a waiter finds it by asking.
func TestWaiterFindsTheirRelease(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		h := obtain(t, client, r, "k", lease)
		done := waiting(t, c, "k")
		released(t, h, true)
		within(t, recheck+slack, "ours has the key after their release", done)
		refused(t, client, r, "k")
	})
}

func TestWaiterFindsTheirExpiry(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		const ends = 8 * time.Second // long enough to see that ours waits
		obtain(t, client, r, "k", ends)
		done := waiting(t, c, "k")
		within(t, ends+recheck+slack, "ours has the key after their lease", done)
		refused(t, client, r, "k")
	})
}

// They extend while we wait: we neither take their key nor lose our place.
func TestWaiterSitsThroughTheirExtension(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		h := obtain(t, client, r, "k", 16*time.Second)
		value := stored(t, client, "k")
		done := waiting(t, c, "k")
		elapse(8 * time.Second)
		if ok, err := h.extend(t.Context()); !ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		elapse(8600 * time.Millisecond) // longer than their first lease had left
		untouched(t, client, "k", value)
		queued(t, c, "k", 1)
		released(t, h, true)
		within(t, recheck+slack, "ours has the key after their release", done)
	})
}

// A waiter that gives up leaves nothing of its own, and their key alone.
func TestWaiterLeavesTheirs(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		h := obtain(t, client, r, "k", lease)
		value := stored(t, client, "k")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Lock(ctx, "k") }()
		queued(t, c, "k", 1)
		cancel()
		wantErr(t, <-done, context.Canceled)
		queued(t, c, "k", 0)
		untouched(t, client, "k", value)
		released(t, h, true)
	})
}

// Their release and their extension of a lease that ran out leave ours alone.
func TestTheyNeverTouchOurs(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		stale := obtain(t, client, r, "k", short)
		if err := c.Lock(t.Context(), "k", dlock.WithTTL(lease)); err != nil {
			t.Fatal(err)
		}
		value := stored(t, client, "k")
		if ok, err := stale.extend(t.Context()); ok || err != nil {
			t.Fatalf("their extension is %v, %v", ok, err)
		}
		released(t, stale, false)
		untouched(t, client, "k", value)
		if left := remaining(t, client, "k"); left < lease/2 { // their extension would be for the short one
			t.Fatalf("our lease of %v has %v left", lease, left)
		}
		unlock(t, c, "k")
	})
}

// Our lease runs out and they take the key: Unlock and Close leave it alone.
func TestOursNeverReleasesTheirs(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		if err := c.Lock(t.Context(), "k", dlock.WithTTL(short), dlock.WithoutRenewal()); err != nil {
			t.Fatal(err)
		}
		expires(t, client, "k")
		h := obtain(t, client, r, "k", lease)
		value := stored(t, client, "k")
		wantErr(t, c.Unlock(t.Context(), "k"), dlock.ErrOwnershipLost)
		if err := c.Close(); err != nil { // waits for what Unlock left to clean up
			t.Fatal(err)
		}
		untouched(t, client, "k", value)
		released(t, h, true)
	})
}

// The server loses our key and they take it: the Unlock that reaches the server
// leaves it alone.
func TestOursNeverReleasesWhatReplacedIt(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		if err := c.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if err := client.Del(t.Context(), "k").Err(); err != nil {
			t.Fatal(err)
		}
		h := obtain(t, client, r, "k", lease)
		value := stored(t, client, "k")
		wantErr(t, c.Unlock(t.Context(), "k"), dlock.ErrOwnershipLost)
		untouched(t, client, "k", value)
		released(t, h, true)
	})
}

// The same, found by a renewal, which does not prolong their lease.
func TestOursNeverRenewsTheirs(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		g, err := c.Acquire(t.Context(), "k", dlock.WithTTL(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Del(t.Context(), "k").Err(); err != nil {
			t.Fatal(err)
		}
		h := obtain(t, client, r, "k", lease)
		value := stored(t, client, "k")
		select {
		case <-g.Done():
		case <-time.After(soon):
			t.Fatal("the holder does not learn of its loss")
		}
		wantErr(t, context.Cause(g.Context()), dlock.ErrOwnershipLost)
		untouched(t, client, "k", value)
		if left := remaining(t, client, "k"); left < lease/2 {
			t.Fatalf("their lease of %v has %v left", lease, left)
		}
		wantErr(t, g.Unlock(t.Context()), dlock.ErrOwnershipLost)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		untouched(t, client, "k", value)
		released(t, h, true)
	})
}

// A key without an expiry is taken until it is deleted, and a waiter asks for it
// no more often than for any other.
func TestWaiterOfEternalKey(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	direct, client := server.Client(), server.ClientAt(proxy.Addr())
	t.Cleanup(func() { _, _ = direct.Close(), client.Close() })
	if err := direct.SetNX(t.Context(), "k", "plain", 0).Err(); err != nil {
		t.Fatal(err)
	}
	c := ours(t, client)
	done := waiting(t, c, "k")
	before, began := proxy.Requests(), time.Now()
	elapse(time.Second)
	asked, span := proxy.Requests()-before, time.Since(began)
	if err := direct.Del(t.Context(), "k").Err(); err != nil {
		t.Fatal(err)
	}
	within(t, recheck+slack, "ours has the key after their release", done)
	if float64(asked) > 20*span.Seconds() {
		t.Errorf("one waiter asked %d times in %v", asked, span)
	}
}

// A key that is no string, such as the lock of a library that keeps hashes, is
// neither taken nor overwritten.
func TestForeignTypeIsLeftAlone(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := ours(t, client)
	if err := client.HSet(t.Context(), "k", "owner", 1).Err(); err != nil {
		t.Fatal(err)
	}
	if ok, err := c.TryLock(t.Context(), "k"); ok || err == nil {
		t.Fatalf("%v, %v", ok, err)
	}
	if kind := client.Type(t.Context(), "k").Val(); kind != "hash" {
		t.Fatalf("the key is a %s", kind)
	}
}
