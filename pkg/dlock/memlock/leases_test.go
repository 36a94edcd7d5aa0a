package memlock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// An expired claim under a name that is never used again is not kept.
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

// A burst of them is forgotten as well, while others come and go: two for each, and not all at
// once.
func TestABurstOfLeasesIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		d, err := s.Open(driver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		const burst = 10_000
		next := func(i int) driver.Ref {
			r := driver.Ref{Key: fmt.Sprint("order ", i), ID: fmt.Sprintf("%032d", i), TTL: time.Second}
			if st, err := d.Acquire(t.Context(), driver.Request{Ref: r}); err != nil || st.Phase != driver.Held {
				t.Fatal(st.Phase, err)
			}
			return r
		}
		for i := range burst {
			next(i)
		}
		time.Sleep(2 * time.Second)
		for i := range burst / 2 {
			before := len(s.keys)
			if _, err := d.Release(t.Context(), next(burst+i)); err != nil {
				t.Fatal(err)
			}
			if n := before - len(s.keys); n != 2 {
				t.Fatalf("%d of %d names were forgotten at once", n, before)
			}
		}
		if len(s.keys) != 0 || s.turn != nil {
			t.Errorf("%d names are left", len(s.keys))
		}
	})
}

// The cost of a pair on one name does not depend on the number of holders of another.
func TestPairsDoNotPayForReadersOfAnotherName(t *testing.T) {
	crowded, empty := New(), New()
	for i := range 10_000 {
		d, err := crowded.Open(driver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		r := driver.Request{Ref: driver.Ref{Key: "config", ID: fmt.Sprintf("%032d", i), TTL: time.Hour}, Mode: driver.Shared}
		if st, err := d.Acquire(t.Context(), r); err != nil || st.Phase != driver.Held {
			t.Fatal(st, err)
		}
	}
	pairs := func(s *Store) time.Duration {
		d, err := s.Open(driver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		r := driver.Ref{Key: "mine", ID: fmt.Sprintf("%032x", 1), TTL: time.Hour}
		started := time.Now()
		for range 200 {
			_, _ = d.Acquire(t.Context(), driver.Request{Ref: r})
			_, _ = d.Release(t.Context(), r)
		}
		return time.Since(started)
	}
	var here, there time.Duration // the least of many: without what the machine did meanwhile
	for i := range 20 {
		h, o := pairs(crowded), pairs(empty)
		if i == 0 || h < here {
			here = h
		}
		if i == 0 || o < there {
			there = o
		}
	}
	if here > 50*there {
		t.Errorf("200 pairs take %v next to 10,000 readers of another name, and %v without them", here, there)
	}
}

// A new name drops a few dead waiters of other names, and not all at once.
func TestNewNameDropsFewWaiters(t *testing.T) {
	s := New()
	d, err := s.Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const all = 10 * maxDrops
	for i := range all + 1 {
		r := driver.Request{Ref: driver.Ref{Key: "k", ID: fmt.Sprintf("%032x", i), TTL: time.Hour}, Wait: true}
		if _, err := d.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	s.Advance(3 * time.Hour)
	waiters := func() int {
		if e := s.keys["k"]; e != nil {
			return e.queue.n
		}
		return 0
	}
	before := waiters()
	for i := range all {
		r := driver.Request{Ref: driver.Ref{Key: fmt.Sprint("new ", i), ID: fmt.Sprintf("%032x", all+1+i), TTL: time.Hour}}
		if _, err := d.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		now := waiters()
		if before-now > 2*maxDrops {
			t.Fatalf("one call has dropped %d waiters of another name", before-now)
		}
		before = now
	}
	if before > 0 {
		t.Errorf("%d dead waiters are left after %d calls", before, all)
	}
}

// Names whose holder and waiters are all dead do not accumulate, however many waiters each had.
func TestDeadWaitersDoNotPileUp(t *testing.T) {
	s := New()
	d, err := s.Open(driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const waiters = 8 * maxDrops
	for i := range 100 {
		for j := range waiters + 1 {
			r := driver.Request{Ref: driver.Ref{Key: fmt.Sprint("order ", i), ID: fmt.Sprintf("%016x%016x", i, j), TTL: time.Second}, Wait: true}
			if _, err := d.Acquire(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		s.Advance(10 * time.Second)
	}
	if len(s.keys) > 3 {
		t.Errorf("%d of 100 names are kept, of which one may have living claims", len(s.keys))
	}
}
