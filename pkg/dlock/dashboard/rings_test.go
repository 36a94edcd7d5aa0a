package dashboard

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ceyewan/genesis/pkg/dlock"
)

// waitsFor builds edges: "a>b" means that a waits for a lock that b holds.
func waitsFor(edges ...string) map[owner][]wait {
	waits := map[owner][]wait{}
	for _, e := range edges {
		r := &row{Key: e, Mode: modeExclusive, holders: []claim{{Owner: e[2:3], PID: 1}}, queue: []claim{{Owner: e[0:1], PID: 1}}}
		addWaits(waits, "s", r)
	}
	return waits
}

func TestRings(t *testing.T) {
	for name, c := range map[string]struct {
		edges []string
		want  [][]string // the keys of each ring
	}{
		"nothing":          {nil, nil},
		"a chain":          {[]string{"a>b", "b>c"}, nil},
		"oneself":          {[]string{"a>a"}, nil}, // goroutines of one process
		"two":              {[]string{"a>b", "b>a"}, [][]string{{"a>b", "b>a"}}},
		"three and a tail": {[]string{"z>a", "a>b", "b>c", "c>a"}, [][]string{{"a>b", "b>c", "c>a"}}},
		"the shorter one":  {[]string{"a>b", "b>a", "b>c", "c>a"}, [][]string{{"a>b", "b>a"}, {"c>a", "a>b", "b>c"}}},
		"two rings":        {[]string{"a>b", "b>a", "x>y", "y>x"}, [][]string{{"a>b", "b>a"}, {"x>y", "y>x"}}},
	} {
		var got [][]string
		for _, r := range ringsOf(waitsFor(c.edges...)) {
			var keys []string
			for _, s := range r.Steps {
				keys = append(keys, s.Key)
			}
			got = append(got, keys)
		}
		if !slices.EqualFunc(got, c.want, slices.Equal) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A waiter for one of several permits depends on no single holder.
func TestRingsIgnorePermits(t *testing.T) {
	waits := map[owner][]wait{}
	addWaits(waits, "s", &row{Key: "k", Mode: "permit", Limit: 2, holders: []claim{{Owner: "a", PID: 1}}, queue: []claim{{Owner: "c", PID: 1}}})
	if len(waits) != 0 {
		t.Errorf("%v", waits)
	}
}

func TestRingsAreBounded(t *testing.T) {
	waits := map[owner][]wait{}
	for i := range 2 * maxRings {
		a, b := owner{fmt.Sprint("a", i), "", 1}, owner{fmt.Sprint("b", i), "", 1}
		waits[a], waits[b] = []wait{{b, "s", "k"}}, []wait{{a, "s", "l"}}
	}
	if n := len(ringsOf(waits)); n != maxRings {
		t.Errorf("%d", n)
	}
}

// Two owners that hold what the other wants are reported.
func TestDeadlockIsReported(t *testing.T) {
	f := setUp(t)
	ann := dlock.WithInfo(dlock.Info{Owner: "ann", Host: "h", PID: 1})
	bob := dlock.WithInfo(dlock.Info{Owner: "bob", Host: "h", PID: 2})
	f.take("left", ann)
	f.take("right", bob)
	f.queue("right", ann)
	if got := get[health](f, "/api/v1/health"); len(got.Rings) != 0 {
		t.Errorf("%+v", got.Rings)
	}
	f.queue("left", bob)
	f.eventually("a ring", func() bool {
		got := get[health](f, "/api/v1/health").Rings
		return len(got) == 1 && slices.Equal(got[0].Steps, []step{{"ann", "h", 1, "memory", "right"}, {"bob", "h", 2, "memory", "left"}})
	})
	if got := get[health](f, "/api/v1/health").Sources[0]; got.Level != dlock.LevelWarning || len(got.Findings) != 1 || got.Findings[0].Fix == "" {
		t.Errorf("%+v", got)
	}
}
