package memlock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// What is left to its lease, under a name that never comes again, is not kept.
func TestLeasesThatAreOverAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		d, err := s.Open(driver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		const alive = 100
		for i := range 100 * alive {
			r := driver.Request{Ref: driver.Ref{Key: fmt.Sprint("order ", i), ID: fmt.Sprintf("%032d", i), TTL: alive * time.Millisecond}}
			if _, err := d.Acquire(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			if n := len(s.keys); n > 2*alive+64 {
				t.Fatalf("%d names are kept, and %d locks are held", n, alive)
			}
		}
	})
}

// To look for such names costs a walk over all: among many that are held, it comes once
// in as many new ones.
func TestHeldNamesAreNotWalkedEachTime(t *testing.T) {
	s := New()
	d, err := s.Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	walks, last := 0, s.dropAt
	for i := range 10_000 {
		r := driver.Request{Ref: driver.Ref{Key: fmt.Sprint("order ", i), ID: fmt.Sprintf("%032d", i), TTL: time.Hour}}
		if len(s.keys) >= s.dropAt {
			walks++
		}
		if _, err := d.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if s.dropAt < last {
			t.Fatalf("at %d names the next walk comes at %d, before that at %d", len(s.keys), s.dropAt, last)
		}
		last = s.dropAt
	}
	if walks > 10 {
		t.Errorf("%d walks for 10,000 names", walks)
	}
}
