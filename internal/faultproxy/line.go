package faultproxy

import (
	"net"
	"sync"
	"time"
)

// lineRoom is how many bytes one direction of one connection buffers before the proxy stops reading
// and the sender is blocked.
const lineRoom = 1 << 20

// A line is one direction of one connection: the data that was read on one side and is not yet
// written on the other. One goroutine reads into it, and one writes from it; others may push as
// well.
type line struct {
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

func newLine() *line {
	return &line{ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// push appends without waiting; a reader waits in awaitRoom.
func (l *line) push(u unit) {
	u.at = time.Now()
	l.mu.Lock()
	l.units = append(l.units, u)
	l.size += len(u.data)
	l.mu.Unlock()
	token(l.ready)
}

// awaitRoom waits until the line accepts more. It returns false if done is closed first.
func (l *line) awaitRoom(done <-chan struct{}) bool {
	for {
		l.mu.Lock()
		full := l.size >= lineRoom
		l.mu.Unlock()
		if !full {
			return true
		}
		select {
		case <-l.room:
		case <-done:
			return false
		}
	}
}

// take removes everything that may go now, as one batch; or reports that the end is reached; or
// returns how long the first unit has to wait, 0 if that is not known.
func (l *line) take(state lineState) (batch net.Buffers, end bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for len(l.units) > 0 && !state.hole {
		u := l.units[0]
		wait = u.at.Add(state.delay).Sub(now)
		if wait > 0 {
			break
		}
		if u.end {
			end = true
			break
		}
		l.units = l.units[1:]
		l.size -= len(u.data)
		batch = append(batch, u.data)
	}
	if len(batch) > 0 {
		token(l.room)
		return batch, false, 0
	}
	return nil, end, max(wait, 0)
}

// finish appends the end. It discards what a fault holds back at this moment, unless late says to
// deliver that in time, and the end after it. If there is nothing to wait for, the end is due at
// once.
func (l *line) finish(state lineState, late bool) {
	if late {
		l.push(unit{end: true})
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	kept, now := 0, time.Now()
	// All units behind the first held-back one are held back.
	for kept < len(l.units) && !state.hole && !l.units[kept].at.Add(state.delay).After(now) {
		kept++
	}
	for _, u := range l.units[kept:] {
		l.size -= len(u.data)
	}
	l.units = append(l.units[:kept], unit{end: true})
	token(l.ready)
}

// token makes a receive on c succeed once, without waiting for it.
func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
