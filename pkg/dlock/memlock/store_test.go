package memlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// Bars end, and do not pile up.
func TestBarsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, store := context.Background(), memlock.New()
		d, err := store.Open(driver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = d.Close() }()
		for i := range 1000 {
			ref := driver.Ref{Key: "k", ID: fmt.Sprint(i), TTL: time.Second, Unsettled: true}
			if _, err := d.Release(ctx, ref); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
		}
		if n := store.Bars(); n > 300 {
			t.Errorf("%d bars of a minute each after 1000 seconds", n)
		}
		st, err := d.Acquire(ctx, driver.Request{Ref: driver.Ref{Key: "k", ID: "0", TTL: time.Second}})
		if err != nil || st.Phase != driver.Held {
			t.Errorf("an ID whose bar has ended: %v, %v", st, err)
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

// Many waiters on one key are found without scanning: a queue of ten thousand
// is worked off in order, and cancelling from its middle works.
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
