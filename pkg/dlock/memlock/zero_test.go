package memlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
	"github.com/ceyewan/genesis/pkg/dlock/memlock"
)

// The zero Store is an empty one.
func TestZeroStore(t *testing.T) {
	store := new(memlock.Store)
	store.Advance(time.Second)
	d, err := store.Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	r := driver.Ref{Key: "k", ID: "0123456789abcdef0123456789abcdef", TTL: time.Minute}
	st, err := d.Acquire(context.Background(), driver.Request{Ref: r})
	if err != nil || st.Phase != driver.Held || st.Token != 1 {
		t.Fatalf("%+v, %v", st, err)
	}
	r.Unanswered = true
	if st, err = d.Release(context.Background(), r); err != nil || st.Phase != driver.Held {
		t.Errorf("%+v, %v", st, err)
	}
}
