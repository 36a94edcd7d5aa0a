package sharedtimeout

import (
	"context"
	"sync"
	"time"
)

// A Joined is a context that ends with either of two contexts: that of a caller, whose values it
// has, and one with the timeout of the call. Its Done links the two, which costs more than the rest
// of many calls. A Driver that waits by itself uses Ends instead.
type Joined struct {
	caller, limit context.Context

	mu     sync.Mutex
	linked context.Context // nil until Done is called
	unlink func()
}

// Join joins two contexts until Unlink.
func Join(caller, limit context.Context) *Joined { return &Joined{caller: caller, limit: limit} }

// Ends returns the Done channels of both contexts.
func (j *Joined) Ends() (caller, limit <-chan struct{}) { return j.caller.Done(), j.limit.Done() }

// Deadline returns the earlier deadline.
func (j *Joined) Deadline() (time.Time, bool) {
	at, ok := j.caller.Deadline()
	if other, has := j.limit.Deadline(); has && (!ok || other.Before(at)) {
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
		unlink := context.AfterFunc(j.limit, cancel)
		j.linked, j.unlink = linked, func() {
			unlink()
			cancel()
		}
	}
	return j.linked
}

// Err returns the error of the caller's context, or else that of the timeout.
func (j *Joined) Err() error {
	if err := j.caller.Err(); err != nil {
		return err
	}
	return j.limit.Err()
}

// Value returns the value of the caller's context. Once the contexts are linked, contexts derived
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

// Unlink ends the link, if there is one. It is called when the call has ended.
func (j *Joined) Unlink() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unlink != nil {
		j.unlink()
	}
}
