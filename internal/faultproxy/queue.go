package faultproxy

import (
	"net"
	"sync"
	"time"
)

// queueSize is how many bytes one direction of one connection buffers before the proxy stops reading
// and the sender is blocked.
const queueSize = 1 << 20

// A queue is one direction of one connection: the data that was read on one side and is not yet
// written on the other. One goroutine reads into it, and one writes from it; others may push as
// well.
type queue struct {
	mu    sync.Mutex
	units []unit
	size  int
	ready chan struct{} // has a token after a push
	room  chan struct{} // has a token after a take
}

// A unit is a command, a reply, a chunk of bytes, or the end of them.
type unit struct {
	data []byte
	at   time.Time // when it was read; the delay counts from here, if it is set
	end  bool
}

func newQueue() *queue {
	return &queue{ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// push appends without waiting; a reader waits in awaitRoom.
func (q *queue) push(u unit) {
	u.at = time.Now()
	q.mu.Lock()
	q.units = append(q.units, u)
	q.size += len(u.data)
	q.mu.Unlock()
	token(q.ready)
}

// awaitRoom waits until the queue accepts more. It returns false if done is closed first.
func (q *queue) awaitRoom(done <-chan struct{}) bool {
	for {
		q.mu.Lock()
		full := q.size >= queueSize
		q.mu.Unlock()
		if !full {
			return true
		}
		select {
		case <-q.room:
		case <-done:
			return false
		}
	}
}

// take removes everything that may go now, as one batch; or reports that the end is reached; or
// returns how long the first unit has to wait, 0 if that is not known.
func (q *queue) take(state directionFaults) (batch net.Buffers, end bool, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for len(q.units) > 0 && !state.hole {
		u := q.units[0]
		wait = u.at.Add(state.delay).Sub(now)
		if wait > 0 {
			break
		}
		if u.end {
			end = true
			break
		}
		q.units = q.units[1:]
		q.size -= len(u.data)
		batch = append(batch, u.data)
	}
	if len(batch) > 0 {
		token(q.room)
		return batch, false, 0
	}
	return nil, end, max(wait, 0)
}

// finish appends the end. It discards what a fault holds back at this moment, unless late says to
// deliver that in time, and the end after it. If there is nothing to wait for, the end is due at
// once.
func (q *queue) finish(state directionFaults, late bool) {
	if late {
		q.push(unit{end: true})
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	kept, now := 0, time.Now()
	// All units behind the first held-back one are held back.
	for kept < len(q.units) && !state.hole && !q.units[kept].at.Add(state.delay).After(now) {
		kept++
	}
	for _, u := range q.units[kept:] {
		q.size -= len(u.data)
	}
	q.units = append(q.units[:kept], unit{end: true})
	token(q.ready)
}

// token makes a receive on c succeed once, without waiting for it.
func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
