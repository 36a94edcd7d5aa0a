package filelock

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// The tombstone of an ID lasts for its time, however many there are. Expired ones are dropped.
func TestManyTombstonesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b tombstones
		const n = 1000
		for i := range n {
			b.add(strconv.Itoa(i), time.Hour)
		}
		time.Sleep(driver.TombstoneTTL(time.Hour) - 1)
		for i := range n {
			if !b.has(strconv.Itoa(i)) {
				t.Fatalf("%d of %d has no tombstone any more", i, n)
			}
		}
		time.Sleep(time.Nanosecond)
		if b.has("0") {
			t.Error("a tombstone lasts longer than its time")
		}
		time.Sleep(time.Nanosecond)
		for i := range 2 * n {
			b.add("next"+strconv.Itoa(i), time.Hour)
		}
		if len(b.until) != 2*n {
			t.Errorf("%d tombstones are kept, want %d", len(b.until), 2*n)
		}
	})
}

// Expired tombstones take no more memory than those that still count.
func TestExpiredTombstonesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const living = 1000
		var b tombstones
		most := 0
		for i := range 20 * living {
			b.add(strconv.Itoa(i), time.Hour)
			most = max(most, len(b.until))
			time.Sleep(driver.TombstoneTTL(time.Hour) / living)
		}
		if most > 2*living+100 {
			t.Errorf("up to %d tombstones are kept, and %d count", most, living)
		}
	})
}
