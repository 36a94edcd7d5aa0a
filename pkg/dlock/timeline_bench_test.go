package dlock

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
)

// A standardHeap is a timeline on container/heap, for comparison.
type standardHeap []*claim

func (h standardHeap) Len() int           { return len(h) }
func (h standardHeap) Less(i, j int) bool { return h[i].wakeAt < h[j].wakeAt }

func (h standardHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = int32(i), int32(j)
}

func (h *standardHeap) Push(x any) {
	cl := x.(*claim)
	cl.heapIndex = int32(len(*h))
	*h = append(*h, cl)
}

func (h *standardHeap) Pop() any {
	last := len(*h) - 1
	cl := (*h)[last]
	(*h)[last] = nil
	*h, cl.heapIndex = (*h)[:last], -1
	return cl
}

func (h *standardHeap) put(cl *claim) {
	if cl.heapIndex < 0 {
		heap.Push(h, cl)
		return
	}
	heap.Fix(h, int(cl.heapIndex))
}

func (h *standardHeap) remove(cl *claim) { heap.Remove(h, int(cl.heapIndex)) }

// What an acquisition and a release cost among n claims that are held: one is added, moved and
// removed.
func BenchmarkTimeline(b *testing.B) {
	for _, n := range []int{1, 1000, 100_000} {
		for name, line := range map[string]interface {
			put(cl *claim)
			remove(cl *claim)
		}{"ours": &timeline{}, "container-heap": &standardHeap{}} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				rnd := rand.New(rand.NewPCG(1, 2))
				for range n {
					line.put(&claim{heapIndex: -1, wakeAt: rnd.Int64N(1 << 40)})
				}
				b.ReportAllocs()
				cl := &claim{heapIndex: -1}
				for b.Loop() {
					cl.wakeAt = rnd.Int64N(1 << 40)
					line.put(cl)
					cl.wakeAt = rnd.Int64N(1 << 40)
					line.put(cl)
					line.remove(cl)
				}
			})
		}
	}
}
