package bench

import "sync/atomic"

// A witness sees whether holders overlap. All clients are in one process, so a
// variable that each of them sets while it holds the key is enough.
type witness struct {
	owner atomic.Int64 // the client inside, plus 1; 0 is none
	last  atomic.Int64 // the token of the last that entered

	turns, overlaps, disorders, losses atomic.Int64
}

func (w *witness) enter(client int, token int64) {
	w.turns.Add(1)
	if w.owner.Swap(int64(client)+1) != 0 {
		w.overlaps.Add(1)
	}
	if token != 0 && w.last.Swap(token) >= token { // 0: the backend has no tokens
		w.disorders.Add(1)
	}
}

// leave lets go of what is the client's own: whoever overlaps has taken it over.
func (w *witness) leave(client int) { w.owner.CompareAndSwap(int64(client)+1, 0) }
