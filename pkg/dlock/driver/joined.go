package driver

import (
	"context"
	"sync"
	"time"
)

// A Joined is a context that ends with either of two: that of a caller, whose values it
// has, and that which bounds the call. Whoever asks for its Done has them linked, which
// costs more than the rest of many a call. A Driver that waits by itself asks for both
// ends instead.
type Joined struct {
	caller, bound context.Context

	mu     sync.Mutex
	linked context.Context // nil: nobody has asked
	unlink func()
}

// Join joins two contexts until Part.
func Join(caller, bound context.Context) *Joined { return &Joined{caller: caller, bound: bound} }

// Ends are the ends of both contexts.
func (j *Joined) Ends() (caller, bound <-chan struct{}) { return j.caller.Done(), j.bound.Done() }

// Deadline is the earlier one.
func (j *Joined) Deadline() (time.Time, bool) {
	at, ok := j.caller.Deadline()
	if other, has := j.bound.Deadline(); has && (!ok || other.Before(at)) {
		return other, true
	}
	return at, ok
}

// Done links the contexts.
func (j *Joined) Done() <-chan struct{} { return j.link().Done() }

func (j *Joined) link() context.Context {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.linked == nil {
		linked, cancel := context.WithCancel(j.caller)
		unlink := context.AfterFunc(j.bound, cancel)
		j.linked, j.unlink = linked, func() {
			unlink()
			cancel()
		}
	}
	return j.linked
}

// Err is that of the caller's context, or else of the bound.
func (j *Joined) Err() error {
	if err := j.caller.Err(); err != nil {
		return err
	}
	return j.bound.Err()
}

// Value is that of the caller's context. Once they are linked, contexts that are made
// from this one find the link there.
func (j *Joined) Value(key any) any {
	j.mu.Lock()
	from := j.linked
	j.mu.Unlock()
	if from == nil {
		from = j.caller
	}
	return from.Value(key)
}

// Part ends the link, if there is one. It is called when the call is over.
func (j *Joined) Part() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unlink != nil {
		j.unlink()
	}
}
