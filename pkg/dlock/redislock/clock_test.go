package redislock

import (
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// The judgement of a clock uses no more precision than the measurement has.
func TestJudgeClock(t *testing.T) {
	for _, tc := range []struct {
		name           string
		apart, between time.Duration
		want           driver.Level
	}{
		{name: "right", apart: time.Millisecond, between: 2 * time.Millisecond, want: driver.OK},
		{name: "wrong", apart: 3 * time.Second, between: 2 * time.Millisecond, want: driver.Warning},
		{name: "slow to answer", apart: 3 * time.Second, between: 6 * time.Second, want: driver.OK},
	} {
		if f := clockFinding(tc.apart, tc.between); f.Level != tc.want || f.Name != "clock" || (f.Level != driver.OK) != (f.Fix != "") {
			t.Errorf("%s: %+v", tc.name, f)
		}
	}
}
