//go:build !race

// The race detector shuffles goroutines, so that no two runs of a seed are alike.

package dlock_test

import (
	"runtime"
	"slices"
	"strings"
	"testing"
)

// A seed can be replayed: every message and every answer is the same, at the same time. With one
// processor, only a machine that is so busy that the scheduler interrupts a goroutine can change
// the order in which one event, such as Close, wakes a few of them.
func TestSimulationReplays(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const runs = 5 // chance repeats no story
	for seed := range uint64(40) {
		var stories [][]string
		for !replayed(stories) {
			if len(stories) == runs {
				t.Errorf("seed %d: no two of %d runs are the same", seed, runs)
				break
			}
			stories = append(stories, story(t, seed))
		}
	}
}

// replayed says whether the last of some stories was told before.
func replayed(stories [][]string) bool {
	last := len(stories) - 1
	return last > 0 && slices.ContainsFunc(stories[:last], func(one []string) bool { return slices.Equal(one, stories[last]) })
}

// story returns everything that happens under a seed, in order, except for events at the same
// instant.
func story(t *testing.T, seed uint64) []string {
	t.Helper()
	s, _ := simulations().One(t, seed, true)
	lines := strings.Split(s.Report(), "\n")
	slices.Sort(lines)
	return lines
}
