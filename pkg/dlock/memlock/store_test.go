package memlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Tombstones end, and do not accumulate.
func TestTombstonesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, store := context.Background(), memlock.New()
		d, err := store.Open(driver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = d.Close() }()
		for i := range 1000 {
			ref := driver.Ref{Key: "k", ID: fmt.Sprint(i), TTL: time.Second, Unanswered: true}
			if _, err := d.Release(ctx, ref); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
		}
		if n := store.Tombstones(); n > 300 {
			t.Errorf("%d tombstones of a minute each after 1000 seconds", n)
		}
		st, err := d.Acquire(ctx, driver.Request{Ref: driver.Ref{Key: "k", ID: "0", TTL: time.Second}})
		if err != nil || st.Phase != driver.Held {
			t.Errorf("an ID whose tombstone has ended: %v, %v", st, err)
		}
	})
}

func TestPermitNeedsALimit(t *testing.T) {
	d, err := memlock.New().Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	_, err = d.Acquire(context.Background(), driver.Request{Ref: driver.Ref{Key: "k", ID: "1", TTL: time.Second}, Mode: driver.Permit})
	if !errors.Is(err, driver.ErrUnsupported) {
		t.Error(err)
	}
}

// Many waiters on one key are found without scanning: a queue of ten thousand is served in order,
// and cancelling from its middle works.
func TestLongQueue(t *testing.T) {
	ctx, n := context.Background(), 10_000
	d, err := memlock.New().Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	refs := make([]driver.Ref, n)
	for i := range refs {
		refs[i] = driver.Ref{Key: "k", ID: fmt.Sprint("claim", i), TTL: time.Hour}
		if _, err := d.Acquire(ctx, driver.Request{Ref: refs[i], Wait: true}); err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i < n; i += 2 {
		if st, err := d.Release(ctx, refs[i]); err != nil || st.Phase != driver.Queued {
			t.Fatalf("claim %d: %v, %v", i, st, err)
		}
	}
	for i := 0; i < n; i += 2 {
		if st, err := d.Release(ctx, refs[i]); err != nil || st.Phase != driver.Held {
			t.Fatalf("claim %d: %v, %v", i, st, err)
		}
	}
}

// An expired claim is not listed.
func TestOnlyLivingKeysAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := memlock.New().Open(driver.Options{Prefix: "p:"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = d.Close() }()
		for key, ttl := range map[string]time.Duration{"brief": time.Second, "kept": time.Hour} {
			if _, err := d.Acquire(t.Context(), driver.Request{Ref: driver.Ref{Key: key, ID: key, TTL: ttl}}); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(2 * time.Second)
		keys, next, err := d.(driver.Admin).List(t.Context(), "", "", 0)
		if err != nil || next != "" || !slices.Equal(keys, []string{"kept"}) {
			t.Errorf("%q, %q, %v", keys, next, err)
		}
	})
}

// Each waiter learns how many claims are before it, without those that have left the head of the
// queue.
func TestAhead(t *testing.T) {
	d, err := memlock.New().Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	ref := func(i int) driver.Ref { return driver.Ref{Key: "k", ID: fmt.Sprint(i), TTL: time.Hour} }
	for i := range 4 {
		st, err := d.Acquire(t.Context(), driver.Request{Ref: ref(i), Wait: true})
		if err != nil || st.Ahead != i {
			t.Errorf("claim %d is behind %d, %v", i, st.Ahead, err)
		}
	}
	if _, err := d.Release(t.Context(), ref(0)); err != nil {
		t.Fatal(err)
	}
	states, err := d.Renew(t.Context(), []driver.Ref{ref(1), ref(2), ref(3)})
	if err != nil {
		t.Fatal(err)
	}
	for i, st := range states {
		if st.Ahead != i {
			t.Errorf("claim %d is behind %d", i+1, st.Ahead)
		}
	}
}
