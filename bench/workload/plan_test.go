package workload

import (
	"testing"
	"time"
)

// The rounds that documents show are long enough for waits to end before them.
func TestShownRoundsAreLong(t *testing.T) {
	for _, backend := range []string{"redis", "etcd"} {
		if d := Full.hotFor(backend, 64, time.Millisecond, 0); d < 5*time.Second {
			t.Errorf("%s: %v", backend, d)
		}
		if d := Full.hotFor(backend, 64, 0, 0); d > Full.Longest {
			t.Errorf("%s, not shown: %v", backend, d)
		}
	}
}
