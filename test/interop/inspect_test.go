package interop_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock"
)

// stranger asserts that a claim is a holder of which nothing is known but the
// time that is left.
func stranger(t *testing.T, cl dlock.Claim) {
	t.Helper()
	if cl.Remaining <= 0 || cl.Remaining > lease {
		t.Fatalf("%v of a lease of %v are left", cl.Remaining, lease)
	}
	cl.Remaining = 0
	if want := (dlock.Claim{Phase: dlock.PhaseHeld, Mode: dlock.ModeExclusive}); cl != want {
		t.Fatalf("the holder is %#v", cl)
	}
}

func TestInspectTheirs(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		h := obtain(t, client, r, "k", lease)
		claims, err := admin(t, c).Inspect(t.Context(), "k")
		if err != nil || len(claims) != 1 {
			t.Fatalf("%v, %v", claims, err)
		}
		stranger(t, claims[0])

		done := waiting(t, c, "k")
		claims, err = admin(t, c).Inspect(t.Context(), "k")
		if err != nil || len(claims) != 2 {
			t.Fatalf("%v, %v", claims, err)
		}
		stranger(t, claims[0])
		if claims[1].Phase != dlock.PhaseQueued || claims[1].Info.PID == 0 {
			t.Fatalf("the waiter is %#v", claims[1])
		}
		released(t, h, true)
		within(t, recheck+slack, "ours has the key after their release", done)
	})
}

func TestBusyErrorNamesNoHolder(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		obtain(t, client, r, "k", lease)
		var e *dlock.Error
		for e == nil || e.Holder == nil {
			began := time.Now()
			g, err := c.TryAcquire(t.Context(), "k")
			wantErr(t, err, dlock.ErrLockHeldByOther)
			if g != nil || !errors.As(err, &e) || e.Key != "k" || e.Waiters != 0 || err.Error() == "" {
				t.Fatalf("%v, %#v", g, err)
			}
			// A call looks for the holder for a quarter of a second only.
			if e.Holder == nil && !testenv.Stalled(t, began, 200*time.Millisecond) {
				t.Fatalf("no holder: %#v", err)
			}
		}
		stranger(t, *e.Holder)
	})
}

// A plain lock has no token to be evicted with.
func TestEvictSparesTheirs(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client *redis.Client, r rival) {
		c := ours(t, client)
		h := obtain(t, client, r, "k", lease)
		value := stored(t, client, "k")
		for _, token := range []int64{0, 1} {
			wantErr(t, admin(t, c).Evict(t.Context(), "k", token), dlock.ErrLockNotHeld)
		}
		untouched(t, client, "k", value)
		released(t, h, true)
	})
}

// A lock is a key that is there, whatever its value.
func TestInspectEmptyValue(t *testing.T) {
	t.Parallel()
	client := server(t)
	c := ours(t, client)
	if err := client.Set(t.Context(), "k", "", lease).Err(); err != nil {
		t.Fatal(err)
	}
	busy(t, c, "k")
	claims, err := admin(t, c).Inspect(t.Context(), "k")
	if err != nil || len(claims) != 1 {
		t.Fatalf("a key that is taken has the claims %v, %v", claims, err)
	}
	stranger(t, claims[0])
}
