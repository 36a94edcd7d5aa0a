package sharedtimeout

import (
	"context"
	"errors"
)

// ErrAttemptTimeout: a driver abandoned a call before its context ended, so as not to outlast a
// context that is cancelled. The call may have been carried out, or may still be, and must be made
// again at once; the driver then allows it more time. Only Acquire and Release return it.
var ErrAttemptTimeout = errors.New("the attempt took too long")

// ErrNoRoom: a driver sent nothing, because too many calls were under way. Nothing has failed, and the call may be made again.
var ErrNoRoom = errors.New("there is no room for another call")

// Uncancelled is a context that ends at its deadline, and sooner only if the Client closes. A
// driver whose client honors deadlines but not cancellation may make a call under it without
// watching Done.
type Uncancelled struct {
	context.Context
	// Values is where Value looks first.
	Values context.Context
}

// Value looks in both contexts.
func (u Uncancelled) Value(key any) any {
	if v := u.Values.Value(key); v != nil {
		return v
	}
	return u.Context.Value(key)
}
