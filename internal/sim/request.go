package sim

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ceyewan/genesis/pkg/dlock"
	"github.com/ceyewan/genesis/pkg/dlock/driver"
)

// A Request is one call for a lock.
type Request struct {
	User, Key, Purpose string
	Mode               driver.Mode
	Limit              int
	TTL                time.Duration
	Keeps              bool // nothing but an unlock is to end it
	HasWait            bool // by WithWait
	Wait               time.Duration
	Lingers            bool // by WithMinHold; Close leaves it to its lease
	Fixed              bool // by WithoutRenewal
	Async              bool // by WithAsyncUnlock
	Together           bool // with other keys
	MinHold, MaxHold   time.Duration
	Margin             time.Duration // by WithMargin
	Asked              time.Duration
	Patience           context.Context
	opts               []dlock.LockOption
	ended              atomic.Int64 // when the patience did; 0: it has not
	verb               string
	client             *dlock.Client
	returned           time.Duration // when the call or, if it was granted, its unlock has; 0: it has not
}

func (u *User) request(c *dlock.Client, verb string) *Request {
	q := &Request{
		client: c, verb: verb, User: u.Name, Purpose: shared, TTL: time.Duration(1+u.Rand.IntN(10)) * time.Second, Keeps: true,
	}
	mixed := u.chance(40)
	q.Key = u.Key(mixed)
	if mixed {
		u.drawMode(q)
	}
	if u.Config.LocalBatch > 0 && u.extra(50) { // those of one TTL share a claim
		q.TTL = u.Config.DefaultTTL
	}
	q.opts = append(q.opts, dlock.WithTTL(q.TTL))
	if u.Config.LocalBatch == 0 { // else those that differ in it share nothing
		q.Purpose = fmt.Sprintf("%s/%d", u.Name, u.step)
		q.opts = append(q.opts, dlock.WithInfo(dlock.Info{Purpose: q.Purpose}))
	}
	if u.chance(10) {
		q.Keeps, q.Fixed = false, true
		q.opts = append(q.opts, dlock.WithoutRenewal())
	} else if u.chance(10) {
		q.Lingers, q.MinHold = true, u.upTo(3*time.Second)
		q.opts = append(q.opts, dlock.WithMinHold(q.MinHold))
	}
	u.drawLeast(q)
	u.drawMargin(q)
	if u.Async && u.extra(60) {
		q.Async = true
		q.opts = append(q.opts, dlock.WithAsyncUnlock())
	}
	if u.chance(10) {
		q.Keeps, q.MaxHold = false, 3*time.Second+u.upTo(5*time.Second)
		q.opts = append(q.opts, dlock.WithMaxHold(q.MaxHold))
	}
	if u.chance(30) {
		q.HasWait, q.Wait = true, u.upTo(8*time.Second)
		q.opts = append(q.opts, dlock.WithWait(q.Wait))
	}
	return q
}

func (u *User) drawMode(q *Request) {
	mode, limit := driver.Exclusive, 0
	switch u.Rand.IntN(4) {
	case 0, 1:
		mode = driver.Shared
	case 2:
		mode, limit = driver.Permit, 1+u.Rand.IntN(3)
	}
	if !slices.Contains(u.Modes, mode) {
		return
	}
	q.Mode, q.Limit = mode, limit
	if mode == driver.Shared {
		q.opts = append(q.opts, dlock.WithShared())
	}
	if mode == driver.Permit {
		q.opts = append(q.opts, dlock.WithPermits(limit))
	}
}

// patience is a context as users have them.
func (u *User) patience(q *Request) context.CancelFunc {
	var cancel context.CancelFunc
	switch u.Rand.IntN(3) {
	case 0:
		q.Patience, cancel = context.WithTimeout(context.Background(), u.upTo(6*time.Second))
	case 1:
		var end context.CancelFunc
		q.Patience, end = context.WithCancel(context.Background())
		timer := time.AfterFunc(u.upTo(6*time.Second), end)
		cancel = func() { timer.Stop(); end() }
	default:
		q.Patience, cancel = context.WithCancel(context.Background())
	}
	q.Asked = u.Observer.Now()
	context.AfterFunc(q.Patience, func() { q.ended.Store(int64(u.Observer.Now())) })
	u.Observer.Asks(q)
	if u.Brief && u.Least.IntN(100) < 4 {
		after := time.Duration(u.Least.Int64N(int64(20 * time.Millisecond)))
		u.restarts.Go(func() {
			pause(after)
			_ = u.Restart()
		})
	}
	return cancel
}
