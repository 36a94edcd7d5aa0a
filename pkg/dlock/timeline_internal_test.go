package dlock

import (
	"math/rand/v2"
	"testing"
)

// After any puts, moves and removals, no claim is due before its parent in the heap, and each claim
// knows its slot.
func TestTimeline(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var line timeline
		claims := make([]*claim, 1+rng.IntN(60))
		for i := range claims {
			claims[i] = &claim{heapIndex: -1}
		}
		for range 300 {
			cl := claims[rng.IntN(len(claims))]
			if rng.IntN(4) == 0 {
				line.remove(cl)
				if cl.heapIndex >= 0 {
					t.Fatalf("seed %d: a claim that was removed is in slot %d", seed, cl.heapIndex)
				}
			} else {
				cl.wakeAt = rng.Int64N(1000)
				line.put(cl)
			}
			checkTimeline(t, line, claims)
		}
	}
}

func checkTimeline(t *testing.T, line timeline, claims []*claim) {
	t.Helper()
	kept := 0
	for _, cl := range claims {
		if cl.heapIndex < 0 {
			continue
		}
		kept++
		if line[cl.heapIndex] != cl {
			t.Fatalf("slot %d has another claim", cl.heapIndex)
		}
		if parent := line[(cl.heapIndex-min(cl.heapIndex, 1))/2]; cl.wakeAt < parent.wakeAt {
			t.Fatalf("slot %d is due at %d, its parent at %d", cl.heapIndex, cl.wakeAt, parent.wakeAt)
		}
	}
	if kept != len(line) || (line.first() == nil) != (kept == 0) {
		t.Fatalf("%d claims are in the heap, %d know that they are", len(line), kept)
	}
}
