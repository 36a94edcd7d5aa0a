package redislock

import (
	"strings"
	"testing"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// The holder that Inspect returns. A value that the scripts do not accept has no details.
func TestReadHolder(t *testing.T) {
	const now = 1_794_882_929_000_000
	id := strings.Repeat("0f", 16)
	for value, want := range map[string]driver.Claim{
		id + `. 1794882928000000 1 - {"o":"ann"}`:         {ID: id, Token: 1_794_882_928_000_000, Age: time.Second, Info: driver.Info{Owner: "ann"}},
		id + `+ 1794882928500000 2 dlock:1 {"o":"a n"}`:   {ID: id, Token: 1_794_882_928_500_000, LastToken: 1_794_882_928_500_001, Age: time.Second / 2, Info: driver.Info{Owner: "a n"}},
		id + `. 1794882929000001 8 - {}`:                  {ID: id, Token: 1_794_882_929_000_001, LastToken: 1_794_882_929_000_008}, // the clock was set back
		"":                                                {},
		"a plain client's value that has many words":      {},
		id + ` 1794882928000000 1794882928.0 - {"o":"a"}`: {}, // of layout 2 or redlock
		id + `x 1794882928000000 1 - {"o":"a"}`:           {},
		strings.ToUpper(id) + `. 1794882928 1 - {}`:       {},
		id + `. 1794882928000000 1 -`:                     {},
		id + `. token 1 - {"o":"a"}`:                      {},
		id + `. 0 1 - {"o":"a"}`:                          {},
		id + `. -5 1 - {"o":"a"}`:                         {},
	} {
		want.Phase, want.Remaining = driver.Held, time.Minute
		if got := readHolder(value, now, time.Minute); got != want {
			t.Errorf("%q is %+v, want %+v", value, got, want)
		}
	}
	if got := readHolder("v", now, -time.Millisecond); got.Remaining != 0 {
		t.Errorf("a lock without an expiry has %v left", got.Remaining)
	}
}

// Every call on a single server needs the name of a counter.
func TestCounterAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { counterOf("some-key", false) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
