package workload

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/ceyewan/genesis/bench/peer"
)

// A Hold asks a worker to hold so many locks in all.
type Hold struct {
	Locks int `json:"locks"`
}

// A Held is what they take in its memory.
type Held struct {
	Bytes      float64 `json:"bytes"` // each: heap and stacks, less what there was with the first few
	Goroutines int     `json:"goroutines"`
	Errors     int     `json:"errors"` // calls that had to be repeated
}

// fewLocks open the connections and the leases, which are not counted.
const fewLocks = 64

func (w *worker) hold(h Hold) (*Held, error) {
	if len(w.held) == 0 {
		w.held = make([]peer.Lock, fewLocks, max(h.Locks, fewLocks)) // the slice itself is not the peer's
		if err := w.take(0); err != nil {
			return nil, err
		}
		w.empty = memory()
	}
	from := len(w.held)
	if h.Locks > from {
		w.held = append(w.held, make([]peer.Lock, h.Locks-from)...)
		if err := w.take(from); err != nil {
			return nil, err
		}
	}
	slice := float64(16 * cap(w.held))
	bytes := float64(memory()) - float64(w.empty) - slice
	return &Held{bytes / float64(len(w.held)-fewLocks), runtime.NumGoroutine(), int(w.failures.Swap(0))}, nil
}

// take locks what is not locked yet, 64 at a time.
func (w *worker) take(from int) error {
	errs := make([]error, fewLocks)
	var wg sync.WaitGroup
	for g := range fewLocks {
		wg.Go(func() {
			for i := from + g; i < len(w.held) && errs[g] == nil; i += fewLocks {
				w.held[i], errs[g] = w.lockFree(fmt.Sprintf("held%s%06d", w.mark, i))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// lockFree takes a free key. A call that does not return is given up, which
// counts as an error, and tried again a few times.
func (w *worker) lockFree(key string) (lock peer.Lock, err error) {
	const tries, timeout = 5, 2 * time.Second
	for range tries {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		lock, err = w.clients[0].Lock(ctx, key)
		cancel()
		if err == nil {
			return lock, nil
		}
		w.failures.Add(1)
	}
	return nil, err
}

func memory() uint64 {
	runtime.GC()
	runtime.GC() // pools survive one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// A Keep asks a worker to go on holding for a while.
type Keep struct {
	For time.Duration `json:"for"`
}

// A Kept is what that took.
type Kept struct {
	Client float64 `json:"client_cpu"` // seconds of CPU in a second
	Server float64 `json:"server_cpu"`
	Lost   int     `json:"lost"` // of those that can tell
}

func (w *worker) keep(k Keep) (*Kept, error) {
	m, begin := startMeter(w.servers), time.Now()
	time.Sleep(k.For)
	took := time.Since(begin).Seconds()
	kept := &Kept{}
	kept.Client, kept.Server = m.read()
	kept.Client, kept.Server = kept.Client/took, kept.Server/took
	for _, l := range w.held {
		if lost(l) {
			kept.Lost++
		}
	}
	return kept, nil
}

func lost(l peer.Lock) bool {
	d, ok := l.(interface{ Done() <-chan struct{} })
	if !ok {
		return false
	}
	select {
	case <-d.Done():
		return true
	default:
		return false
	}
}

// A Grab asks a worker to take one key and keep it.
type Grab struct {
	Key string `json:"key"`
}

// A Grabbed tells when it got it.
type Grabbed struct {
	At int64 `json:"at"` // Unix nanoseconds
}

func (w *worker) grab(g Grab) (*Grabbed, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		l, err := w.clients[0].Lock(ctx, g.Key)
		switch {
		case err == nil:
			w.held = append(w.held, l)
			return &Grabbed{time.Now().UnixNano()}, nil
		case !errors.Is(err, peer.ErrGaveUp) || ctx.Err() != nil:
			return nil, err
		}
	}
}
