package etcdlock

import (
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/internal/testenv"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// Check recommends a TTL of ten round trips, and at least five seconds. It warns if the servers are
// far away.
func TestCheckRecommendsATTL(t *testing.T) {
	t.Parallel()
	proxy := testenv.Proxy(t, testenv.Etcd(t).Addr())
	d, _ := openInternal(t, "http://"+proxy.Addr())
	for _, delay := range []time.Duration{0, 600 * time.Millisecond} {
		proxy.Delay(delay, 0)
		f, err := d.roundTrip(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		median := durationAfter(t, f.Detail, "median ")
		if median < delay {
			t.Errorf("a round trip of %v, with a delay of %v", median, delay)
		}
		if (f.Level == driver.Warning) != (median > slowTrip) {
			t.Errorf("level %v for %v", f.Level, median)
		}
		ttl, want := durationAfter(t, f.Fix, "choose a TTL of at least "), max(10*median, 5*time.Second)
		if off := (ttl - want).Abs(); off > 2*time.Millisecond { // both are rounded
			t.Errorf("%q for a round trip of %v, want %v", f.Fix, median, want)
		}
	}
}

func durationAfter(t *testing.T, text, prefix string) time.Duration {
	t.Helper()
	digits, ok := strings.CutPrefix(text, prefix)
	d, err := time.ParseDuration(digits)
	if !ok || err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return d
}
